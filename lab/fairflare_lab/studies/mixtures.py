# SPDX-License-Identifier: Apache-2.0
"""Models of finished runs on test patients that are dealt to the sites in another way, and models before any round."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fairflare.core.errors import UserError
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.files import CHECKPOINT
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.parts import build_parts
from fairflare.report.fairness import std, worst
from fairflare.report.groups import harmonic, harmonic_printed
from fairflare.studies.comparison import Json, Predicted, headline_of, summary_of, with_final_model
from fairflare.studies.runs import predicted
from fairflare.tasks.base import Task


def initial_scores(config: RunConfig) -> dict[str, float | None]:
    """Site -> the headline metric of the run's initial model on its own test split."""
    parts = build_parts(config)
    parts.network.load_state_dict(parts.model)
    names = site_of_client(config, parts.task)
    data = {name: parts.task.site_data(site) for name, site in names.items()}
    return {name: headline_of(parts.task, *predicted(parts, config, own)) for name, own in data.items()}


def on_mixture(config: RunConfig, folder: Path, options: Mapping[str, Any], higher: bool) -> Json:
    """One run's final model on the test patients as ``Task.test_data_as`` gives them to sites.

    A site that uses a model of its own, as in training alone, has it wherever its patients are from. Returns mean,
    worst, std, std_sample, gap, and sites: site -> n and value.
    """
    parts = with_final_model(config, folder)
    data = parts.task.test_data_as(_other(parts.task, config, options))
    models = load_checkpoint(folder / CHECKPOINT).models if parts.rule.counts_own else {}
    answers: Predicted = {}
    for site, own in data.items():
        if site in models:
            parts.network.load_state_dict(models[site])
        if own.size("test"):
            answers[site] = predicted(parts, config, own)
    values = {site: headline_of(parts.task, *found) for site, found in answers.items()}
    sites = {site: {"n": len(found[1]), "value": values[site]} for site, found in answers.items()}
    levels = _levels(answers) if parts.task.kind.has_classes else {}
    return {**summary_of(values, higher), "std_sample": std(values, ddof=1), "sites": sites, **levels}


def _levels(predicted: Predicted) -> dict[str, float | None]:
    """Of the accuracies over sites and over classes: disparities (ddof 1) and FedUFO's two harmonic means."""
    right = {site: (outputs.argmax(1) == targets).double() for site, (outputs, targets) in predicted.items()}
    targets, pooled = torch.cat([found[1] for found in predicted.values()]), torch.cat(list(right.values()))
    of_sites = {site: float(found.mean()) for site, found in right.items() if len(found)}
    of_groups = {str(int(c)): float(pooled[targets == c].mean()) for c in targets.unique()}
    apart = [std(found, ddof=1) for found in (of_sites, of_groups)]
    lowest = [worst(found, True)[1] for found in (of_sites, of_groups)]
    return {
        "disparity-sites": apart[0],
        "disparity-groups": apart[1],
        "harmonic-printed": None if apart[0] is None or apart[1] is None else harmonic_printed(apart[0], apart[1]),
        "harmonic-worst": None if lowest[0] is None or lowest[1] is None else harmonic(lowest[0], lowest[1]),
    }


def _other(task: Task, config: RunConfig, options: Mapping[str, Any]) -> Task:
    return tasks.load(config.task, config.preset, **{**dataclasses.asdict(task), **options})


def parse_options(texts: Sequence[str]) -> list[dict[str, str]]:
    """("alpha=1,n_sites=4", ...) -> options of the task; raises UserError on anything else."""
    found = []
    for text in texts:
        pairs = [pair.partition("=") for pair in text.split(",")]
        if not all(key.strip() and equals for key, equals, _ in pairs):
            raise UserError(f"options: expected KEY=VALUE,KEY=VALUE, got {text[:80]!r}")
        found.append({key.strip().removeprefix("task."): value.strip() for key, _, value in pairs})
    return found
