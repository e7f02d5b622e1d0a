# SPDX-License-Identifier: Apache-2.0
"""Commands on data before a run: ``init``, ``preflight``, ``fingerprint`` and ``plan``."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairflare.cli import console, options
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.validation import flag
from fairflare.studies.plain_yaml import read_yaml
from fairflare.studies.run_file import Values, beneath, own_data
from fairflare.tasks.forms import FORMS

if TYPE_CHECKING:
    from fairflare.import_data.proposal import Reading
    from fairflare.studies.display import Counter

LEVEL = "LEVEL"
FEW = 3
"""Sites with errors that are named with the flags that leave them out."""


@click.command()
@click.argument("folder", type=options.PATH)
@click.option("--kind", type=click.Choice([*FORMS]), help="What the data are, where it cannot be found out.")
@options.listed("--classes", metavar="A,B,C", help="Names of the classes or structures, in order.")
@options.listed_text("--label", "--outcome", metavar="LEVEL", help="The column or folder of the label; several: A,B.")
@click.option("--site", default="", metavar=LEVEL, help="The column or folder of the site; none: all are one site.")
@click.option("--patient", default="", metavar=LEVEL, help="That of the patient; none: each example is one.")
@options.listed("--groups", metavar="A,B", help="Columns or DICOM headers by which patients are grouped.")
@options.listed("--categories", metavar="A,B", help="Columns of numbers that are codes of categories.")
@options.listed("--leave-out", metavar="A,B", help="Columns that are no predictors.")
@options.listed("--keep", metavar="A,B", help="Predictors that are known before the outcome all the same.")
@options.listed("--missing", metavar="A,B", help="Cells that stand for a missing value: 999, or in a column sex=9.")
@options.listed("--rename", metavar="A=B,C=D", help="Columns of some files, and their names in the others.")
@click.option("--exposure", default="", metavar="COLUMN", help="Of a count: the column that it grows with.")
@click.option("--since", default="", metavar="COLUMN", help="The column of dates that other dates are counted from.")
@options.listed_text("--time", metavar="A,B", help="Columns of times or, with --since, dates of an event or the end.")
@click.option("--event", default="", metavar="COLUMN", help="The column that says whether there was an event.")
@options.listed("--event-value", metavar="A,B", help="Its cells that say so; 1 or a word such as dead.")
@click.option("--until", default="", metavar="DATE", help="The last day of observation, where no date is no event.")
@options.listed_text("--horizons", metavar="T,T", help="Time points at which to report survival.")
@click.option(
    "--mapping", type=options.PATH, metavar="FILE", help="A YAML file by which several rows of a patient become one."
)
@click.option("--slices", type=click.IntRange(1, 1000), metavar="N", help="Take every Nth slice of volumes.")
@options.listed("--without", metavar="A,B", help="Sites that are left out.")
@click.option("--sheet", default="", metavar="NAME", help="The sheet of Excel files that have several.")
@click.option("--header", default="", metavar="N|N-M", help="The row of the columns' names, or rows to be joined.")
@click.option(
    "--hidden", type=click.Choice(["", "read", "skip"]), default="", help="A sheet's hidden rows and columns."
)
@click.option("--new-splits", is_flag=True, help="Draw splits also where the folder has them.")
@click.option("--yes", is_flag=True, help="Write without asking; what can be read in two ways is refused.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.option("--federation", type=options.PATH, metavar="FILE", help="Also draft a federation's file of them.")
@options.json_option
def init(
    folder: Path,
    mapping: Path | None,
    yes: bool,
    dry_run: bool,
    federation: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Look at FOLDER (or a table), the images or tables of one site or of several, and write lists that a run reads.

    Images with masks beside them or in a folder of their own, a folder for each class, DICOM archives, the Decathlon's
    dataset.json, a table that names images or their patients, or tables of patients. The outer folder is the site, the
    inner one the class, where names say so; where data can be read in two ways somebody at a terminal is asked, and a
    script gets both readings with the flags that decide. No patient is in two splits. What is found is shown first. All
    files go to FOLDER/fairflare; nothing else is changed.

    A LEVEL is a column of a table, folder1 (the outermost folder), folder2 ..., name (the beginning of the files'
    names) or a keyword of DICOM headers such as PatientID.
    """
    from fairflare.studies.display import Counter

    if mapping and not mapping.exists():
        return _propose(folder, mapping, dry_run, given, as_json)
    with Counter("looking at the data") as counter:
        from fairflare.import_data.detect import look
        from fairflare.import_data.proposal import Choices, Unanswered
        from fairflare.import_data.several_rows import note_on
        from fairflare.import_data.write import contents, lines, refuse_existing, summary, write

        root = folder.parent if folder.is_file() else folder
        asks = sys.stdin.isatty() and not as_json and not yes
        if not dry_run:
            refuse_existing(root)
            if not yes and not asks:
                raise UserError("init: expected --yes or --dry-run where nobody can be asked")
        unanswered = Unanswered()
        chosen = Choices(**_chosen(given), ask=partial(_ask, counter) if asks else unanswered)
        if mapping:
            from fairflare.import_data.patient_rows import checked, look_at_rows

            rules = checked(read_yaml(mapping, "mapping"), mapping.name)
            found = look_at_rows(folder, rules, chosen, counter.saw)
        else:
            found = look(folder, chosen, counter.saw)
            found = replace(found, notes=(*found.notes, *note_on(folder, found, chosen)))
        unanswered.refuse()
        files = contents(root, found)
        files |= {"mapping.yaml": mapping.read_bytes()} if mapping else {}
    if as_json:
        console.dump(summary(root, found, files))
    else:
        console.say("\n".join(lines(root, found, files)))
    if dry_run or (not yes and not click.confirm("write them?", default=True)):
        return
    written = write(root, files)
    if federation:
        from fairflare.engine.files import save_text
        from fairflare.studies.run_file import federation_text

        described = json.loads(files["dataset.json"])
        save_text(federation, federation_text(described, list(described["sites"])))
    if not as_json:
        named = shlex.quote(str(root))
        console.say(f"written: {written}\nnext:\n  fairflare preflight {named}\n  fairflare run fedavg --data {named}")


def _chosen(given: dict[str, Any]) -> dict[str, Any]:
    """The options of ``init`` as ``Choices`` takes them."""
    return (
        given
        | {key: given[key] or "" for key in ("kind", "label", "time", "horizons")}
        | {"slices": given["slices"] or 0}
    )


def _propose(folder: Path, mapping: Path, dry_run: bool, given: dict[str, Any], as_json: bool) -> None:
    """Show a mapping for the tables of ``folder``, and write it to the new file ``mapping``."""
    from fairflare.engine.files import save_text
    from fairflare.import_data.patient_rows import propose
    from fairflare.import_data.proposal import Choices

    text = propose(folder, Choices(**_chosen(given)))
    if not dry_run:
        save_text(mapping, text)
    if as_json:
        return console.dump({"mapping": text, "written": "" if dry_run else str(mapping)})
    console.say(text.rstrip())
    if not dry_run:
        again = f"fairflare init {shlex.quote(str(folder))} --mapping {shlex.quote(str(mapping))} --yes"
        console.say(f"written: {mapping}\nnext:\n  read it, then {again}")


def _ask(counter: Counter, what: str, readings: Sequence[Reading]) -> int:
    """The reading that somebody at the terminal chooses."""
    with counter.aside():
        console.say(f"{what}:")
        for number, one in enumerate(readings, start=1):
            console.say(f"  {number}  {one.words}  ({one.flags})")
        return int(click.prompt("which is right?", type=click.IntRange(1, len(readings)))) - 1


@click.command()
@click.argument("path", type=options.PATH)
@click.option("--kind", type=click.Choice([*FORMS]), help="What the data are, where `fairflare init` has not said it.")
@click.option("--task", metavar="T[:PRESET]", help="Another task that reads files, e.g. prostate:paper.")
@options.classes_option
@click.option("--site", metavar="NAME", help="The site's name in the task; the configuration file's by default.")
@click.option("--method", metavar="METHOD", help="The method that the data are for: what only it needs is an error.")
@click.option("--federation", type=options.PATH, metavar="FILE", help="The federation's file: what the data mean.")
@options.accept_option
@options.without_option
@options.set_option
@options.json_option
def preflight(
    path: Path,
    kind: str | None,
    task: str | None,
    accept: tuple[str, ...],
    federation: Path | None,
    as_json: bool,
    values: Any,
    **asked: Any,
) -> None:
    """Look for what is wrong with the data at PATH; exit code 1 when a run would be refused.

    PATH is a site's configuration file, a folder of such files, or the folder or table that `fairflare init` has seen.
    One line per site and kind of problem. Run it at the hospital: its lines may name files. With --json it prints what
    may leave a site: no counts but the bands they lie in.
    """
    from fairflare.core.findings import accepted_codes
    from fairflare.core.validation import some
    from fairflare.engine.preflight import Statement, too_small
    from fairflare.studies.display import Counter

    if kind and task:
        raise UserError("preflight: expected either --kind or --task")
    asked |= {"task": kind or task or "", "accepted": accepted_codes(list(accept))}
    asked["values"] = options.own_names(values, "task", "run")
    with Counter("looking at the data") as counter:
        from fairflare.cli.preflight import Question, check, leaving, named_in
        from fairflare.data.readers.datalist import INSIDE
        from fairflare.data.readers.tables import SUFFIXES

        if path.suffix.lower() in SUFFIXES and (path.parent / INSIDE).is_dir():  # what `init` has made of the table
            path = path.parent
        question = Question(**asked)
        if federation:
            from fairflare.studies.run_file import read_run_file

            site = None if path.is_dir() else question.site or named_in(path)
            question = question.of_federation(read_run_file(federation), site)
        found = check(path, question, counter.saw)
    if as_json:
        shown: dict[str, Any] = {site: leaving(path, site, one) for site, one in found.items()}
        console.dump(shown if path.is_dir() else next(iter(shown.values())))
    else:
        console.findings(found, path.is_dir())
    small = too_small({site: Statement(None, tuple(one), {}) for site, one in found.items()})
    if small and not as_json:
        console.say(f"{some([*small])}: too few patients: a run leaves them out")
    if broken := [site for site, one in found.items() if site not in small and any(f.level == "error" for f in one)]:
        where = f" at {some(broken)}" if path.is_dir() else ""
        other = len(broken) < len(found) and len(broken) <= FEW
        these = "it" if len(broken) == 1 else "them"
        left = f"; without {these}: {' '.join(flag('without', one) for one in broken)}" if other else ""
        raise RunFailed(f"preflight: the data{where} have errors, no run can start{left}")


@click.command()
@click.argument("site_config", type=options.PATH)
@click.option("--kind", type=click.Choice([*FORMS]), required=True, help="What the data are.")
@options.listed_text("--classes", required=True, metavar="N|A,B", help="Classes: a number, or their names.")
@click.option("--site", metavar="NAME", help="The site's name in the federation; its kit's or the file's by default.")
@click.option("--out", type=options.PATH, metavar="FILE", help="Where it goes; <SITE>.fingerprint.json by default.")
@options.set_option
@options.as_json
def fingerprint(site_config: Path, values: Values, **asked: Any) -> options.Told:
    """Write what a site's training data look like, to be passed on to whoever makes the federation's plan.

    Run it at the hospital and read the file before it leaves: it holds the number of training examples and, from
    min_count images on, medians of height, width and pixel spacing, whether images have colours, mean and spread of
    their pixels.
    """
    from fairflare.cli.preflight import write_fingerprint

    path = write_fingerprint(site_config, values=options.own_names(values, "task"), **asked)
    return {"fingerprint": str(path)}, f"fingerprint: {path}"


@click.command()
@click.argument("sources", type=options.PATH, nargs=-1, required=True, metavar="DIR|FILE...")
@click.option("--kind", type=click.Choice([*FORMS]), help="What the data in DIR are.")
@options.classes_option
@click.option(
    "--out", type=options.PATH, metavar="FILE", help="Also write the plan, for --plan of run, compare and export."
)
@options.set_option
@options.as_json
def plan(
    sources: tuple[Path, ...], kind: str | None, classes: str | None, out: Path | None, values: Values
) -> options.Told:
    """Which defaults the data ask for, each with its reason: of DIR with every site's list, or of fingerprints.

    `fairflare run --datalists DIR` uses the same plan by itself.
    """
    from fairflare.cli.preflight import plan_of_files, plan_of_folder
    from fairflare.engine.setup.plans import write_plan

    if sources[0].is_dir():
        task, own = own_data(None, sources[0], kind, classes)
        found = plan_of_folder(sources, task, options.own_names(beneath(own, values), "task"))
    else:
        found = plan_of_files(sources)
    if out:
        write_plan(found, out)
    return found.to_json(), "\n".join([*map(str, found.choices), *found.cautions])
