# SPDX-License-Identifier: Apache-2.0
"""`fairflare describe`: every setting of a method or task, and every setting of a name."""

from __future__ import annotations

import click

from fairflare.app.options import as_json


@click.command()
@click.argument("name", metavar="METHOD|TASK[:PRESET]|OWNER|KEY")
@as_json
def describe(name: str, as_json: bool) -> None:
    """Settings with owner, default, range and meaning: of a METHOD's parts, of a TASK and its training, of all parts of
    an OWNER (rule, trainer, train, run, after, ...), or every setting that is called KEY.

    The default is the one that the method or the task's preset has; a name of several settings is listed with each.
    """
    from fairflare.app import console
    from fairflare.app.settings_rows import about
    from fairflare.app.settings_show import show

    found = about(name)
    console.dump(found) if as_json else show(found)
