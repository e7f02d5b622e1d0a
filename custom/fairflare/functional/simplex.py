# SPDX-License-Identifier: Apache-2.0
"""Weights on the simplex: steps towards large losses, and balls around uniform weights."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Literal, TypeVar

K = TypeVar("K", bound=Hashable)
Lambda = dict[K, float]

FLOOR = 1e-12
"""Least weight: one of zero would never grow again under a multiplicative step."""
BISECTIONS = 100

Ball = Literal["chi-square", "kl"]


def ascended(weights: Mapping[K, float], values: Mapping[K, float], step: float) -> Lambda[K]:
    """lambda_k e^{step v_k} / Z over the keys of ``values``, finite; in logarithms, so that nothing overflows.

    ``weights``: lambda >= 0 of (at least) those keys; ``step``: gamma E >= 0.
    """
    return softmax({k: math.log(max(weights[k], FLOOR)) + step * v for k, v in values.items()})


def softmax(logs: Mapping[K, float]) -> Lambda[K]:
    """e^{l_k} / Z of finite logarithms, at least one."""
    top = max(logs.values())
    return _normalised({k: math.exp(value - top) for k, value in logs.items()})


def of_largest(values: Mapping[K, float]) -> Lambda[K]:
    """Equal shares of 1 for the keys of the largest value, 0 for the others."""
    top = max(values.values())
    return _normalised({k: float(value == top) for k, value in values.items()})


def in_ball(weights: Mapping[K, float], radius: float | None, ball: Ball = "chi-square") -> Lambda[K]:
    """The weights drawn towards uniform until they lie in the ball; None draws nothing, 0 gives uniform weights.

    "chi-square": D = (n sum lambda^2 - 1) / 2 <= radius, in [0, (n - 1) / 2]. The Euclidean projection is exact:
    1/n + sqrt(radius / D) (lambda - 1/n). "kl": sum lambda log(n lambda) <= radius, in [0, log n], along
    lambda^s / Z with s in [0, 1].
    """
    if radius is None:
        return dict(weights)
    if ball == "kl":
        return _in_kl_ball(weights, radius)
    n = len(weights)
    divergence = (n * math.fsum(w * w for w in weights.values()) - 1) / 2
    shrink = math.sqrt(radius / divergence) if divergence > radius else 1.0
    return {k: 1 / n + shrink * (w - 1 / n) for k, w in weights.items()}


def in_ball_reference(weights: Mapping[K, float], radius: float) -> Lambda[K]:
    """The authors' projection: rows need not sum to 1, and their bisection stops short, so that small balls leak.

    Its multiplier never exceeds max(lambda) / sqrt(2 radius + 1) - 1 / n, which bounds the shrinkage from below.
    """
    n, mean = len(weights), math.fsum(weights.values()) / len(weights)
    divergence = n / 2 * math.fsum((w - mean) ** 2 for w in weights.values())
    most = max(weights.values()) / math.sqrt(2 * radius + 1) - 1 / n
    shrink = 1.0 if most <= 0 or divergence <= radius else max(math.sqrt(radius / divergence), 1 / (1 + n * most))
    return {k: 1 / n + shrink * (w - mean) for k, w in weights.items()}


def _in_kl_ball(weights: Mapping[K, float], radius: float) -> Lambda[K]:
    def tempered(s: float) -> Lambda[K]:
        return ascended(dict.fromkeys(weights, 1.0), {k: math.log(max(w, FLOOR)) for k, w in weights.items()}, s)

    def divergence(candidate: Lambda[K]) -> float:
        return math.fsum(w * math.log(len(candidate) * w) for w in candidate.values() if w > 0)

    if divergence(dict(weights)) <= radius:
        return dict(weights)
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(tempered(middle)) <= radius else (low, middle)
    return tempered(low)


def _normalised(values: Lambda[K]) -> Lambda[K]:
    total = math.fsum(values.values())
    return {k: value / total for k, value in values.items()}
