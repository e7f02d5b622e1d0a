# SPDX-License-Identifier: Apache-2.0
"""The benefit of joining for each site: the federation's model against one that the site has trained alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fairflare.aggregators.base import add_weighted, without_negative_variances
from fairflare.core.schema import Answer, Instruction
from fairflare.core.seeds import derive
from fairflare.core.types import MOST_EXAMPLES, MOST_STEPS, Number, Reply, Round, StateDict
from fairflare.engine.evaluation import Predictions, Scoring
from fairflare.engine.files import is_there, read_tensors, refuse_earlier
from fairflare.engine.hashes import model_hash
from fairflare.engine.memory import SiteMemory, alone_file, alone_work_file
from fairflare.engine.state import save_tensors
from fairflare.functional.intervals import Array, percentile_interval, resamples
from fairflare.privacy.counts import released
from fairflare.privacy.egress import all_finite
from fairflare.trainers.base import Trainer

SHARE = 0.5
"""Of the time that a site has for one task."""
KEPT_AFTER = 60.0
"""Seconds of training after which a site writes down how far it is: a kill or a withdrawn task costs no more."""


@dataclass
class Alone:
    """The site's own model, and how far it is trained; it survives a kill where there is a file.

    Attributes:
        path: of the site's memory, beside which its files lie; None: nothing is kept.
        seconds: how long one call of ``advance`` may take, at least one round's time; a later call goes on.
    """

    trainer: Trainer
    rounds: int
    path: Path | None = None
    seconds: float = 1800.0
    memory: SiteMemory = field(default_factory=SiteMemory, init=False)
    model: StateDict = field(default_factory=dict, init=False)
    done: int = field(default=0, init=False)

    def advance(self, first: StateDict, train: Callable[[Instruction], Answer]) -> int:
        """Train on from where the site stands, and return the number of rounds that it has done."""
        began = kept = time.monotonic()
        self._begin(first)
        before = self.done
        while self.done < self.rounds:
            self._round(train)
            now = time.monotonic()
            if now - began + (now - began) / (self.done - before) > self.seconds:
                break
            if now - kept > KEPT_AFTER:
                self._save()
                kept = now
        self._save()
        return self.done

    def _begin(self, first: StateDict) -> None:
        if self.model:
            return
        self.model = {key: value.detach().clone() for key, value in first.items()}
        if self.path is None:
            return
        refuse_earlier(alone_work_file(self.path))
        if not is_there(alone_work_file(self.path)):
            return
        kept = _checked(read_tensors(alone_work_file(self.path)), first, self.rounds)
        self.done, self.model = kept["done"], kept["model"]
        self.memory.keep(max(self.done, 1), kept["memory"])

    def _round(self, train: Callable[[Instruction], Answer]) -> None:
        """One round; what is not finite is not taken over, as no server would."""
        number = self.done + 1
        answer = train(Instruction("train", Round(number, self.rounds), self.model))
        if answer.error:
            raise RuntimeError("a round of training alone failed")
        update = answer.update
        if all(all_finite(value) for value in update.values()):
            reply = Reply("", update, answer.n_examples)
            model = without_negative_variances(add_weighted(self.model, [reply], {"": 1.0}))
            self.model = model if all(all_finite(value) for value in model.values()) else self.model
        self.done = number

    def _save(self) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.done == self.rounds:
            save_tensors(alone_file(self.path), self.model)
        content = {"done": self.done, "model": self.model, "memory": self.memory.before(self.done + 1)}
        save_tensors(alone_work_file(self.path), content)


def _checked(content: Any, first: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """What the file holds; raises ValueError for anything that this class does not write."""
    found = content if isinstance(content, dict) else {}
    model, done = found.get("model"), found.get("done")
    proper = isinstance(found.get("memory"), dict) and type(done) is int and 0 <= done <= rounds
    shapes = {key: value.shape for key, value in model.items()} if isinstance(model, dict) else {}
    if not proper or shapes != {key: value.shape for key, value in first.items()}:
        raise ValueError("expected a model that is being trained alone")
    return found


DRAWS = 2000
"""Resamples of the patients."""
LEVEL = 0.95
FEDERATED, SOLO = "federated", "solo"
"""The model that the site uses after the federation, and the one that it has trained alone."""
LOW, HIGH = "low", "high"
"""The ends of the interval of federated minus solo."""
N, ROUNDS = "n", "rounds"
TREES = {SOLO: "trees", LOW: "trees_low", HIGH: "trees_high"}
"""What the numbers of a pair are called whose second model is gradient boosting at the site alone."""


def reports(
    metrics: Sequence[str],
    group_metrics: Sequence[str],
    groups: Sequence[str],
    range_of: Callable[[str], tuple[float, float]] = lambda metric: (0.0, 1.0),
    *,
    trees: bool = False,
) -> tuple[Number, ...]:
    """The numbers that a site may send; with ``trees`` those of gradient boosting too."""
    found = [
        Number(ROUNDS, 0.0, float(MOST_STEPS), "rounds that the site has trained alone so far"),
        Number(N, 0.0, float(MOST_EXAMPLES), "cases of the test split"),
        *(one for metric in metrics for one in _numbers(metric, "", *range_of(metric))),
    ]
    for one in list(found) if trees else ():
        kind, _, metric = one.name.partition(".")
        if kind in TREES:
            text = one.meaning.replace("the model that it has trained alone", "gradient boosting there alone")
            found.append(Number(f"{TREES[kind]}.{metric}", one.low, one.high, text))
    for group in groups:
        found.append(Number(f"{N}/{group}", 1.0, float(MOST_EXAMPLES), "test cases of the group"))
        found += [one for metric in group_metrics for one in _numbers(metric, f"/{group}", *range_of(metric))]
    return tuple(found)


def _numbers(metric: str, where: str, least: float, most: float) -> list[Number]:
    of = ", in the group" if where else ""
    meanings = {
        FEDERATED: (least, most, f"{metric} of the model that the site uses{of}"),
        SOLO: (least, most, f"{metric} of the model that it has trained alone{of}"),
        LOW: (least - most, most - least, f"lower end of the interval of the difference in {metric}{of}"),
        HIGH: (least - most, most - least, f"upper end of the same{of}"),
    }
    return [Number(f"{kind}.{metric}{where}", *about) for kind, about in meanings.items()]


@dataclass(frozen=True)
class Pair:
    """The predictions of both models on the same cases, in the same order."""

    federated: Predictions
    solo: Predictions

    @property
    def n(self) -> int:
        return len(self.federated[1])

    @property
    def finite(self) -> bool:
        """Whether all outputs are; of a model that has diverged nothing can be said."""
        return all(bool(torch.isfinite(found[0]).all()) for found in (self.federated, self.solo))

    def seed(self, seed: int, site: str) -> int:
        """Of the resamples: the same when the question is repeated, and unknown to whoever lacks the predictions.

        A server that knew the resamples could solve the ends of the intervals for single cases.
        """
        outputs = {kind: found[0] for kind, found in ((FEDERATED, self.federated), (SOLO, self.solo))}
        return derive(seed, "patients", site, model_hash(outputs))


def measured(
    pair: Pair, scoring: Scoring, groups: Sequence[str], min_count: int | None, seed: int, site: str
) -> dict[str, float]:
    """What may leave of a pair: see ``reports``.

    Args:
        min_count: the fewest cases of a group, or of the split, whose numbers leave; None: no group's do.
    """
    if not pair.n or pair.n < (min_count or 1):
        return {}
    found = {N: float(pair.n)}
    if not pair.finite:
        return found
    chosen = {"": np.ones(pair.n, dtype=bool)} | _groups(pair, groups, min_count)
    found |= {f"{N}{where}": float(rows.sum()) for where, rows in chosen.items()}
    names = {where: scoring.group_measures if where else scoring.measures for where in chosen}
    once = np.ones((1, pair.n))
    points = {kind: _values(scoring, of, once, chosen) for kind, of in _both(pair)}
    drawn: dict[str, list[Array]] = {}
    for counts in resamples(pair.n, DRAWS, pair.seed(seed, site)):
        ours, theirs = (_values(scoring, of, counts, chosen) for _, of in _both(pair))
        for key in ours:
            drawn.setdefault(key, []).append(ours[key] - theirs[key])
    for where, metrics in names.items():
        for metric in metrics:
            if where and not scoring.enough(metric, pair.federated[1][torch.from_numpy(chosen[where])], min_count or 1):
                continue
            found |= _told(metric, where, points, drawn)
    return found


def against_trees(
    federated: Predictions, trees: Predictions, scoring: Scoring, min_count: int | None, seed: int, site: str
) -> dict[str, float]:
    """What may leave of gradient boosting on the same cases: its metrics, and the intervals of federated less its."""
    found = measured(Pair(federated, trees), scoring, (), min_count, seed, site)
    split = ((name.partition("."), value) for name, value in found.items())
    return {f"{TREES[kind]}.{metric}": value for (kind, _, metric), value in split if kind in TREES}


def _both(pair: Pair) -> tuple[tuple[str, Predictions], tuple[str, Predictions]]:
    return (FEDERATED, pair.federated), (SOLO, pair.solo)


def _groups(pair: Pair, groups: Sequence[str], min_count: int | None) -> dict[str, npt.NDArray[np.bool_]]:
    """ "/group" -> its cases, for every group whose numbers may leave."""
    members = pair.federated[2].numpy()
    rows = [members == g for g in range(len(groups))]
    counts = [int(row.sum()) for row in rows]
    free = released(counts, min_count, unknown=pair.n - sum(counts))
    return {f"/{name}": row for name, row, n, may in zip(groups, rows, counts, free, strict=True) if may and n}


def _values(
    scoring: Scoring, found: Predictions, counts: Array, chosen: dict[str, npt.NDArray[np.bool_]]
) -> dict[str, Array]:
    """ "metric" or "metric/group" -> its value for each resample."""
    outputs, targets, _ = found
    by_group = {where: scoring.measured(outputs, targets, counts * rows) for where, rows in chosen.items()}
    return {f"{metric}{where}": value for where, found in by_group.items() for metric, value in found.items()}


def _told(
    metric: str, where: str, points: dict[str, dict[str, Array]], drawn: dict[str, list[Array]]
) -> dict[str, float]:
    """Both values, and the interval where there is one; nothing where one of the values is undefined."""
    key = f"{metric}{where}"
    values = {kind: float(points[kind][key][0]) for kind in (FEDERATED, SOLO)}
    if any(value != value for value in values.values()):
        return {}
    interval = percentile_interval(np.concatenate(drawn[key]), LEVEL)
    ends = {} if interval is None else dict(zip((LOW, HIGH), interval))
    return {f"{kind}.{key}": value for kind, value in (values | ends).items()}
