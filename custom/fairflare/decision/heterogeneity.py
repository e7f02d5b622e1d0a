# SPDX-License-Identifier: Apache-2.0
"""What the other hospitals add: a random-effects model whose between-hospital variance is integrated over its prior.

    value_k = b0 + b1 (100 / n_k - 1) + u_k + noise,   u ~ N(0, tau^2),   noise ~ N(0, V_k)

V_k is smoothed over hospitals as a function of n, as a hospital's own variance follows its own chance. The prior of tau
is DuMouchel's. The arithmetic is that of ``functional.decision``, whose sums ``sums`` brings together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairflare.decision.estimands import Estimate
from fairflare.functional import decision
from fairflare.functional.decision import Average, Hospitals, Normals, Smoothed

MIN_HOSPITALS = 4
"""From which on hospitals are read together."""
WITH_SIZE = frozenset({"U", "J", "E"})
"""Estimands that depend on a hospital's size, since its own model does."""


@dataclass(frozen=True)
class Between:
    """Means over hospitals: the average with its interval, tau, and the interval of a further hospital's value."""

    average: Average
    tau: float
    prediction: tuple[float, float]


def size(estimand: str, n: int) -> float:
    """The covariate of a hospital of ``n`` patients; 0 where the estimand has none."""
    return decision.of_size(n) if estimand.split()[-1] in WITH_SIZE else 0.0


def posteriors(values: Mapping[str, Estimate], estimand: str) -> dict[str, Normals]:
    """Hospital -> the distribution of its true value, given all hospitals' estimates at hand; of ``MIN_HOSPITALS``."""
    total = np.sum([decision.moments(max(one.variance, 1e-12), [one.n]) for one in values.values()], axis=0)
    noise = {name: Smoothed(total).at([one.n]) / one.n for name, one in values.items()}
    x = {name: size(estimand, one.n) for name, one in values.items()}
    s0 = decision.scale(len(values), sum(1 / v for v in noise.values()))
    terms = {name: decision.terms(one.value, noise[name], x[name], s0) for name, one in values.items()}
    everyone = Hospitals(s0, np.sum(list(terms.values()), axis=0))
    return {
        name: everyone.without(terms[name]).given(one.value, noise[name], x[name], (one.factor - 1) * noise[name])
        for name, one in values.items()
    }


def average(values: Sequence[float], variances: Sequence[float]) -> Average:
    """Of values with known squared standard errors; every hospital counts once."""
    e, v = np.asarray(values), np.maximum(variances, 1e-12)
    return decision.average((len(e), float(e.sum()), float((e**2).sum()), float(v.sum())))
