# SPDX-License-Identifier: Apache-2.0
"""What the other hospitals add: a random-effects model whose between-hospital variance is integrated over its prior.

    value_k = b0 + b1 (100 / n_k - 1) + u_k + noise,   u ~ N(0, tau^2),   noise ~ N(0, V_k)

V_k is smoothed over hospitals as a function of n, as a hospital's own variance follows its own chance. The prior of tau
is DuMouchel's. The arithmetic is that of ``functional.decision``, whose sums a server can form without seeing a
hospital's value.
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


def posteriors(values: Mapping[str, Estimate], with_size: bool) -> dict[str, Normals]:
    """Hospital -> the distribution of its true value, given all hospitals' estimates; of ``MIN_HOSPITALS`` or more."""
    total = np.sum([decision.moments(max(one.variance, 1e-12), [one.n]) for one in values.values()], axis=0)
    noise = {name: Smoothed(total).at([one.n]) / one.n for name, one in values.items()}
    size = {name: decision.of_size(one.n) if with_size else 0.0 for name, one in values.items()}
    s0 = decision.scale(len(values), sum(1 / v for v in noise.values()))
    terms = {name: decision.terms(one.value, noise[name], size[name], s0) for name, one in values.items()}
    everyone = Hospitals(s0, np.sum(list(terms.values()), axis=0))
    return {
        name: everyone.without(terms[name]).given(one.value, noise[name], size[name], (one.factor - 1) * noise[name])
        for name, one in values.items()
    }


def between(values: Sequence[float], variances: Sequence[float]) -> Between:
    """Of values with known squared standard errors, at ``MIN_HOSPITALS`` or more hospitals.

    Every hospital counts once in the average. The prediction interval is widened as few hospitals are known: Student's
    quantile with max(S - 2, 3) degrees of freedom (Higgins et al., JRSS A 172, 2009).
    """
    e, v = np.asarray(values), np.maximum(variances, 1e-12)
    s0 = decision.scale(len(e), float((1 / v).sum()))
    total = np.sum([decision.terms(*pair, 0.0, s0) for pair in zip(e, v, strict=True)], axis=0)
    everyone = Hospitals(s0, total)
    average = decision.average((len(e), float(e.sum()), float((e**2).sum()), float(v.sum())))
    prediction = everyone.new(0.0).interval(stretch=decision.stretch(len(e)))
    return Between(average, everyone.spread, prediction)
