# SPDX-License-Identifier: Apache-2.0
"""``fairflare after`` and ``risk``: what is made of a run that has ended.

A step after the last round, or how well it can be told from the final model whose records it
was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.data.site_config import find_site_config
from fairflare.engine import files
from fairflare.engine.audit import AuditLog
from fairflare.engine.exchanges import benefit
from fairflare.engine.files import AUDIT, BEST, CONFIG, read_json
from fairflare.engine.history import read_final, read_standing
from fairflare.engine.setup.assembly import site_names
from fairflare.engine.setup.at_site import build_site, of_run
from fairflare.engine.setup.config import RunConfig, with_step
from fairflare.engine.setup.local import step_after
from fairflare.engine.setup.membership import LEVEL, Attack
from fairflare.engine.setup.parts import Parts, build_parts
from fairflare.engine.setup.weights import find
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
            raise UserError(f"{folder}: the run is not complete; `fairflare resume {folder}` goes on")
        if config.headline == "best":
            model = files.read_model(folder / BEST)
        found = step_after(config, folder, model, standing)
        AuditLog(folder / AUDIT).append("after", **found, model_sha256=run_history.finish["model_sha256"])
        return write_report(folder)


FEW = "too few patients to tell their numbers"


def measure_risk(folder: Path, shadows: int) -> dict[str, Any]:
    """Attack the model at every site that trained, log what may leave, and write the report anew; its content.

    Raises UserError: no complete run with one model for all sites, an odd number of shadows, a loss that mixes
    patients, or sites' data that are not on this machine.
    """
    _checked(folder, shadows)
    with opened(folder):
        config, parts, attack, model = _prepared(folder, shadows)
        if read_json(folder / CONFIG).get("env") not in ("local", "sim") and "site_names" in config.options:
            alone = "each of them can run this with --site, --site-data"
            raise UserError(f"{folder}: its sites' data are elsewhere; {alone}")
        parts.task.check_data()
        sites, rejected = dict[str, Any](), dict[str, Any]()
        for name in (name for name in site_names(config) if name != config.leave_out):
            site = build_site(config, parts, name)
            _, site.data = site.look()
            if site.data is None:
                rejected[name] = {"code": "data", "detail": "its data have errors"}
            elif found := attack.at(site):
                sites[name] = found
            else:
                rejected[name] = {"code": "few_cases", "detail": FEW}
        about = {"shadows": shadows, "level": LEVEL, "sites": sites, "rejected": rejected}
        AuditLog(folder / AUDIT).append("risk", **about, model_sha256=model)
        return write_report(folder)


def risk_at(folder: Path, shadows: int, name: str, local: Path) -> dict[str, float]:
    """``Attack.at`` one hospital, by itself, on its own machine; the folder, a copy, stays as it is.

    ``name`` is the hospital's, as the run knows it, and ``local`` where its ``fairflare_site.yaml`` lies. Raises
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
    require_run(folder)
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
    if parts.task.kind.family == "cox":
        raise UserError("risk: the loss of one patient depends on the others at risk (choose model hazards)")
    if config.headline == "best":
        model = files.read_model(folder / BEST)
    first = {key: value.clone() for key, value in parts.model.items()}
    alone = benefit.EXCHANGE.at_site(of_run(config, parts)).alone
    attack = Attack(model, first, alone.trainer, parts.task.kind.has_classes, shadows)
    return config, parts, attack, run_history.finish["model_sha256"]
