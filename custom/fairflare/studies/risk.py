# SPDX-License-Identifier: Apache-2.0
"""``fairflare risk``: how well it can be told from a run's final model whose records it was trained on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.engine.audit import AuditLog
from fairflare.engine.files import AUDIT, BEST, CONFIG, read_json, read_model
from fairflare.engine.history import read_final
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.at_site import benefit_at_site, build_site
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.membership import LEVEL, Attack
from fairflare.engine.setup.parts import build_parts, find
from fairflare.report.write import verified_run, write_report
from fairflare.studies.folders import is_run, opened

COX = "cox"


def measure_risk(folder: Path, shadows: int) -> dict[str, Any]:
    """Attack the model at every site that trained, log what may leave, and write the report anew; its content.

    Raises:
        UserError: no complete run with one model for all sites, an odd number of shadows, a loss that mixes patients,
            or sites' data that are not on this machine.
    """
    if not folder.is_dir() or not is_run(folder):
        raise UserError(f"{folder}: expected the folder of a run")
    if shadows < 0 or shadows % 2:
        raise UserError(f"--shadows: expected an even number, got {shadows}")
    with opened(folder):
        run_history, _ = verified_run(folder)
        described = read_json(folder / CONFIG)
        config = RunConfig.from_json(described)
        model = read_final(folder, run_history)
        if not run_history.completed or model is None:
            raise UserError(f"{folder}: the run is not complete; `fairflare resume {folder}` goes on")
        if described.get("env") not in ("local", "sim") and "site_names" in config.options:
            raise UserError(f"{folder}: its sites' data are elsewhere")
        find(config.init_from, folder)
        parts = build_parts(config)
        if parts.has_personal or parts.rule.own_models:
            raise UserError(f"risk: {config.method} gives sites models of their own, expected one for all")
        if parts.task.kind.family == COX:
            raise UserError("risk: the loss of one patient depends on the others at risk (choose model hazards)")
        parts.task.check_data()
        if config.headline == "best":
            model = read_model(folder / BEST)
        first = {key: value.clone() for key, value in parts.model.items()}
        alone = benefit_at_site(dataclasses.replace(config, solo=True), parts, None)
        assert alone is not None  # the configuration asks
        attack = Attack(model, first, alone.trainer, parts.task.kind.has_classes, shadows)
        sites, rejected = dict[str, Any](), dict[str, Any]()
        for name in site_names(config):
            if name == config.leave_out:
                continue
            site = build_site(config, parts, name)
            _, site.data = site.look()
            found = attack.at(site) if site.data is not None else {}
            if found:
                sites[name] = found
            else:
                detail = "its data have errors" if site.data is None else "too few patients to tell their numbers"
                rejected[name] = {"code": "few_cases" if site.data is not None else "data", "detail": detail}
        about = {"shadows": shadows, "level": LEVEL, "sites": sites, "rejected": rejected}
        AuditLog(folder / AUDIT).append("risk", **about, model_sha256=run_history.finish["model_sha256"])
        return write_report(folder)
