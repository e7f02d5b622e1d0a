# SPDX-License-Identifier: Apache-2.0
"""The bootstrap over patients (Efron, Annals of Statistics 7, 1979): resamples as counts, and metrics under them.

Everywhere counts (B, N) say how often each of B resamples holds each case. Scores (N,) are finite, and larger for what
is thought to be positive.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
AT_ONCE = 2_000_000
"""Counts that are in memory at once."""
FEWEST = 0.5
"""The share of the resamples in which a statistic must be defined; below it there is no interval."""


def resamples(n: int, draws: int, seed: int) -> Iterator[Array]:
    """float64 (B, n) counts whose rows add up to ``n``, ``draws`` rows in all: how often a resample holds each case.

    Args:
        n: cases, at least 1.
        draws: resamples, at least 1.
    """
    rng = np.random.default_rng(seed)
    step = max(1, AT_ONCE // n)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        drawn = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def percentile_interval(values: Array, level: float) -> tuple[float, float] | None:
    """The interval between the percentiles of a statistic's resampled values (draws,); nan where it is not defined.

    None where fewer than half of the values are defined. ``level``: in (0, 1), e.g. 0.95.
    """
    known = values[~np.isnan(values)]
    if not len(known) or len(known) < FEWEST * len(values):
        return None
    low, high = np.quantile(known, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def weighted_mean(values: Array, counts: Array) -> Array:
    """(B,) mean of ``values`` (N,) under ``counts`` (B, N); nan where no case is counted."""
    return _divided(counts @ values, counts.sum(axis=1))


def weighted_recall(right: Array, classes: npt.NDArray[np.int64], counts: Array) -> Array:
    """(B,) mean over a resample's true ``classes`` (N,) of the share of their cases that are ``right`` (N,), 0 or 1."""
    recalls = np.stack([weighted_mean(right[classes == k], counts[:, classes == k]) for k in np.unique(classes)])
    present = ~np.isnan(recalls)
    return _divided(np.where(present, recalls, 0.0).sum(axis=0), present.sum(axis=0).astype(np.float64))


def weighted_auc(scores: Array, positive: npt.NDArray[np.bool_], counts: Array) -> Array:
    """(B,) area under the ROC curve, ties counted half; nan where a resample lacks one of the two kinds."""
    order = np.argsort(scores, kind="stable")
    first = np.flatnonzero(np.diff(scores[order], prepend=-np.inf) > 0)
    above, below = (np.add.reduceat(counts[:, order] * kind[order], first, axis=1) for kind in (positive, ~positive))
    wins = (above * (np.cumsum(below, axis=1) - below / 2)).sum(axis=1)
    return _divided(wins, above.sum(axis=1) * below.sum(axis=1))


def weighted_average_precision(scores: Array, positive: npt.NDArray[np.bool_], counts: Array) -> Array:
    """(B,) the precision at each score, weighted by the recall it adds, not interpolated; nan without a positive."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.diff(scores[order], append=-np.inf))  # of those with the same score
    found, flagged = (np.cumsum(n, axis=1)[:, last] for n in (counts[:, order] * positive[order], counts[:, order]))
    precision = np.divide(found, flagged, out=np.zeros_like(found), where=flagged > 0)
    return _divided((precision * np.diff(found, axis=1, prepend=0.0)).sum(axis=1), found[:, -1])


def _divided(part: Array, whole: Array) -> Array:
    """Part by whole, nan where the whole is 0."""
    found: Array = np.full(len(whole), np.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return found
