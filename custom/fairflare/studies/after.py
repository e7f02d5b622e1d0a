# SPDX-License-Identifier: Apache-2.0
"""``fairflare after``: a step after the last round of a run that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.signals import command
from fairflare.engine import files
from fairflare.engine.audit import AuditLog
from fairflare.engine.files import AUDIT, BEST, CONFIG, read_json
from fairflare.engine.history import read_final, read_standing
from fairflare.engine.setup.config import RunConfig, with_step
from fairflare.engine.setup.local import step_after
from fairflare.report.write import verified_run, write_report
from fairflare.studies.folders import opened, require_run


def take_step(folder: Path, step: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Take the step, add what came of it to the log, and write the report anew; returns report.json's content.

    ``step`` is "recalibrate" or "conformal"; ``values`` are its settings by name. Raises UserError: there is
    no such run, it is not complete or of other machines, or the step does not fit its task; RunFailed: a site's data
    have errors.
    """
    require_run(folder)
    with opened(folder):
        if AuditLog(folder / AUDIT).last.get("event") == "after":
            write_report(folder)  # a command was killed between the log's line and the report of its step
        run_history, _ = verified_run(folder)
        described = read_json(folder / CONFIG)
        if described.get("env") not in ("local", "sim"):
            raise UserError(f"{folder}: its sites' data are elsewhere; run it with --set after={step}")
        config = with_step(RunConfig.from_json(described), step, values)
        model, standing = read_final(folder, run_history), read_standing(folder, run_history)
        if not run_history.completed or model is None or standing is None:
            raise UserError(f"{folder}: the run is not complete; {command('resume', folder)} goes on")
        if config.headline == "best":
            model = files.read_model(folder / BEST)
        found = step_after(config, folder, model, standing)
        AuditLog(folder / AUDIT).append("after", **found, model_sha256=run_history.finish["model_sha256"])
        return write_report(folder)
