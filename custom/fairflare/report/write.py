# SPDX-License-Identifier: Apache-2.0
"""Writes ``report.json`` and ``report.html`` from what a run left in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from fairflare.assembly import CONFIG, build_parts, default_device
from fairflare.clinic.base import Task
from fairflare.config import RunConfig
from fairflare.errors import UserError
from fairflare.federation import audit
from fairflare.federation.loop import AUDIT, MODEL, load_model
from fairflare.federation.site import EVALUATION_BATCH, predict
from fairflare.federation.state import save_json, save_text
from fairflare.report.page import render_run
from fairflare.report.summary import summarise

REPORT = "report.json"
PAGE = "report.html"


def write_report(folder: Path) -> dict[str, Any]:
    """(Re)write both files and return the content of ``report.json``.

    The shared test sets of a simulated task are scored here, on the final model, because no site holds them.

    Raises:
        UserError: the folder holds no run, or its audit chain is broken.
    """
    for name in (CONFIG, AUDIT):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: expected the folder of a run, found no {name}")
    described = _without_paths(json.loads((folder / CONFIG).read_text()))
    entries = audit.verify(folder / AUDIT)
    config = RunConfig.from_json(described)
    parts = build_parts(config, at_site=True)
    model = _logged_model(folder, entries)
    scores = score_test_sets(parts.task, parts.network, model)
    summary = summarise(described, entries, facts(parts.task), scores)
    save_json(folder / REPORT, summary)
    save_text(folder / PAGE, render_run(summary))
    return summary


def _without_paths(described: dict[str, Any]) -> dict[str, Any]:
    """The configuration with file names in place of paths: reports are passed on."""
    options = described.get("options") or {}
    if options.get("pretrained_weights"):
        described["options"] = {**options, "pretrained_weights": Path(options["pretrained_weights"]).name}
    return described


def score_test_sets(task: Task, network: torch.nn.Module, model: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Metrics of ``model`` on each of the task's shared test sets."""
    device = default_device()
    network.to(device).load_state_dict(model)
    return {
        test.name: {
            "corrupted": test.corrupted,
            "n": len(test.targets),
            "metrics": task.evaluate(*predict(network, test.batches(EVALUATION_BATCH), device)),
        }
        for test in task.test_sets()
    }


def facts(task: Task) -> dict[str, Any]:
    """What a reader must know about a task: what is real, what is simulated, what the sites are."""
    return {
        "title": task.title,
        "real": task.real,
        "simulated": task.simulated,
        "classes": list(task.classes),
        "headline": task.headline,
        "sites": task.sites(),
    }


def verify_run(folder: Path) -> list[dict[str, Any]]:
    """The audit entries of a run whose chain is whole and whose ``model.pt`` is the one that the log ends with.

    Raises:
        UserError: one line that says what does not fit.
    """
    if not (folder / AUDIT).is_file():
        raise UserError(f"{folder}: expected the folder of a run, found no {AUDIT}")
    entries = audit.verify(folder / AUDIT)
    _logged_model(folder, entries)
    return entries


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
