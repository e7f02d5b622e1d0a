# SPDX-License-Identifier: Apache-2.0
"""``fairflare risk``: how well it can be told from a run's final model whose records it was trained on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.data.site_config import find_site_config
from fairflare.engine.audit import AuditLog
from fairflare.engine.files import AUDIT, BEST, CONFIG, read_json, read_model
from fairflare.engine.history import read_final
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.at_site import benefit_at_site, build_site
from fairflare.engine.setup.config import RunConfig
from fairflare.engine.setup.membership import LEVEL, Attack
from fairflare.engine.setup.parts import Parts, build_parts, find
from fairflare.report.write import verified_run, write_report
from fairflare.studies.folders import is_run, opened

COX = "cox"
FEW = "too few patients to tell their numbers"


def measure_risk(folder: Path, shadows: int) -> dict[str, Any]:
    """Attack the model at every site that trained, log what may leave, and write the report anew; its content.

    Raises:
        UserError: no complete run with one model for all sites, an odd number of shadows, a loss that mixes patients,
            or sites' data that are not on this machine.
    """
    _checked(folder, shadows)
    with opened(folder):
        config, parts, attack, model = _prepared(folder, shadows)
        if read_json(folder / CONFIG).get("env") not in ("local", "sim") and "site_names" in config.options:
            raise UserError(
                f"{folder}: its sites' data are elsewhere; each of them can run this with --site, --site-data"
            )
        parts.task.check_data()
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
                detail = "its data have errors" if site.data is None else FEW
                rejected[name] = {"code": "few_cases" if site.data is not None else "data", "detail": detail}
        about = {"shadows": shadows, "level": LEVEL, "sites": sites, "rejected": rejected}
        AuditLog(folder / AUDIT).append("risk", **about, model_sha256=model)
        return write_report(folder)


def risk_at(folder: Path, shadows: int, name: str, local: Path) -> dict[str, float]:
    """Attack the model at one hospital, by itself, on its own machine; the folder stays as it is.

    Args:
        folder: of the run, a copy from whoever leads it.
        shadows: see ``Attack``.
        name: the hospital's, as the run knows it.
        local: where its ``fairflare_site.yaml`` lies.

    Returns:
        As ``Attack.at``.

    Raises:
        UserError: as ``measure_risk``; no such site or configuration, data with errors, or too few patients.
    """
    _checked(folder, shadows)
    if find_site_config(local, name) is None:
        raise UserError(f"--site-data: expected a folder with fairflare_site.yaml, got {local}")
    config, parts, attack, _ = _prepared(folder, shadows)
    if name not in (names := site_names(config)) or name == config.leave_out:
        raise UserError(f"--site: expected a site that the run trained on ({', '.join(names)}), got {name}")
    site = build_site(config, parts, name, local=local)
    findings, site.data = site.look()
    if site.data is None:
        raise UserError(f"{name}: {next(one.text for one in findings if one.level == 'error')}")
    found = attack.at(site)
    if not found:
        raise UserError(f"{name}: {FEW}")
    return found


def _checked(folder: Path, shadows: int) -> None:
    if not folder.is_dir() or not is_run(folder):
        raise UserError(f"{folder}: expected the folder of a run")
    if shadows < 0 or shadows % 2:
        raise UserError(f"--shadows: expected an even number, got {shadows}")


def _prepared(folder: Path, shadows: int) -> tuple[RunConfig, Parts, Attack, str]:
    """The run, its parts, the attack on its model, and the final model's hash in the log."""
    run_history, _ = verified_run(folder)
    config = RunConfig.from_json(read_json(folder / CONFIG))
    model = read_final(folder, run_history)
    if not run_history.completed or model is None:
        raise UserError(f"{folder}: the run is not complete; `fairflare resume {folder}` goes on")
    find(config.init_from, folder)
    parts = build_parts(config)
    if parts.has_personal or parts.rule.own_models:
        raise UserError(f"risk: {config.method} gives sites models of their own, expected one for all")
    if parts.task.kind.family == COX:
        raise UserError("risk: the loss of one patient depends on the others at risk (choose model hazards)")
    if config.headline == "best":
        model = read_model(folder / BEST)
    first = {key: value.clone() for key, value in parts.model.items()}
    alone = benefit_at_site(dataclasses.replace(config, solo=True), parts, None)
    assert alone is not None  # the configuration asks
    attack = Attack(model, first, alone.trainer, parts.task.kind.has_classes, shadows)
    return config, parts, attack, run_history.finish["model_sha256"]
