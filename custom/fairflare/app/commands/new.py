# SPDX-License-Identifier: Apache-2.0
"""`fairflare new`: a plugin to start from."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.app.options import PATH, as_json


@click.command()
@click.argument("kind", type=click.Choice(("rule", "trainer", "probe")))
@click.argument("name")
@click.option("--out", type=PATH, default=Path(), metavar="DIR", help="Where to write; the current folder by default.")
@as_json
def new(kind: str, name: str, out: Path, as_json: bool) -> None:
    """Write a working rule, trainer or probe NAME as a plugin of one file, with its test and its card.

    No file is overwritten. The example is a method of its own at once: run it, then change it.
    """
    from fairflare.app import console
    from fairflare.app.later import put_off

    put_off("torch", "numpy")
    from fairflare.app.scaffold import write_part

    files = write_part(kind, name, out)
    console.dump({"files": [str(path) for path in files]}) if as_json else console.written(files, name)
