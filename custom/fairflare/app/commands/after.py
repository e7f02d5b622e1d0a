# SPDX-License-Identifier: Apache-2.0
"""`fairflare after`: a step after the last round of a finished run."""

from __future__ import annotations

from pathlib import Path

import click

from fairflare.app.arguments import parse_pairs
from fairflare.app.options import PATH, as_json, set_option


@click.command()
@click.argument("folder", type=PATH)
@click.option("--step", type=click.Choice(("recalibrate", "conformal", "solo")), required=True, help="What is done.")
@set_option
@as_json
def after(folder: Path, step: str, pairs: tuple[str, ...], as_json: bool) -> None:
    """Recalibrate the model of the finished run in FOLDER, or set thresholds, for each site or group.

    With --step solo each site trains alone and says what joining gave it.

    The sites' data must be on this machine; a deployed run takes the step itself, with --set after=STEP or --solo. The
    model stays as it is; the report shows what came of it, and each site keeps its own in sites/SITE.after.json, or
    the model that it trained alone in sites/SITE.solo.safetensors.
    """
    from fairflare.app import console, results
    from fairflare.app.after import take_step

    found = take_step(folder, step, parse_pairs(pairs))
    console.dump({"folder": str(folder), "report": found}) if as_json else results.run_result(found, folder)
