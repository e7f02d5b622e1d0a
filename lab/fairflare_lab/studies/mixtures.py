# SPDX-License-Identifier: Apache-2.0
"""Models of finished runs on test patients that are dealt to the sites in another way, and models before any round."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairflare.core.errors import UserError
from fairflare.core.findings import SPLIT_NAMES
from fairflare.data.inputs import Scaling
from fairflare.data.readers.files import FileSplit
from fairflare.data.tensors import Split, TensorData
from fairflare.datasets.patients import TableTask
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.files import CHECKPOINT
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.engine.setup.parts import build_parts
from fairflare.report.fairness import std, worst
from fairflare.report.groups import harmonic, harmonic_printed
from fairflare.studies.comparison import Json, headline_of, summary_of, with_shown_model
from fairflare.studies.runs import predicted
from fairflare.tasks.base import Task

Predicted = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Site -> condensed outputs and targets of its test split."""


def initial_scores(config: RunConfig) -> dict[str, float | None]:
    """Site -> the headline metric of the run's initial model on its own test split."""
    parts = build_parts(config)
    parts.network.load_state_dict(parts.model)
    names = site_of_client(config, parts.task)
    data = {name: parts.task.site_data(site) for name, site in names.items()}
    return {name: headline_of(parts.task, *predicted(parts, config, own)) for name, own in data.items()}


DEALING = ("alpha", "n_sites", "sites_by", "data_seed")
"""Options that say who has which patient, and nothing else."""


def dealt_as(task: Task, other: Task) -> dict[str, TensorData]:
    """Site of ``other`` -> all test patients of ``task`` that ``other`` has there, prepared as that site would.

    With another ``alpha`` it is FedUFO's evaluation on test splits of another skew. A site prepares numbers with its
    training patients of ``other``, of whom none is left out for having been trained with: medians, means and spreads
    come of them, and no outcome. UserError where no table is dealt, or ``other`` differs in more than the partition.
    """
    if not isinstance(task, TableTask) or not isinstance(other, TableTask):
        raise UserError(f"task {task.name}: its test examples cannot be dealt to the sites in another way")
    fixed = [one.name for one in dataclasses.fields(task) if one.name not in DEALING]
    if type(other) is not type(task) or any(getattr(other, key) != getattr(task, key) for key in fixed):
        raise UserError(f"task {task.name}: expected only other values of {', '.join(DEALING)}")
    table, found = task.table(), {}
    pool = np.concatenate([task.rows(site)["test"] for site in task.sites()])
    for site in other.sites():
        rows = other.rows(site)
        everyone = np.sort(np.concatenate(list(rows.values())))
        held_out = everyone[np.isin(everyone, pool)]
        scaled = Scaling.of(table.numbers[rows["train"]])
        splits: dict[str, Split | FileSplit] = {
            name: table.split(held_out if name == "test" else rows[name], scaled) for name in SPLIT_NAMES
        }
        found[site] = TensorData.of(splits, n_classes=len(task.classes))
    return found


def on_mixture(config: RunConfig, folder: Path, options: Mapping[str, Any], higher: bool) -> Json:
    """One run's model on the test patients as ``dealt_as`` gives them to sites.

    A site that uses a model of its own, as in training alone, has it wherever its patients are from. Returns mean,
    worst, std, std_sample, gap, and sites: site -> n and value.
    """
    parts = with_shown_model(config, folder)
    data = dealt_as(parts.task, _other(parts.task, config, options))
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
