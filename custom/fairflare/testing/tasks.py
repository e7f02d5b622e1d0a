# SPDX-License-Identifier: Apache-2.0
"""``check_task("my-task")`` and ``check_metric("my-metric")``: what a task, its kind and a metric have to hold."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import torch

from fairflare.core import metric, registry
from fairflare.core.metric import Metric
from fairflare.core.seeds import seed_everything
from fairflare.data.tensors import TensorData
from fairflare.engine.setup import tasks
from fairflare.functional.intervals import resamples
from fairflare.tasks.base import Task
from fairflare.tasks.kind import Cases, interval_of, resampled, value_of
from fairflare.tasks.kinds.amounts import Counts
from fairflare.tasks.kinds.classes import CLASSES, GRADES
from fairflare.tasks.kinds.labels import Labels
from fairflare.tasks.kinds.masks import MASKS, VOLUME_MASKS
from fairflare.tasks.kinds.survival import Hazards
from fairflare.testing.example import is_json

CASES, BATCH = 40, 8
LEVEL = 0.95
CLOSE = 1e-9


def check_task(name: str, preset: str | None = None, **options: Any) -> None:
    """Look at a task, its data, its network and its kind's objective, metrics and answer; raises AssertionError.

    ``preset``: None: the first; ``options``: of the task, e.g. fewer patients.
    """
    task = tasks.load(name, preset, **options)
    is_json(name, task)
    names, score = (*task.metrics, *metric.LOSSES), task.kind.score
    each = not score or (task.metric(score).each is not None and task.metric(score).higher_is_better)
    assert each, f"{name}: score {score}: expected a metric with each, and higher values that are better"
    assert task.headline in task.metrics, f"{name}: headline {task.headline}: expected one of {', '.join(task.metrics)}"
    assert len(set(names)) == len(names), f"{name}: metrics: expected different names, and neither of the losses"
    assert len(task.sites()) >= 1, f"{name}: expected sites"
    for site in list(task.sites())[:2]:
        _check_site(task, site)
    network, again = _network(task), _network(task)
    assert all(torch.equal(a, again[key]) for key, a in network.items()), f"{name}: one seed makes two networks"


def _network(task: Task) -> dict[str, torch.Tensor]:
    seed_everything(task.initial_seed(0))
    found: dict[str, torch.Tensor] = task.network().state_dict()
    return found


def _check_site(task: Task, site: str) -> None:
    data, where = task.site_data(site), f"{task.name}: {site}"
    once, twice = (next(iter(one.training(BATCH, 1))) for one in (data, task.site_data(site)))
    assert torch.equal(once.inputs, twice.inputs), f"{where}: its data change from call to call"
    assert len(data.class_counts) == task.kind.n_classes(task.classes), f"{where}: n_classes does not fit its kind"
    for by in ("none", task.default_grouping, *task.attributes):
        data.grouped(task.grouping(by))
    seed_everything(0)
    network, objective = task.network(), task.objective(data.class_counts, 0.0)
    outputs = network(once.inputs)
    losses = objective(outputs, once.targets, reduction="none")
    assert losses.shape == (len(once.targets),), f"{where}: objective: expected a loss for each case"
    mean = objective(outputs, once.targets)
    assert math.isclose(losses.mean().item(), mean.item(), rel_tol=1e-4), f"{where}: objective: mean and none differ"
    mean.backward()
    # A partial likelihood without an event is flat.
    flat = task.kind.has_times and not once.targets[:, 1].any()
    moves = any(p.grad is not None and bool(p.grad.abs().sum()) for p in network.parameters())
    assert moves or flat, f"{where}: no gradient"
    _check_scores(task, data, network.eval(), where)


@torch.no_grad()
def _check_scores(task: Task, data: TensorData, network: torch.nn.Module, where: str) -> None:
    parts = [task.condense(network(batch.inputs).float(), batch.targets) for batch in data.fixed("train", BATCH, CASES)]
    outputs, targets = (torch.cat(one) for one in zip(*parts))
    found = task.evaluate(outputs, targets)
    known = {*task.metrics, "loss"}
    assert set(found) <= known, f"{where}: evaluate: gives {sorted(set(found) - known)}, which metrics does not name"
    assert task.evaluate(torch.empty(0), torch.empty(0)) == {}, f"{where}: evaluate: expected nothing without cases"
    for name, value in found.items():
        low, high = task.metric(name).range
        assert low <= value <= high, f"{where}: {name}: expected {low:g} to {high:g}, got {value!r}"
    hits = task.hits(outputs, targets)
    assert len(hits) in (0, len(targets)) and hits.dtype == torch.float64, f"{where}: score: expected float64 (N,)"
    assert bool(((hits >= 0) & (hits <= 1)).all()), f"{where}: score: expected numbers from 0 to 1"
    cases = task.kind.cases(outputs, targets, task.classes)
    for name in dict.fromkeys((*task.metrics, *task.measures, *task.group_measures)):
        _check_on(task.metric(name), cases, where)
    if not task.kind.has_masks:
        header, rows = task.kind.answer(outputs, task.classes)
        fits = len(rows) == len(outputs) and all(len(row) == len(header) for row in rows)
        assert fits, f"{where}: answer: expected a row of {len(header)} values for each case"


def check_metric(name: str, cases: Cases | None = None) -> None:
    """Compute a metric of made-up cases, of resamples and in another order, and its interval; raises AssertionError.

    ``cases``: in place of made-up ones; a metric of a kind that is not the package's needs them.
    """
    registry.methods()
    one = metric.get(name)
    assert len(name) <= metric.LONGEST and name.isprintable(), f"{name}: expected at most {metric.LONGEST} characters"
    assert one.computed, f"{name}: expected value, each or weighted"
    level = one.chance(2)
    assert level is None or one.low <= level <= one.high, f"{name}: chance: expected a value within its range"
    found = _made_up(one) if cases is None else cases
    assert found is not None, f"{name}: kind {one.kind}: expected cases of it"
    _check_on(one, found, name)


def _made_up(one: Metric) -> Cases | None:
    draw = torch.Generator().manual_seed(3)
    if one.kind == CLASSES.name:
        names = ("no", "yes") if one.two_classes else ("a", "b", "c")
        logits = torch.randn(CASES, len(names), generator=draw).round(decimals=1)
        return CLASSES.cases(logits, torch.randint(len(names), (CASES,), generator=draw), names)
    if one.kind == MASKS.name:
        masks = torch.rand(CASES, 2, 8, 8, generator=draw) > 0.5
        return MASKS.cases(*MASKS.condense(torch.randn(masks.shape, generator=draw), masks), ("a", "b"))
    logits, grades = torch.randn(CASES, 3, generator=draw).round(decimals=1), torch.randint(3, (CASES,), generator=draw)
    if one.kind == GRADES.name:
        return GRADES.cases(logits, grades, ("a", "b", "c"))
    if one.kind == Counts().name:
        return Counts().cases(logits[:, :1], grades.float(), ("a",))
    if one.kind == Labels().name:
        known = torch.rand(CASES, 3, generator=draw) > 0.2
        truth = (torch.randn(CASES, 3, generator=draw) > 0).float()
        return Labels().cases(logits, truth.where(known, torch.nan), ("a", "b", "c"))
    if one.kind == Hazards().name:
        times = torch.rand(CASES, generator=draw).mul(4).round(decimals=1)
        happened = (torch.rand(CASES, generator=draw) > 0.4).float()
        return Hazards(ends=(1.0, 2.0, 3.0)).cases(logits, torch.stack((times, happened), 1), ())
    if one.kind == VOLUME_MASKS.name:
        masks = torch.rand(CASES // 4, 2, 6, 6, 6, generator=draw) > 0.5
        return VOLUME_MASKS.cases(*VOLUME_MASKS.condense(torch.randn(masks.shape, generator=draw), masks), ("a", "b"))
    return None


def _check_on(one: Metric, cases: Cases, where: str) -> None:
    value, n = value_of(one, cases), len(cases.targets)
    turned = dataclasses.replace(cases, outputs=cases.outputs.flip(0), targets=cases.targets.flip(0))
    other = value_of(one, turned)
    where = f"{where}: {one.name}" if where != one.name else where
    assert (value is None) == (other is None), f"{where}: depends on the order of the cases"
    if value is None or other is None:
        return
    assert one.low <= value <= one.high, f"{where}: expected {one.low:g} to {one.high:g}, got {value!r}"
    assert math.isclose(value, other, abs_tol=CLOSE, rel_tol=CLOSE), f"{where}: depends on the order of the cases"
    if one.each is not None:
        each = one.each(cases)
        assert each.shape == (n,) and each.dtype == np.float64, f"{where}: each: expected float64 (N,)"
    if one.resampled:
        counts = np.concatenate([np.ones((1, n)), next(resamples(n, 5, 0))])
        drawn = resampled(one, cases, counts)
        assert drawn.shape == (6,), f"{where}: weighted: expected a value for each resample"
        assert math.isclose(drawn[0], value, abs_tol=1e-6, rel_tol=1e-6), f"{where}: counts of 1 give another value"
        known = drawn[~np.isnan(drawn)]
        assert ((known >= one.low - CLOSE) & (known <= one.high + CLOSE)).all(), f"{where}: weighted: out of its range"
    ends, again = interval_of(one, cases, LEVEL), interval_of(one, turned, LEVEL)
    if ends is None or again is None:
        assert ends is again, f"{where}: interval: depends on the order of the cases"
        return
    assert one.low <= ends[0] <= value <= ends[1] <= one.high, f"{where}: interval: expected low <= value <= high"
    assert np.allclose(ends, again, atol=1e-6), f"{where}: interval: depends on the order of the cases"
