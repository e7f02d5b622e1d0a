# SPDX-License-Identifier: Apache-2.0
"""Two models on one site's test patients: both values of each metric, and the interval of their difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fairflare.core.seeds import derive
from fairflare.core.types import MOST_EXAMPLES, MOST_STEPS, Number
from fairflare.engine.evaluation import Predictions
from fairflare.engine.hashes import model_hash
from fairflare.functional.intervals import Array, Owners, percentile_interval, resamples
from fairflare.privacy.counts import released

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

DRAWS = 2000
"""Resamples of the patients."""
LEVEL = 0.95
FEDERATED, SOLO = "federated", "solo"
"""The model that the site uses after the federation, and the one that it has trained alone."""
LOW, HIGH = "low", "high"
"""The ends of the interval of federated minus solo."""
N, ROUNDS = "n", "rounds"


def reports(
    metrics: Sequence[str],
    group_metrics: Sequence[str],
    groups: Sequence[str],
    range_of: Callable[[str], tuple[float, float]] = lambda metric: (0.0, 1.0),
) -> tuple[Number, ...]:
    """The numbers that a site may send."""
    found = [
        Number(ROUNDS, 0.0, float(MOST_STEPS), "rounds that the site has trained alone so far"),
        Number(N, 0.0, float(MOST_EXAMPLES), "cases of the test split"),
        *(one for metric in metrics for one in _numbers(metric, "", *range_of(metric))),
    ]
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
    """The predictions of both models on the same cases, in the same order; ``patients``: as of ``evaluation.Cases``."""

    federated: Predictions
    solo: Predictions
    patients: Owners | None = None

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
    pair: Pair, scoring: Task, groups: Sequence[str], min_count: int | None, seed: int, site: str
) -> dict[str, float]:
    """What may leave of a pair, see ``reports``: nothing of fewer than ``min_count`` patients, without it no group."""
    of = pair.n if pair.patients is None else len(np.unique(pair.patients))
    if not pair.n or of < (min_count or 1):
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
    for counts in resamples(pair.n, DRAWS, pair.seed(seed, site), pair.patients):
        ours, theirs = (_values(scoring, of, counts, chosen) for _, of in _both(pair))
        for key in ours:
            drawn.setdefault(key, []).append(ours[key] - theirs[key])
    for where, metrics in names.items():
        for metric in metrics:
            if where and not scoring.enough(metric, pair.federated[1][torch.from_numpy(chosen[where])], min_count or 1):
                continue
            found |= _told(metric, where, points, drawn)
    return found


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
    scoring: Task, found: Predictions, counts: Array, chosen: dict[str, npt.NDArray[np.bool_]]
) -> dict[str, Array]:
    """ "metric" or "metric/group" -> its value for each resample."""
    values: dict[str, Array] = {}
    for where, rows in chosen.items():
        names = scoring.group_measures if where else scoring.measures
        of_group = scoring.measured(*found[:2], counts * rows if where else counts, names)
        values |= {f"{metric}{where}": value for metric, value in of_group.items()}
    return values


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
