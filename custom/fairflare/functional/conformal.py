# SPDX-License-Identifier: Apache-2.0
"""Split conformal prediction: scores, their quantiles, and the sets of classes that follow.

A score says how strange a class is for a case; a threshold is a quantile of the true classes' scores on calibration
cases, and a case's set holds every class whose score is not above it. Scores are in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Score = Literal["lac", "aps"]
ROUNDING = 1e-9
"""What a product of a count and a level may be off by: 10 * (1 - 0.1) is rank 9, however it is rounded."""


def class_scores(probabilities: Array, score: Score = "lac") -> Array:
    """(N, C) scores of every class.

    "lac" (Sadinle et al. 2019): 1 - p_c. "aps" (Romano et al. 2020, without its randomisation): the mass of the classes
    that are at least as likely as c, c itself included; of equally likely ones those with a lower index come first.

    Args:
        probabilities: (N, C), rows sum to 1.
        score: which.
    """
    if score == "lac":
        return 1.0 - probabilities
    order = np.argsort(-probabilities, axis=1, kind="stable")
    mass = np.cumsum(np.take_along_axis(probabilities, order, axis=1), axis=1)
    found = np.empty_like(mass)
    np.put_along_axis(found, order, mass, axis=1)
    return np.clip(found, 0.0, 1.0)


def true_scores(probabilities: Array, labels: npt.NDArray[np.int64], score: Score = "lac") -> Array:
    """(N,) scores of the cases' own classes."""
    return class_scores(probabilities, score)[np.arange(len(labels)), labels]


def rank_of(cases: int, alpha: float, sites: int = 1) -> int:
    """ceil((1 - alpha)(n + K)): which of the sorted scores is the threshold, from 1.

    With K = 1 it covers 1 - alpha of the cases of one exchangeable sample. With the K sites' scores pooled it covers
    1 - alpha of the mixture with weights n_k + 1 (Lu et al., ICML 2023, https://arxiv.org/abs/2305.17564), and says
    nothing of a single site.

    Args:
        cases: n >= 0.
        alpha: share of cases that may be missed, in (0, 1).
        sites: K >= 1.
    """
    return math.ceil((cases + sites) * (1.0 - alpha) - ROUNDING)


def quantile(scores: Array, rank: int) -> float:
    """The rank-th smallest score; infinite, so that every set is whole, where there are fewer."""
    if rank > len(scores):
        return math.inf
    return float(np.partition(scores, max(rank, 1) - 1)[max(rank, 1) - 1])


def counted(scores: Array, bins: int) -> Array:
    """Cases per bin of a grid on [0, 1] of equal bins (lower edge, upper edge]; a score of 0 is in the first."""
    places = np.clip(np.ceil(scores * bins - ROUNDING).astype(np.int64) - 1, 0, bins - 1)
    return np.bincount(places, minlength=bins).astype(np.float64)


def quantile_of_counts(counts: Sequence[float] | Array, rank: int) -> float:
    """Upper edge of the bin in which the rank-th smallest score lies: never below ``quantile``, by less than a bin.

    Args:
        counts: cases per bin, see ``counted``; sums over sites will do.
        rank: see ``rank_of``.
    """
    total = np.cumsum(np.asarray(counts, dtype=np.float64))
    if rank > total[-1] + ROUNDING:
        return math.inf
    return float(np.searchsorted(total, max(rank, 1) - ROUNDING) + 1) / len(total)


def sets_of(
    probabilities: Array, threshold: float, score: Score = "lac", *, never_empty: bool = True
) -> npt.NDArray[np.bool_]:
    """(N, C): which classes are in each case's set.

    Args:
        probabilities: (N, C).
        threshold: a quantile of true classes' scores.
        score: the same as there.
        never_empty: whether the likeliest class is in every set, which only adds to coverage.
    """
    found = class_scores(probabilities, score) <= threshold
    if never_empty:
        found[np.arange(len(found)), probabilities.argmax(axis=1)] = True
    return found
