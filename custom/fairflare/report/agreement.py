# SPDX-License-Identifier: Apache-2.0
"""How well two distributions over sites agree: cosine and correlation."""

from __future__ import annotations

import math
from collections.abc import Mapping

Shares = Mapping[str, float]


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
    return {"pearson_x100": pearson, "euclid": math.dist(x, y) if x else None, "cosine": _cosine(x, y)}


def _vectors(a: Shares, b: Shares) -> tuple[list[float], list[float]]:
    if set(a) != set(b):
        raise ValueError(f"expected shares of the same sites, got {sorted(a)} and {sorted(b)}")
    return [a[site] for site in sorted(a)], [b[site] for site in sorted(a)]


def _centred(x: list[float]) -> list[float]:
    """``x`` minus its mean, exactly zero where all entries are equal."""
    if len(set(x)) < 2:
        return [0.0] * len(x)
    mean = math.fsum(x) / len(x)
    return [value - mean for value in x]


def _cosine(x: list[float], y: list[float]) -> float | None:
    lengths = math.hypot(*x), math.hypot(*y)
    if not min(lengths) > 0:
        return None
    product = math.fsum(p / lengths[0] * (q / lengths[1]) for p, q in zip(x, y, strict=True))
    return min(max(product, -1.0), 1.0)
