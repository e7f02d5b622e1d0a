# SPDX-License-Identifier: Apache-2.0
"""`fairflare init`: from data as they are to lists that a run reads."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.app.options import PATH, as_json
from fairflare.core.errors import UserError
from fairflare.tasks.forms import FORMS

if TYPE_CHECKING:
    from fairflare.app.intake.found import Reading
    from fairflare.app.progress import Counter

LEVEL = "LEVEL"
TEXTS = ("label", "site", "patient", "since", "window", "new_splits")
LISTS = ("classes", "groups", "categories", "leave_out", "keep", "without", "missing")


@click.command()
@click.argument("folder", type=PATH)
@click.option("--kind", type=click.Choice([*FORMS]), help="What the data are, where it cannot be found out.")
@click.option("--classes", default="", metavar="A,B,C", help="Names of the classes or structures, in order.")
@click.option("--label", default="", metavar=LEVEL, help="The column or folder of the label.")
@click.option("--site", default="", metavar=LEVEL, help="The column or folder of the site; none: all are one site.")
@click.option("--patient", default="", metavar=LEVEL, help="That of the patient; none: each example is one.")
@click.option("--groups", default="", metavar="A,B", help="Columns or DICOM headers by which patients are grouped.")
@click.option("--categories", default="", metavar="A,B", help="Columns of numbers that are codes of categories.")
@click.option("--leave-out", default="", metavar="A,B", help="Columns that are no predictors.")
@click.option("--keep", default="", metavar="A,B", help="Predictors that are known before the outcome all the same.")
@click.option("--missing", default="", metavar="A,B", help="Cells that stand for a missing value, as 999 or -9.")
@click.option("--since", default="", metavar="COLUMN", help="The column of dates that other dates are counted from.")
@click.option("--slices", type=click.IntRange(1, 1000), metavar="N", help="Take every Nth slice of volumes.")
@click.option("--window", default="", metavar="C,W", help="Centre and width of the grey values; file: each file's own.")
@click.option("--without", default="", metavar="A,B", help="Sites that are left out.")
@click.option("--new-splits", is_flag=True, help="Draw splits also where the folder has them.")
@click.option("--yes", is_flag=True, help="Write without asking; what can be read in two ways is refused.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@as_json
def init(folder: Path, yes: bool, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Look at FOLDER (or a table), the images or tables of one site or of several, and write lists that a run reads.

    Images with masks beside them or in a folder of their own, a folder for each class, DICOM archives, the Decathlon's
    dataset.json, a table that names images or their patients, or tables of patients. The outer folder is the site, the
    inner one the class, where names say so; where data can be read in two ways somebody at a terminal is asked, and a
    script gets both readings with the flags that decide. No patient is in two splits. What is found is shown first. All
    files go to FOLDER/fairflare; nothing else is changed.

    A LEVEL is a column of a table, folder1 (the outermost folder), folder2 ..., name (the beginning of the files'
    names) or a keyword of DICOM headers such as PatientID.
    """
    from fairflare.app import console
    from fairflare.app.progress import Counter

    with Counter("looking at the data") as counter:
        from fairflare.app.intake.found import Choices, refuse
        from fairflare.app.intake.look import look
        from fairflare.app.intake.show import lines, summary
        from fairflare.app.intake.write import contents, refuse_existing, write

        root = folder.parent if folder.is_file() else folder
        asks = sys.stdin.isatty() and not as_json and not yes
        if not dry_run:
            refuse_existing(root)
            if not yes and not asks:
                raise UserError("init: expected --yes or --dry-run where nobody can be asked")
        lists: dict[str, Any] = {key: _names(given[key]) for key in LISTS}
        texts: dict[str, Any] = {key: given[key] for key in TEXTS}
        chosen = Choices(
            **lists,
            **texts,
            kind=given["kind"] or "",
            slices=given["slices"] or 0,
            ask=partial(_ask, counter) if asks else refuse,
        )
        proposal = look(folder, chosen, counter.saw)
        files = contents(root, proposal.found, bool(proposal.links))
    if as_json:
        console.dump(summary(root, proposal, files))
    else:
        console.say("\n".join(lines(root, proposal, files)))
    if dry_run or (not yes and not click.confirm("write them?", default=True)):
        return
    written = write(root, files)
    if not as_json:
        named = shlex.quote(str(root))
        console.say(f"written: {written}\nnext:\n  fairflare preflight {named}\n  fairflare run fedavg --data {named}")


def _names(text: str) -> tuple[str, ...]:
    import csv

    return tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), ()) if name.strip())


def _ask(counter: Counter, what: str, readings: Sequence[Reading]) -> int:
    """The reading that somebody at the terminal chooses."""
    from fairflare.app import console

    with counter.aside():
        console.say(f"{what}:")
        for number, one in enumerate(readings, start=1):
            console.say(f"  {number}  {one.words}  ({one.flags})")
        return int(click.prompt("which is right?", type=click.IntRange(1, len(readings)))) - 1
