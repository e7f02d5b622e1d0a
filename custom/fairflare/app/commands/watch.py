# SPDX-License-Identifier: Apache-2.0
"""`fairflare watch`: a run that goes on in another window."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.app.options import PATH


@click.command()
@click.argument("folder", type=PATH)
@click.option("--once", is_flag=True, help="Print how far it is and end, as where the output is redirected.")
@click.option(
    "--every", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between looks."
)
def watch(folder: Path, once: bool, every: float) -> None:
    """Follow the run in FOLDER: each site's score and weight over the rounds, and who is away.

    Reads the audit log and changes nothing; Ctrl-C ends the display, not the run.
    """
    from fairflare.app.live_view import watch as follow

    follow(folder, once=once, every=every)
