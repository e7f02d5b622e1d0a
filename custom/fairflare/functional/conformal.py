# SPDX-License-Identifier: Apache-2.0
"""Split conformal prediction: scores, their quantiles, and the sets of classes that follow.

A score says how strange a class is for a case; a threshold is a quantile of the true classes' scores on calibration
cases, and a case's set holds every class whose score is not above it. Scores are in [0, 1].

Conformal risk control takes the least threshold whose risk, a mean of bounded losses, stays below a level. A loss lies
in [0, B] and does not grow with the threshold lambda, as the share of a lesion that is missed, or that the true class
is not in the set. Curves are risks at the points of a grid that increases. Angelopoulos et al., ICLR 2024
(https://arxiv.org/abs/2208.02814); shrinkage of a site's curve towards that of all: https://arxiv.org/abs/2606.20115.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Score = Literal["lac", "aps"]
ROUNDING = 1e-9
"""What a product of a count and a score may be off by."""


def class_scores(probabilities: Array, score: Score = "lac") -> Array:
    """(N, C) scores of every class.

    "lac" (Sadinle et al. 2019): 1 - p_c. "aps" (Romano et al. 2020, without its randomisation): the mass of the classes
    that are at least as likely as c, c itself included; of equally likely ones those with a lower index come first.
    """
    if score == "lac":
        return 1.0 - probabilities
    order = np.argsort(-probabilities, axis=1, kind="stable")
    mass = np.cumsum(np.take_along_axis(probabilities, order, axis=1), axis=1)
    found = np.empty_like(mass)
    np.put_along_axis(found, order, mass, axis=1)
    return np.clip(found, 0.0, 1.0)


def counted(scores: Array, bins: int) -> Array:
    """Cases per bin of a grid on [0, 1] of equal bins (lower edge, upper edge]; a score of 0 is in the first."""
    places = np.clip(np.ceil(scores * bins - ROUNDING).astype(np.int64) - 1, 0, bins - 1)
    return np.bincount(places, minlength=bins).astype(np.float64)


RISK_ROUNDING = 1e-12


def monotone(curve: Array) -> Array:
    """The least curve above ``curve`` that does not grow: what a threshold leaves must hold for all larger ones."""
    return np.asarray(np.maximum.accumulate(curve[..., ::-1], axis=-1)[..., ::-1])


def fewest(alpha: float, bound: float = 1.0) -> int:
    """The fewest cases with which a level can be held at all: n + 1 >= B / alpha."""
    return max(math.ceil(bound / alpha - 1e-9) - 1, 1)


def threshold(curve: Array, cases: float, grid: Array, alpha: float, bound: float = 1.0) -> float | None:
    """The least grid point lambda with R(lambda) + B / (n + 1) <= alpha; None where there is none.

    Angelopoulos et al. have n / (n + 1) R: never larger than this, and as valid.

    Args:
        curve: (G,) R.
        cases: n >= 0.
        grid: (G,) increasing.
        alpha: the level, in (0, B).
        bound: B.
    """
    return _first(monotone(curve) + bound / (cases + 1), grid, alpha)


def shrunk_threshold(
    own: Array,
    cases: float,
    others: Array,
    all_cases: float,
    grid: Array,
    alpha: float,
    bound: float = 1.0,
    prior: float = 19.0,
    *,
    corrected: bool = True,
) -> float | None:
    """A site's threshold from its own curve and that of all: least lambda with v R_k + (1 - v) R + correction <= alpha.

    None where there is none: with fewer cases than ``fewest`` the correction alone may be above the level.
    v = n_k / (n_k + n_0); the correction is v B / (n_k + 1) + (1 - v) B / (N + 1). n_0 = 0 leaves the site's own curve,
    n_0 = infinity that of all. No theorem covers a threshold of one site; the largest of all sites' and of the pooled
    one is covered where it is used everywhere.

    Args:
        own, cases: (G,) R_k and n_k >= 0.
        others, all_cases: (G,) R, over all sites, or over all others, and N behind it.
        grid, alpha, bound: as in ``threshold``.
        prior: n_0 >= 0.
        corrected: False leaves the correction out: without any claim, for comparison.
    """
    share = 1.0 if prior == 0 else cases / (cases + prior)
    correction = share * bound / (cases + 1) + (1 - share) * bound / (all_cases + 1)
    mixed = share * monotone(own) + (1 - share) * monotone(others)
    return _first(mixed + (correction if corrected else 0.0), grid, alpha)


def _first(risk: Array, grid: Array, alpha: float) -> float | None:
    good = np.flatnonzero(risk <= alpha + RISK_ROUNDING)
    return float(grid[good[0]]) if len(good) else None
