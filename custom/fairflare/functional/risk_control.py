# SPDX-License-Identifier: Apache-2.0
"""Conformal risk control: the least threshold whose risk, a mean of bounded losses, stays below a level.

A loss lies in [0, B] and does not grow with the threshold lambda, as the share of a lesion that is missed, or that the
true class is not in the set. Curves are risks at the points of a grid that increases. Angelopoulos et al., ICLR 2024
(https://arxiv.org/abs/2208.02814); shrinkage of a site's curve towards that of all: https://arxiv.org/abs/2606.20115.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
ROUNDING = 1e-12


def monotone(curve: Array) -> Array:
    """The least curve above ``curve`` that does not grow: what a threshold leaves must hold for all larger ones."""
    return np.asarray(np.maximum.accumulate(curve[..., ::-1], axis=-1)[..., ::-1])


def pooled(curves: Array, cases: Array) -> Array:
    """(G,) risk over all cases: sum_k n_k R_k / sum_k n_k; zeros where there is no case.

    Args:
        curves: (K, G).
        cases: (K,) n_k >= 0.
    """
    total = float(cases.sum())
    return np.asarray(cases @ curves / total if total else np.zeros(curves.shape[-1]))


def fewest(alpha: float, bound: float = 1.0) -> int:
    """The fewest cases with which a level can be held at all: n + 1 >= B / alpha."""
    return max(math.ceil(bound / alpha - 1e-9) - 1, 1)


def threshold(
    curve: Array, cases: float, grid: Array, alpha: float, bound: float = 1.0, *, scaled: bool = False
) -> float | None:
    """The least grid point lambda with R(lambda) + B / (n + 1) <= alpha; None where there is none.

    Args:
        curve: (G,) R.
        cases: n >= 0.
        grid: (G,) increasing.
        alpha: the level, in (0, B).
        bound: B.
        scaled: with n / (n + 1) R, as Angelopoulos et al. have it: never larger than without, and as valid.
    """
    factor = cases / (cases + 1) if scaled else 1.0
    return _first(factor * monotone(curve) + bound / (cases + 1), grid, alpha)


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
        own: (G,) R_k.
        cases: n_k >= 0.
        others: (G,) R, over all sites, or over all others.
        all_cases: N behind ``others``.
        grid: (G,) increasing.
        alpha: the level.
        bound: B.
        prior: n_0 >= 0.
        corrected: False leaves the correction out: without any claim, for comparison.
    """
    share = 1.0 if prior == 0 else cases / (cases + prior)
    correction = share * bound / (cases + 1) + (1 - share) * bound / (all_cases + 1)
    mixed = share * monotone(own) + (1 - share) * monotone(others)
    return _first(mixed + (correction if corrected else 0.0), grid, alpha)


def _first(risk: Array, grid: Array, alpha: float) -> float | None:
    good = np.flatnonzero(risk <= alpha + ROUNDING)
    return float(grid[good[0]]) if len(good) else None
