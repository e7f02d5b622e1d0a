# SPDX-License-Identifier: Apache-2.0
"""`fairflare evaluate`: a run's model on labelled data of hospitals that did not train it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fairflare.app.commands.predict import code_option, site_files_option, which_option
from fairflare.app.options import PATH, as_json

SPLITS = ("all", "test", "val")
REFIT = ("intercept", "slope")


@click.command()
@click.argument("run", type=PATH)
@click.argument("data", type=PATH)
@click.option("--name", default="", metavar="NAME", help="What the hospital is called, or which of several is meant.")
@click.option(
    "--split",
    type=click.Choice(SPLITS),
    default="all",
    show_default=True,
    help="Which labelled cases; test is what a hospital that trained may be asked for.",
)
@click.option("--label", default="", metavar="COLUMN", help="A table's column with the label; the run's by default.")
@click.option("--group-by", default="", metavar="A+B", help="Groups of patients; what the run knows by default.")
@click.option("--min-count", type=click.IntRange(1), metavar="N", help="No number of fewer patients; the run's.")
@click.option("--own", type=PATH, metavar="RUN2", help="The hospital's own model: another run, on the same cases.")
@click.option("--own-site", default="", metavar="NAME", help="Whose model of RUN2, where its sites have their own.")
@click.option(
    "--recalibrate",
    type=click.Choice(REFIT),
    is_flag=False,
    flag_value="slope",
    help="Also with an intercept (and slope) fitted to the other half of the patients.",
)
@which_option
@site_files_option
@code_option
@click.option("--out", type=PATH, metavar="DIR", help="Where results go; RUN/evaluation-NAME by default.")
@click.option("--force", is_flag=True, help="Replace --out if it holds an earlier evaluation.")
@as_json
def evaluate(
    run: Path,
    data: Path,
    name: str,
    split: str,
    label: str,
    group_by: str,
    min_count: int | None,
    own: Path | None,
    own_site: str,
    recalibrate: str | None,
    which: str,
    site_files: Path | None,
    code: tuple[Path, ...],
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Evaluate the model of the run in RUN on labelled data of a hospital that did not train it.

    DATA is a folder that `fairflare init` has written lists for, a folder of lists, one hospital's configuration, one
    list, or one table with the label. Discrimination, calibration and groups of patients, with intervals, go to
    DIR/evaluation.json and DIR/evaluation.html. docs/using-a-model.md
    """
    from fairflare.app import console, evaluation
    from fairflare.core import user_code
    from fairflare.inference.external import ALL, Asked
    from fairflare.inference.external import evaluate as evaluated
    from fairflare.inference.hospitals import hospitals, refuse_trained
    from fairflare.inference.opened import open_run

    user_code.use(code)
    with console.busy("reading the run"):
        opened = open_run(run, which=which, plain=True)
        other = open_run(own, own_site, site_files=site_files, plain=True) if own else None
    found = hospitals(opened, data, name)
    if split == ALL:
        refuse_trained(opened, found)
    asked = Asked(split, label, group_by, min_count, recalibrate or "", other)
    folder = out or run / f"evaluation-{name or (next(iter(found)) if len(found) == 1 else data.resolve().name)}"
    with evaluation.whole(folder, force) as scratch, console.busy("evaluating"):
        content, remarks = evaluated(opened, found, asked)
        evaluation.write(content, scratch)
    for line in remarks:
        console.note(line)
    _told(content, folder, as_json)


def _told(content: dict[str, Any], folder: Path, as_json: bool) -> None:
    from fairflare.app import console, evaluation

    console.dump({"folder": str(folder), "evaluation": content}) if as_json else evaluation.show(content, folder)
