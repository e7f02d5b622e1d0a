# SPDX-License-Identifier: Apache-2.0
"""Trees beside the methods of a comparison: FLARE's federation of XGBoost, and gradient boosting on each site's rows.

Where federated trees gain no more than the methods do, it is not the network's fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.core.validation import expected
from fairflare.data.tensors import TensorData
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig, site_of_client
from fairflare.report.fairness import gap, mean, mean_ci, std, worst
from fairflare.tasks.base import Task
from fairflare.tasks.kind import Answers
from fairflare.tasks.kinds import trees

Json = dict[str, Any]
FEDERATED, ALONE = "XGBoost, FLARE's bagging", "gradient boosting, own rows"


def check_trees(config: RunConfig) -> None:
    """Raise UserError, before anything runs, where no federated trees can be grown."""
    task = _task(config)
    fits = task.table_inputs() is not None and task.kind.has_classes and len(task.classes) == 2
    expected("--trees", fits, "a table with two classes", f"task {task.name}")
    if find_spec("xgboost") is None:
        raise UserError("--trees: expected XGBoost, which is not installed: pip install 'fairflare[trees]'")


def with_trees(comparison: Json, runs: Sequence[tuple[RunConfig, Path, Mapping[str, Any]]], rounds: int) -> Json:
    """The comparison with ``trees``: both kinds of trees on each seed's data, scored as its methods are.

    Args:
        comparison: see ``report.compare``.
        runs: as ``comparison.look_again`` takes them.
        rounds: of the federation, >= 1; each adds a tree per site. Trees of a site alone have scikit-learn's defaults.

    Returns:
        Beside what the comparison holds, "trees": {"rounds", "arms": label -> mean, worst, std, gap (each with its
        interval over seeds), runs: seed and sites (site -> value of the headline metric on its test split)}.
    """
    of_seed = {config.seed: config for config, *_ in reversed(runs)}
    arms: dict[str, list[Json]] = {FEDERATED: [], ALONE: []}
    for seed in comparison["seeds"]:
        for label, sites in scores(of_seed[seed], rounds).items():
            values = {"mean": mean(sites), "std": std(sites), "gap": gap(sites)}
            values["worst"] = worst(sites, comparison["higher_is_better"])[1]
            arms[label].append({"seed": seed, "sites": sites, **values})
    names = ("mean", "worst", "std", "gap")
    found = {
        label: {**{name: mean_ci(run[name] for run in made) for name in names}, "runs": made}
        for label, made in arms.items()
    }
    return {**comparison, "trees": {"rounds": rounds, "arms": found}}


def scores(config: RunConfig, rounds: int) -> dict[str, dict[str, float | None]]:
    """Label -> site -> the headline metric on its test split; None without rows to train on or to test."""
    from fairflare.flare.trees import grown

    task = _task(config)
    data = {name: task.site_data(site) for name, site in site_of_client(config, task).items()}
    taking = {name: own for name, own in data.items() if name != config.leave_out}
    rows = {name: found for name, own in taking.items() if (found := trees.rows(own)) is not None}
    booster = grown(rows, rounds)
    alone = {name: task.kind.trees(own, task.classes) for name, own in data.items()}

    def federated(inputs: Tensor) -> Tensor:
        margins = torch.from_numpy(booster.inplace_predict(inputs.numpy(), predict_type="margin")).float()
        return torch.stack([torch.zeros_like(margins), margins], dim=1)

    return {
        FEDERATED: {name: _score(task, federated, own) for name, own in data.items()},
        ALONE: {name: _score(task, alone[name], own) for name, own in data.items()},
    }


def _score(task: Task, answers: Answers | None, data: TensorData) -> float | None:
    batches = list(data.fixed("test", trees.BATCH))
    if not batches or answers is None:
        return None
    inputs, targets = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("inputs", "targets"))
    return task.evaluate(*task.condense(answers(inputs), targets)).get(task.headline)


def _task(config: RunConfig) -> Task:
    return tasks.load(config.task, config.preset, **config.options)
