# SPDX-License-Identifier: Apache-2.0
"""`fairflare export-model`: a run's model as a file that other programs load."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.app.commands.predict import code_option, plain_option, site_files_option, site_option, which_option
from fairflare.app.options import PATH, as_json

FORMATS = ("bundle", "torchscript", "onnx", "state-dict")


@click.command("export-model")
@click.argument("run", type=PATH)
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What is written.")
@which_option
@site_option
@site_files_option
@plain_option
@code_option
@click.option("--out", type=PATH, metavar="DIR", help="Where it goes; RUN-FORMAT here by default.")
@click.option("--force", is_flag=True, help="Replace --out if it holds an earlier export.")
@as_json
def export_model(
    run: Path,
    form: str,
    which: str,
    site: str,
    site_files: Path | None,
    plain: bool,
    code: tuple[Path, ...],
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the model of the run in the folder RUN for other programs, with its preprocessing and a model card.

    bundle runs with `python -m monai.bundle run`; torchscript and onnx take batches of any size; state-dict holds the
    network's entries alone. torchscript and onnx are compared with the run's own model first. docs/using-a-model.md
    """
    from fairflare.app import console, display
    from fairflare.core import user_code
    from fairflare.inference.atomic_output import check, whole_folder
    from fairflare.inference.export import export_model
    from fairflare.inference.loaded_run import open_run
    from fairflare.inference.predict import about

    user_code.use(code)
    folder = out or Path(f"{run.resolve().name}-{form}")
    check(folder, "model", force)
    opened = open_run(run, site, which=which, site_files=site_files, plain=plain)
    with whole_folder(folder, "model", force=force) as scratch, display.busy(f"writing {form}"):
        remarks = export_model(opened, form, scratch)
    for line in remarks:
        display.note(line)
    if as_json:
        console.dump({"folder": str(folder), "format": form, **about(opened), "remarks": remarks})
    else:
        console.say(f"{form} of the {opened.whose} model: {folder}")
