# SPDX-License-Identifier: Apache-2.0
"""``fairflare after``: a step after the last round, or the benefit of joining, of a run that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.engine import files
from fairflare.engine.audit import AuditLog
from fairflare.engine.files import AUDIT, BEST, CONFIG, read_json
from fairflare.engine.history import read_final, read_standing
from fairflare.engine.setup.config import RunConfig, with_benefit, with_step
from fairflare.engine.setup.local import Ended, benefit_after, step_after
from fairflare.report.write import verified_run, write_report
from fairflare.studies.folders import opened, require_run

SOLO = "solo"
"""The step that reports the benefit of joining for each site."""


def take_step(folder: Path, step: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Take the step, add what came of it to the log, and write the report anew; returns report.json's content.

    ``step`` is "recalibrate", "shares", "conformal", or "solo" for the benefit of joining; ``values`` are its settings
    by name. Raises UserError: there is no such run, it is not complete or of other machines, or the step does not fit
    its task; RunFailed: a site's data have errors.
    """
    require_run(folder)
    with opened(folder):
        if AuditLog(folder / AUDIT).last.get("event") in ("after", "benefit"):
            write_report(folder)  # a command was killed between the log's line and the report of its step
        run_history, _ = verified_run(folder)
        described = read_json(folder / CONFIG)
        if described.get("env") not in ("local", "sim"):
            asked_for = "--solo" if step == SOLO else f"--set after={step}"
            raise UserError(f"{folder}: its sites' data are elsewhere; run it with {asked_for}")
        config = RunConfig.from_json(described)
        if step == SOLO and values:
            raise UserError(f"--set {next(iter(values))}: expected none with --step solo, which trains as the run did")
        config = with_benefit(config, True) if step == SOLO else with_step(config, step, values)
        model, standing = read_final(folder, run_history), read_standing(folder, run_history)
        if not run_history.completed or model is None or standing is None:
            raise UserError(f"{folder}: the run is not complete; `fairflare resume {folder}` goes on")
        if config.headline == "best" and config.components.trainer.is_shared:
            model = files.read_model(folder / BEST)
        ended = Ended(model, standing.models, standing.declared, run_history.start["model_sha256"])
        event, taken = ("benefit", benefit_after) if step == SOLO else ("after", step_after)
        found = taken(config, folder, ended)
        AuditLog(folder / AUDIT).append(event, **found, model_sha256=run_history.finish["model_sha256"])
        return write_report(folder)
