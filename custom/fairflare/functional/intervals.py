# SPDX-License-Identifier: Apache-2.0
"""Intervals of metrics over the cases that they are computed from, and the bootstrap over patients.

No interval depends on the order of the cases, and none has zero width. Draws come from a fixed seed and are of weights
that belong to sorted values: they say nothing of a single case. A level is in (0, 1), e.g. 0.95; N is at least 1.
``patients`` (N,) say whose each case is, None: each is another's; the unit is a patient, the quantity is of all cases.

The bootstrap (Efron, Annals of Statistics 7, 1979) has resamples as counts (B, N): how often each of B resamples holds
each case. Scores (N,) are finite, and larger for what is thought to be positive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Owners = npt.NDArray[Any]
"""Whose a row is, by numbers that are equal for one patient."""
DRAWS, DRAWS_OF_RECALLS = 4000, 40_000
MANY = 1000
"""Cases from which on the distribution of a weighted mean is taken as normal."""
SEED = 20050414


def of_share(right: float, n: float, level: float) -> tuple[float, float]:
    """Clopper and Pearson's interval (Biometrika 26, 1934) of a share, 0..n of n > 0 cases."""
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if right == 0 else float(betaincinv(right, n - right + 1, tail))
    high = 1.0 if right == n else float(betaincinv(right + 1, n - right, 1 - tail))
    return low, high


def by_patient(values: Array, patients: Owners | None) -> Array:
    """(..., n) of (..., N) values of rows: a number for each patient, whose mean is that of the rows.

    x_g = m + n / N sum over the rows of patient g of (x - m), m the mean over all rows: the variance of their mean is
    the cluster-robust one, n / (n - 1) sum_g (sum of x - m)^2 / N^2 (Liang and Zeger, Biometrika 73, 1986).

    Args:
        patients: (..., N) or (N,) whose row each is; None: each row is another patient.
    """
    if patients is None:
        return values
    if values.ndim > 1:
        pairs = zip(values, np.broadcast_to(patients, values.shape), strict=True)
        return np.stack([by_patient(row, whose) for row, whose in pairs])
    sums = np.bincount(np.unique(patients, return_inverse=True)[1], values - values.mean())
    return np.asarray(values.mean() + len(sums) / len(values) * sums)


def effective(right: Array, patients: Owners | None) -> tuple[float, float]:
    """How many of how many independent cases say as much of a share as these, 0 or 1 (N,).

    E. Korn and B. Graubard, Survey Methodology 24, 1998: p of p (1 - p) / (variance of p by patient), at most N; as
    many as there are patients where these do not differ.
    """
    each = by_patient(right, patients)
    share, n = float(right.mean()), len(each)
    spread = float(each.var(ddof=1)) if n > 1 and patients is not None else 0.0
    n_effective = min(share * (1 - share) * n / spread, len(right)) if spread > 1e-12 else n
    return share * n_effective, n_effective


def of_mean(values: Array, level: float, patients: Owners | None = None) -> tuple[float, float]:
    """Gaffke's interval of a mean of values (N,) in [0, 1], whatever their distribution: of 0 and 1 it is ``of_share``.

    The ends are quantiles of the mean under random weights (uniform on the simplex) of the values and of one more: 0
    for the lower end, 1 for the upper one; of several cases a patient, of ``by_patient`` and what is below 0 or above 1
    of it. N. Gaffke, Mathematical Methods of Statistics 14, 2005; M. Phan, P. Thomas and E. Learned-Miller, ICML 2021,
    arXiv:2106.03163, section 4, where no distribution is known that it fails for.
    """
    from scipy.special import ndtri

    tail, ordered = (1 - level) / 2, np.sort(by_patient(values, patients))
    least, most = min(0.0, ordered[0]), max(1.0, ordered[-1])
    if len(ordered) >= MANY:
        (under, below), (over, above) = (_weighted(np.append(ordered, end)) for end in (least, most))
        z = float(ndtri(1 - tail))
        return max(0.0, under - z * below), min(1.0, over + z * above)
    weights = np.random.default_rng(SEED).exponential(size=(DRAWS, len(ordered) + 1))
    weights /= weights.sum(axis=1, keepdims=True)
    found = weights[:, 1:] @ ordered
    # Weights add up to 1 but for rounding: where all values are 1, a sum may lie above it, which no filter lets pass.
    lower, upper = (
        float(np.quantile(found + weights[:, 0] * end, at)) for end, at in ((least, tail), (most, 1 - tail))
    )
    return max(0.0, lower), min(1.0, upper)


def of_positive_mean(values: Array, level: float, patients: Owners | None = None) -> tuple[float, float] | None:
    """Student's interval of a mean of finite values (N,) that are at least 0 and have no upper bound.

    None of fewer than two values, or of equal ones.
    """
    from scipy.special import stdtrit

    ordered = np.sort(by_patient(values, patients))
    n = len(ordered)
    spread = float(ordered.std(ddof=1)) if n > 1 else 0.0
    if not spread:
        return None
    mean, half = float(ordered.mean()), float(stdtrit(n - 1, (1 + level) / 2)) * spread / math.sqrt(n)
    return max(0.0, mean - half), mean + half


def of_recalls(right: Sequence[float], n: Sequence[float], level: float) -> tuple[float, float]:
    """Of the mean of several shares, e.g. balanced accuracy: quantiles of the mean of what makes each one's interval.

    Args:
        right: of each class the cases that are right.
        n: of each class its cases, more than 0.
    """
    return _of_recalls(tuple(sorted(zip(right, n, strict=True))), level)


@lru_cache(maxsize=4096)  # the runs of a comparison are many, and of the same small test splits
def _of_recalls(of_each: tuple[tuple[float, float], ...], level: float) -> tuple[float, float]:
    rng, tail = np.random.default_rng(SEED), (1 - level) / 2
    lower, upper = np.zeros(DRAWS_OF_RECALLS), np.zeros(DRAWS_OF_RECALLS)
    for hits, cases in of_each:
        lower += rng.beta(hits, cases - hits + 1, DRAWS_OF_RECALLS) if hits else 0.0
        upper += rng.beta(hits + 1, cases - hits, DRAWS_OF_RECALLS) if hits < cases else 1.0
    return float(np.quantile(lower, tail)) / len(of_each), float(np.quantile(upper, 1 - tail)) / len(of_each)


def of_auc(
    scores: Array, positive: npt.NDArray[np.bool_], level: float, patients: Owners | None = None
) -> tuple[float, float] | None:
    """Of an area under the ROC curve: DeLong's error (Biometrics 44, 1988), symmetric on the logit scale; of several
    cases a patient N. Obuchowski's (Biometrics 53, 1997).

    The quantile is Student's with one degree of freedom less than the smaller of the two kinds has patients; the scale
    keeps the ends within the range (Pepe, The Statistical Evaluation of Medical Tests, 2003, section 5.2).

    Args:
        scores: (N,) finite; larger for what is thought to be positive.
        positive: (N,).

    Returns:
        low, high; None where a kind has fewer than two patients, or the kinds are apart (an area of 0 or 1).
    """
    cases, controls = scores[positive], scores[~positive]
    m, n = len(cases), len(controls)
    owner = np.arange(m + n) if patients is None else np.unique(patients, return_inverse=True)[1]
    of_each = [len(np.unique(owner[kind])) for kind in (positive, ~positive)]
    if min(of_each) < 2:
        return None
    found = ranks(np.concatenate([cases, controls]))
    of_cases = (found[:m] - ranks(cases)) / n
    of_controls = 1 - (found[m:] - ranks(controls)) / m
    area = float(of_cases.mean())
    many = owner.max() + 1
    a = np.bincount(owner[positive], (of_cases - area) / m, many)
    b = np.bincount(owner[~positive], (of_controls - area) / n, many)
    k, j = of_each
    error = math.sqrt(max(k / (k - 1) * (a @ a) + j / (j - 1) * (b @ b) + 2 * many / (many - 1) * (a @ b), 0.0))
    return of_pairs(area, error, min(of_each), level)


def of_pairs(share: float, error: float, fewest: int, level: float) -> tuple[float, float] | None:
    """Of a share of pairs with a standard error, symmetric on the logit scale, as ``of_auc``.

    Args:
        share: in [0, 1].
        error: at least 0.
        fewest: patients of the kind that has fewer of them, at least 2; Student's quantile has one degree less.

    Returns:
        low, high; None of a share of 0 or 1, and of scores that are all alike, whose error of 0 says nothing.
    """
    from scipy.special import expit, logit, stdtrit

    if not 0 < share < 1 or error < 1e-9:
        return None
    half = float(stdtrit(fewest - 1, (1 + level) / 2)) * error / (share * (1 - share))
    return float(expit(logit(share) - half)), float(expit(logit(share) + half))


def _weighted(values: Array) -> tuple[float, float]:
    """Mean and standard deviation of the mean of ``values`` under weights that are uniform on the simplex."""
    mean = float(values.mean())
    return mean, math.sqrt(max(float((values**2).mean()) - mean**2, 0.0) / (len(values) + 1))


def ranks(values: Array) -> Array:
    """1 for the smallest value; equal ones share the mean of their ranks (scipy.stats is slow to import)."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    shared: Array = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return shared


AT_ONCE = 2_000_000
"""Counts that are in memory at once."""
FEWEST = 0.5
"""The share of the resamples in which a statistic must be defined; below it there is no interval."""


def resamples(n: int, draws: int, seed: int, patients: Owners | None = None) -> Iterator[Array]:
    """float64 (B, n) counts, ``draws`` rows in all: how often a resample of the patients holds each case.

    Args:
        n: cases, at least 1; counts add up to it where each is another patient's.
        draws: resamples, at least 1.
    """
    if patients is not None:
        owner = np.unique(patients, return_inverse=True)[1]
        yield from (counts[:, owner] for counts in resamples(owner.max() + 1, draws, seed))
        return
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
    """(B,) mean over a resample's true ``classes`` (N,) of the share of their cases that are ``right`` (N,), 0 or 1.

    nan where a resample has fewer than two classes.
    """
    recalls = np.stack([weighted_mean(right[classes == k], counts[:, classes == k]) for k in np.unique(classes)])
    present = ~np.isnan(recalls)
    n = present.sum(axis=0).astype(np.float64)
    return _divided(np.where(present, recalls, 0.0).sum(axis=0), np.where(n > 1, n, 0.0))


def weighted_auc(scores: Array, positive: npt.NDArray[np.bool_], counts: Array) -> Array:
    """(B,) area under the ROC curve, ties counted half; nan where a resample lacks one of the two kinds."""
    own, others = np.flatnonzero(positive), np.flatnonzero(~positive)
    others = others[np.argsort(scores[others], kind="stable")]
    cases, below = counts.take(own, axis=1), np.zeros((len(counts), len(others) + 1))
    np.cumsum(counts.take(others, axis=1), axis=1, out=below[:, 1:])
    # Twice the others below each case, those level with it once: whole numbers, so that no order of the sums matters.
    first, last = (below.take(np.searchsorted(scores[others], scores[own], side), axis=1) for side in ("left", "right"))
    return _divided((cases * (first + last)).sum(axis=1) / 2, cases.sum(axis=1) * below[:, -1])


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
