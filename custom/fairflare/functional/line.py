# SPDX-License-Identifier: Apache-2.0
"""A line on the logit, sigma(a + b z), fitted by maximum likelihood.

Everything is fitted from sums over cases, so that sums over sites serve as well as sums within one: of the five numbers
of a Newton step, of counts per bin of the logit, or of losses on a grid of temperatures. T = 1 / b. Everywhere logits
(N,) are z, finite, and labels (N,) y: in {0, 1}, or in [0, 1] as shares of counts (N,), the cases that each stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
STEPS = 100
HALVINGS = 40
CLOSE = 1e-12
STEEPEST = 50.0
"""Largest |a| and |b|: further out every probability is 0 or 1 in double precision."""
LEAST_FOR_SLOPE, LEAST_PER_CLASS = 50, 10
"""Cases, and cases of each class, below which a site's slope is that of all sites."""


class Sums(NamedTuple):
    """Sums over cases at (a, b) with p = sigma(a + b z) and v = p (1 - p)."""

    n: float
    positives: float
    p: float
    residual_z: float
    """Of z (y - p)."""
    v: float
    vz: float
    vzz: float


@dataclass(frozen=True)
class Line:
    """sigma(a + b z)."""

    intercept: float = 0.0
    slope: float = 1.0


UNCHANGED = Line()


def sums(logits: Array, labels: Array, line: Line = UNCHANGED, counts: Array | None = None) -> Sums:
    """The sums of a Newton step at ``line``."""
    from scipy.special import expit  # here and below: takes a while to import, and most runs have no such step

    many = np.ones_like(logits) if counts is None else counts
    p = expit(line.intercept + line.slope * logits)
    v = many * p * (1 - p)
    residual = many * (labels - p)
    found = (many, many * labels, many * p, logits * residual, v, v * logits, v * logits * logits)
    return Sums(*(float(part.sum()) for part in found))


def fitted(
    logits: Array,
    labels: Array,
    *,
    counts: Array | None = None,
    intercept: bool = True,
    slope: bool = False,
    start: Line = UNCHANGED,
    penalty: tuple[float, float] = (0.0, 0.0),
    towards: Line = UNCHANGED,
) -> Line:
    """The line of the largest likelihood, less penalty_a (a - a_0)^2 / 2 + penalty_b (b - b_0)^2 / 2.

    What is not fitted stays as in ``start``. Newton's method with steps halved until the objective does not grow.
    Classes that a line separates perfectly, one class alone included, have no finite maximum without a penalty: then
    the coefficients stop at ``STEEPEST``.

    Args:
        intercept: whether a is fitted.
        slope: whether b is.
        start: where the search begins.
        penalty: (penalty_a, penalty_b), >= 0.
        towards: (a_0, b_0).
    """
    free = np.array([intercept, slope])
    weights, centre = np.array(penalty), np.array([towards.intercept, towards.slope])
    many = np.ones_like(logits) if counts is None else counts

    def objective(at: Array) -> float:
        eta = at[0] + at[1] * logits
        losses = np.logaddexp(0.0, eta) - labels * eta
        return float((many * losses).sum() + (weights * (at - centre) ** 2).sum() / 2)

    at = np.array([start.intercept, start.slope])
    for _ in range(STEPS):
        step = _newton_step(sums(logits, labels, Line(*at), many), at, weights, centre, free)
        moved = descended(objective, at, step)
        if float(np.abs(moved - at).max()) <= CLOSE:
            return Line(float(moved[0]), float(moved[1]))
        at = moved
    return Line(float(at[0]), float(at[1]))


def _newton_step(found: Sums, at: Array, weights: Array, centre: Array, free: npt.NDArray[np.bool_]) -> Array:
    gradient = np.array([found.positives - found.p, found.residual_z]) - weights * (at - centre)
    hessian = np.array([[found.v, found.vz], [found.vz, found.vzz]]) + np.diag(weights)
    step = np.zeros(2)
    if free.any():
        chosen = np.ix_(free, free)
        step[free] = np.linalg.lstsq(hessian[chosen], gradient[free], rcond=None)[0]
    return step


def descended(objective: Callable[[Array], float], at: Array, step: Array) -> Array:
    """``at`` plus the step, halved until the objective does not grow; within ``STEEPEST``."""
    here = objective(at)
    for halving in range(HALVINGS):
        moved = np.clip(at + step / 2**halving, -STEEPEST, STEEPEST)
        if objective(moved) <= here + CLOSE * abs(here):
            return np.asarray(moved)
    return at
