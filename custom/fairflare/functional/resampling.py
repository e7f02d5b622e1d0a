# SPDX-License-Identifier: Apache-2.0
"""Bootstrap and jackknife over patients (Efron, Annals of Statistics 7, 1979): samples as counts, metrics of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
AT_ONCE = 2_000_000
"""Counts that are in memory at once."""
JACKKNIFE = 1000
"""Rows of a jackknife at most."""
FEWEST = 0.5
"""The share of the resamples in which a statistic must be defined; below it there is no interval."""


def resamples(n: int, draws: int, seed: int) -> Iterator[Array]:
    """float64 (B, n) counts whose rows add up to ``n``, ``draws`` rows in all: how often a resample holds each case.

    Args:
        n: cases, at least 1.
        draws: resamples, at least 1.
        seed: of the generator, >= 0.
    """
    rng = np.random.default_rng(seed)
    step = max(1, AT_ONCE // n)
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        drawn = rng.integers(0, n, (rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def percentile_interval(values: Array, level: float) -> tuple[float, float] | None:
    """The interval between the percentiles of a statistic's resampled values; nan where it is not defined.

    Args:
        values: (draws,).
        level: in (0, 1), e.g. 0.95.

    Returns:
        low, high; None where fewer than half of the values are defined.
    """
    known = values[~np.isnan(values)]
    if not len(known) or len(known) < FEWEST * len(values):
        return None
    low, high = np.quantile(known, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def left_out(n: int, most: int = JACKKNIFE) -> Iterator[Array]:
    """float64 (B, n) counts of the jackknife: in each row one case is left out, or of many cases every ``most``-th.

    Args:
        n: cases, at least 2.
        most: rows in all, at least 2; from more cases than that on rows leave several out.
    """
    groups = np.arange(n) % min(n, most)
    rows = np.arange(min(n, most))
    step = max(1, AT_ONCE // n)
    for start in range(0, len(rows), step):
        yield (groups[None, :] != rows[start : start + step, None]).astype(np.float64)


def logit_interval(value: float, values: Array, level: float) -> tuple[float, float] | None:
    """An interval of a metric in [0, 1] from its jackknife, symmetric on the logit scale.

    The standard error is that of the delete-a-group jackknife: se^2 = (g - 1) / g sum_j (v_j - mean v)^2. Of an AUC it
    is DeLong's (Biometrics 44, 1988) up to terms in 1 / n^2; the scale keeps the ends within the range (Pepe, The
    Statistical Evaluation of Medical Tests, 2003, section 5.2).

    Args:
        value: of all cases.
        values: (g,) of the cases without one group each.
        level: in (0, 1), e.g. 0.95.

    Returns:
        low, high; None where the metric is not defined without some group, does not vary, or is 0 or 1.
    """
    from scipy.special import expit, logit, ndtri

    groups = len(values)
    error = float(np.sqrt((groups - 1) / groups * np.sum((values - values.mean()) ** 2)))
    if not np.isfinite(error) or error == 0 or not 0 < value < 1:
        return None
    half = ndtri((1 + level) / 2) * error / (value * (1 - value))
    return float(expit(logit(value) - half)), float(expit(logit(value) + half))


def exact_interval(share: float, n: int, level: float) -> tuple[float, float]:
    """Clopper and Pearson's interval (Biometrika 26, 1934) of a share of ``n`` cases.

    Args:
        share: in [0, 1].
        n: cases, at least 1.
        level: in (0, 1), e.g. 0.95.
    """
    from scipy.special import betaincinv

    k, tail = round(share * n), (1 - level) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return low, high


def weighted_mean(values: Array, counts: Array) -> Array:
    """(B,) mean of ``values`` (N,) under ``counts`` (B, N); nan where no case is counted."""
    total = counts.sum(axis=1)
    return _divided(counts @ values, total)


def weighted_recall(right: Array, classes: npt.NDArray[np.int64], counts: Array) -> Array:
    """(B,) mean over the classes that a resample holds of the share of their cases that are right.

    Args:
        right: (N,) 1 where the predicted class is the true one, else 0.
        classes: (N,) true classes.
        counts: (B, N).
    """
    recalls = np.stack([weighted_mean(right[classes == k], counts[:, classes == k]) for k in np.unique(classes)])
    present = ~np.isnan(recalls)
    return _divided(np.where(present, recalls, 0.0).sum(axis=0), present.sum(axis=0).astype(np.float64))


def weighted_auc(scores: Array, positive: npt.NDArray[np.bool_], counts: Array) -> Array:
    """(B,) area under the ROC curve, ties counted half; nan where a resample lacks one of the two kinds.

    Args:
        scores: (N,) finite; larger for what is thought to be positive.
        positive: (N,).
        counts: (B, N).
    """
    order = np.argsort(scores, kind="stable")
    first = np.flatnonzero(np.diff(scores[order], prepend=-np.inf) > 0)
    above, below = (np.add.reduceat(counts[:, order] * kind[order], first, axis=1) for kind in (positive, ~positive))
    wins = (above * (np.cumsum(below, axis=1) - below / 2)).sum(axis=1)
    return _divided(wins, above.sum(axis=1) * below.sum(axis=1))


def _divided(part: Array, whole: Array) -> Array:
    """Part by whole, nan where the whole is 0."""
    found: Array = np.full(len(whole), np.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return found
