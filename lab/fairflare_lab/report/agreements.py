# SPDX-License-Identifier: Apache-2.0
"""Agreement of shares, by ranks as well, and shares made of drops in score."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from fairflare.report.values import number

Shares = Mapping[str, float]
Array = npt.NDArray[np.float64]


def agreement(a: Shares, b: Shares) -> dict[str, float | None]:
    """How well two share vectors over the same sites agree.

    Returns:
        pearson_x100: 100 times Pearson's correlation, in [-100, 100]; None where either is constant; euclid: their
        distance, >= 0 and at most sqrt(2) between shares; None without sites; cosine: of the angle between them, in
        [0, 1] for shares; None where either is zero.
    """
    x, y = _vectors(a, b)
    correlation = _cosine(_centred(x), _centred(y))
    pearson = None if correlation is None else 100 * correlation
    return {"pearson_x100": pearson, "euclid": math.dist(x, y) if len(x) else None, "cosine": _cosine(x, y)}


def agreements(a: Shares, b: Shares) -> dict[str, float | None]:
    """``agreement`` and "spearman", the correlation of the ranks (ties shared), in [-1, 1]."""
    from scipy.stats import rankdata

    return {**agreement(a, b), "spearman": _cosine(*(_centred(rankdata(one)) for one in _vectors(a, b)))}


def _vectors(a: Shares, b: Shares) -> tuple[Array, Array]:
    if set(a) != set(b):
        raise ValueError(f"expected shares of the same sites, got {sorted(a)} and {sorted(b)}")
    return np.array([a[site] for site in sorted(a)]), np.array([b[site] for site in sorted(a)])


def _centred(x: Array) -> Array:
    """``x`` minus its mean, exactly zero where all entries are equal."""
    return x - x.mean() if len(np.unique(x)) > 1 else np.zeros(len(x))


def _cosine(x: Array, y: Array) -> float | None:
    lengths = math.hypot(*x), math.hypot(*y)
    return float(np.clip((x / lengths[0]) @ (y / lengths[1]), -1, 1)) if min(lengths) > 0 else None


def clipped_shares(values: Shares) -> dict[str, float]:
    """Values over their sum with negative ones as 0; uniform when none is positive; ValueError of one not finite.

    Of the drops of the score when a model is trained without each site these are FedCE's leave-one-out shares; where a
    task has several scores, a site's drop is their sum.
    """
    for site, value in values.items():
        if number(value) is None:
            raise ValueError(f"{site}: expected a finite number, got {value!r}")
    kept = {site: max(float(value), 0.0) for site, value in values.items()}
    total = math.fsum(kept.values())
    return {site: value / total if total > 0 else 1 / len(kept) for site, value in kept.items()}
