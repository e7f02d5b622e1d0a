# SPDX-License-Identifier: Apache-2.0
"""`fairflare convert`: folders of earlier versions."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.app.options import PATH, as_json


@click.command()
@click.argument("folders", type=PATH, nargs=-1, required=True, metavar="FOLDER...")
@as_json
def convert(folders: tuple[Path, ...], as_json: bool) -> None:
    """Make this version's files of the weights and checkpoints that an earlier version left in FOLDER.

    FOLDER is a run's, or a federation's in a site's or server's workspace (fairflare_state/ID). Files named *.pt become
    *.safetensors with the same contents, bit for bit, and go. Earlier versions wrote pickles, which no other command
    reads: they are read as data, and nothing in them is executed.
    """
    from fairflare.app import console
    from fairflare.app.earlier import convert

    done = {str(folder): convert(folder) for folder in folders}
    if as_json:
        console.dump(done)
        return
    for folder, names in done.items():
        console.say(f"{folder}: {', '.join(names) or 'nothing to convert'}")
