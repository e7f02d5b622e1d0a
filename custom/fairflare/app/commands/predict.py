# SPDX-License-Identifier: Apache-2.0
"""`fairflare predict`: a run's model on new images or patients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairflare.app.options import PATH, as_json

if TYPE_CHECKING:
    from fairflare.inference.loaded_run import Opened

site_option = click.option("--site", default="", metavar="NAME", help="Whose model, scaling and thresholds are used.")
site_files_option = click.option(
    "--site-files", type=PATH, metavar="DIR", help="Where the site keeps its own files; RUN/sites by default."
)
which_option = click.option(
    "--which",
    type=click.Choice(("final", "best")),
    callback=lambda ctx, param, value: value or "",
    help="The last round's model, or the one chosen on validation data; by default that whose results the run shows.",
)
plain_option = click.option("--plain", is_flag=True, help="Neither recalibration nor thresholds.")
code_option = click.option("--code", type=PATH, multiple=True, metavar="FILE", help="Your own file that RUN needs.")


@click.command()
@click.argument("run", type=PATH)
@click.argument("inputs", type=PATH, nargs=-1, required=True, metavar="FILES|DIR|CSV")
@which_option
@site_option
@site_files_option
@plain_option
@code_option
@click.option("--out", type=PATH, metavar="DIR", help="Where results go; RUN-predictions here by default.")
@click.option("--force", is_flag=True, help="Replace --out if it holds earlier predictions.")
@as_json
def predict(
    run: Path,
    inputs: tuple[Path, ...],
    which: str,
    site: str,
    site_files: Path | None,
    plain: bool,
    code: tuple[Path, ...],
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Predict images or the rows of a table with the model of the run in the folder RUN.

    Inputs are prepared as the training's were; no training data are needed. Classes and probabilities go to
    DIR/predictions.csv, masks to DIR/masks in the size, spacing and affine of their image. Lines on the screen name
    what is unlike the training. docs/using-a-model.md
    """
    from fairflare.app import console, display
    from fairflare.core import user_code
    from fairflare.inference.atomic_output import check, whole_folder
    from fairflare.inference.loaded_run import open_run
    from fairflare.inference.predict import about, predict

    user_code.use(code)
    folder = out or Path(f"{run.resolve().name}-predictions")
    check(folder, "predictions", force)
    opened = open_run(run, site, which=which, site_files=site_files, plain=plain)
    with whole_folder(folder, "predictions", force=force) as scratch, display.busy("predicting"):
        found = predict(opened, inputs, scratch)
    for line in found.unlike:
        display.note(line)
    if as_json:
        console.dump({"folder": str(folder), **about(opened), "cases": len(found.rows), "unlike": found.unlike})
        return
    console.say(said(opened, len(found.rows), folder))


def said(opened: Opened, n: int, folder: Path) -> str:
    """The last lines of the command."""
    whose = f"the {opened.whose} model" + (f" of {opened.site}" if opened.whose != "shared" else "")
    adjusted = f", {opened.adjustment.words} of {opened.site}" if opened.adjustment else ""
    return f"{n} {'case' if n == 1 else 'cases'} by {whose}{adjusted}\nresults: {folder}"
