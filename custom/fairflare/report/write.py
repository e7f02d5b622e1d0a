# SPDX-License-Identifier: Apache-2.0
"""Writes ``report.json`` and ``report.html`` from what a run left in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairflare.assembly import CONFIG, build_parts, scorer
from fairflare.clinic.base import Task
from fairflare.clinic.grouping import NONE
from fairflare.config import RunConfig
from fairflare.errors import UserError
from fairflare.federation import audit
from fairflare.federation.loop import AUDIT, MODEL, load_model
from fairflare.federation.state import save_json, save_text
from fairflare.report.page import render_run
from fairflare.report.schema import report_json
from fairflare.report.summary import summarise

REPORT = "report.json"
PAGE = "report.html"


def write_report(folder: Path) -> dict[str, Any]:
    """(Re)write both files and return the content of ``report.json``.

    The shared test sets of a simulated task, which no site holds, are scored here when the run ended before its last
    rounds, which are scored as they go.

    Raises:
        UserError: the folder holds no run, or its audit chain is broken.
    """
    for name in (CONFIG, AUDIT):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: expected the folder of a run, found no {name}")
    content = read_json(folder / CONFIG)
    described, config = _without_paths(content), RunConfig.from_json(content)
    entries = audit.verify(folder / AUDIT)
    parts = build_parts(config, at_site=True)
    model = _logged_model(folder, entries)
    scores = _scored(entries) or scorer(parts, config.training["batch_size"])(model)
    summary = summarise(described, entries, facts(parts.task, config.group_by, config.clients), scores)
    report = report_json(summary, entries)
    save_json(folder / REPORT, report)
    save_text(folder / PAGE, render_run(summary))
    return report


def _without_paths(described: dict[str, Any]) -> dict[str, Any]:
    """The configuration with file names in place of paths: reports are passed on."""
    options = described.get("options") or {}
    for key in ("pretrained_weights", "datalists"):
        if options.get(key):
            options = {**options, key: Path(options[key]).name}
    return {**described, "options": options}


def _scored(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The scores that the log holds of its last round."""
    rounds = [e for e in entries if e["event"] == "round"]
    return rounds[-1].get("test_sets") or {} if rounds else {}


def facts(task: Task, group_by: str = NONE, clients: Sequence[str] = ()) -> dict[str, Any]:
    """What a reader must know about a task: what is real, what is simulated, what the sites and the groups are."""
    return {
        "title": task.title,
        "real": task.real,
        "simulated": task.simulated,
        "classes": list(task.classes),
        "headline": task.headline,
        "sites": dict(zip(clients or task.sites(), task.sites().values(), strict=True)),
        "table_sets": task.table_sets(),
        "groups": list(task.grouping(group_by).names),
        "group_metric": "accuracy" if task.class_labels else task.headline,
    }


def verify_run(folder: Path) -> list[dict[str, Any]]:
    """The audit entries of a run whose chain is whole and to which every other file of the folder fits.

    Checked: each line's hash and canonical form, ``model.pt`` (or the checkpoint) against the last model hash,
    ``config.json`` against the first line, ``report.json`` against the chain's head, and that a run with a ``model.pt``
    has its last line. Not to be found without the head kept elsewhere: a chain written anew from the first line on.

    Raises:
        UserError: one line that says what does not fit.
    """
    if not (folder / AUDIT).is_file():
        raise UserError(f"{folder}: expected the folder of a run, found no {AUDIT}")
    entries = audit.verify(folder / AUDIT)
    _logged_model(folder, entries)
    if (folder / MODEL).is_file() and entries[-1]["event"] != "finish":
        raise UserError(f"{AUDIT}: the last entry is missing: the run ended, and the log does not say so")
    config = RunConfig.from_json(read_json(folder / CONFIG))
    if entries[0].get("config_sha256") != config.sha256():
        raise UserError(f"{CONFIG}: is not the configuration that {AUDIT} begins with")
    if (folder / REPORT).is_file():
        head = read_json(folder / REPORT).get("detail", {}).get("provenance", {}).get("chain_head")
        if head != entries[-1]["hash"]:
            raise UserError(f"{REPORT}: was made from another log; `fairflare report {folder}` writes it anew")
    return entries


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises UserError when there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{path}: expected a JSON file") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object")
    return content


def _logged_model(folder: Path, entries: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """The folder's model, which must be the one that the log ends with (or, cut short while saving, the one before)."""
    try:
        model = load_model(folder)
    except FileNotFoundError:
        raise UserError(f"{folder}: no round was finished, so there is no model") from None
    logged = [e["model_sha256"] for e in entries if "model_sha256" in e]
    if audit.model_hash(model) not in (logged[-1:] if (folder / MODEL).is_file() else logged[-2:]):
        raise UserError(f"{folder / MODEL}: is not the model that {AUDIT} ends with")
    return model
