# SPDX-License-Identifier: Apache-2.0
"""`fairflare init`: from a folder as it is to lists that a run reads."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from fairflare.app.arguments import KINDS
from fairflare.app.options import PATH, as_json
from fairflare.core.errors import UserError


@click.command()
@click.argument("folder", type=PATH)
@click.option("--kind", type=click.Choice(KINDS), help="What the data are, where it cannot be found out.")
@click.option("--classes", default="", metavar="A,B,C", help="Names of the classes or structures, in order.")
@click.option("--label", default="", metavar="COLUMN", help="The column of the label or outcome.")
@click.option("--site", default="", metavar="COLUMN", help="The column of the site; none: all are one site.")
@click.option("--patient", default="", metavar="COLUMN", help="The column of the patient; none: each example is one.")
@click.option("--new-splits", is_flag=True, help="Draw splits also where the folder has them.")
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@as_json
def init(
    folder: Path,
    kind: str | None,
    classes: str,
    label: str,
    site: str,
    patient: str,
    new_splits: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Look at FOLDER, which holds the images or tables of one site or of several, and write lists that a run reads.

    Images with masks beside them or in a folder of their own, a folder for each class, the Decathlon's dataset.json, a
    table that names images, or a table for each site; sites are sub-folders, tables or a column. No patient is in two
    splits. What is found is shown first. All files go to FOLDER/fairflare; nothing else is changed.
    """
    from fairflare.app import console
    from fairflare.app.intake.found import Choices
    from fairflare.app.intake.look import look
    from fairflare.app.intake.show import lines, summary
    from fairflare.app.intake.write import contents, refuse_existing, write

    if not dry_run:
        refuse_existing(folder)
        asks = sys.stdin.isatty() and not as_json
        if not yes and not asks:
            raise UserError("init: expected --yes or --dry-run where nobody can be asked")
    names = tuple(name.strip() for name in classes.split(",") if name.strip())
    proposal = look(folder, Choices(kind or "", names, label, site, patient, new_splits))
    files = contents(folder, proposal.found, bool(proposal.links))
    if as_json:
        console.dump(summary(folder, proposal, files))
    else:
        console.say("\n".join(lines(folder, proposal, files)))
    if dry_run or (not yes and not click.confirm("write them?", default=True)):
        return
    written = write(folder, files)
    if not as_json:
        named = shlex.quote(str(folder))
        console.say(f"written: {written}\nnext:\n  fairflare preflight {named}\n  fairflare run fedavg --data {named}")
