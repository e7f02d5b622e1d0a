# SPDX-License-Identifier: Apache-2.0
"""Which answer a hospital gets: rules on posterior probabilities, and detectors that withhold it.

Each verdict needs all of its conditions at once (intersection-union), so that nothing is corrected within a hospital.
Over hospitals the sum of the probabilities that a verdict is false is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fairflare.decision.estimands import Estimate
from fairflare.decision.regression import Array, Hospital
from fairflare.decision.validation import calibration

ALONE, USE, JOIN, USE_OR_JOIN, UNTOLD = "alone", "use", "join", "use or join", "cannot be told"
ADDS, SAME, COSTS = "joining adds", "same", "joining costs"
LEVEL, STRICT_LEVEL = 0.05, 0.025
"""The probability of error at which a verdict is given; the strict one for "use or join" and "joining costs"."""
TOO_FEW = "too few patients to tell"
MIN_PATIENTS, MIN_EACH_OUTCOME, MIN_EVENTS = 30, 5, 10
CONSTANT_BY_CHANCE = 1e-4
LARGEST_SHARE = 0.5


class Distribution(Protocol):
    """What is known of a true value: a posterior, or an ``Estimate`` from a hospital's own patients."""

    def below(self, limit: float) -> float | Array: ...


@dataclass(frozen=True)
class Verdict:
    """An answer.

    Attributes:
        answer: ``ALONE``, ``USE``, ``JOIN``, ``USE_OR_JOIN`` or ``UNTOLD``.
        participation: whether joining adds to using: ``ADDS``, ``SAME``, ``COSTS`` or ``UNTOLD``.
        p_false: the probability that the answer is false, at most the sum over its conditions; 0 where none is given.
        reason: why no answer is given, if a detector withholds it.
    """

    answer: str
    participation: str
    p_false: float = 0.0
    reason: str = ""


def verdict(u: Distribution, j: Distribution, d: Distribution, margin: float, pooled: bool) -> Verdict:
    """By the distributions of U, J and D.

    ``pooled``: whether they are posteriors over ``MIN_HOSPITALS`` or more hospitals; from own patients alone the strict
    level holds for all, and neither "use or join" nor "joining costs" is said, as both were often false.
    """
    level = LEVEL if pooled else STRICT_LEVEL
    below = {key: float(one.below(0.0)) for key, one in (("u", u), ("j", j), ("d", d))}
    d_above, d_far_below = 1 - float(d.below(margin)), float(d.below(-margin))
    rules = {  # in the order in which they are tried; of each the probabilities that must be small
        USE_OR_JOIN: (below["u"], below["j"], d_above, d_far_below),
        JOIN: (below["j"], below["d"]),
        USE: (below["u"], d_above),
        ALONE: (1 - float(u.below(margin)), 1 - float(j.below(margin))),
    }
    answer, p_false = UNTOLD, 0.0
    for name, probabilities in rules.items():
        if max(probabilities) < (STRICT_LEVEL if name == USE_OR_JOIN else level) and (pooled or name != USE_OR_JOIN):
            answer, p_false = name, min(sum(probabilities), 1.0)
            break
    if max(d_above, d_far_below) < level:
        return Verdict(answer, SAME, p_false)
    if below["d"] < level:
        return Verdict(answer, ADDS, p_false)
    costs = pooled and 1 - below["d"] < STRICT_LEVEL
    return Verdict(answer, COSTS if costs else UNTOLD, p_false)


def too_few(hospital: Hospital) -> str:
    """Why nothing is estimated at a hospital, which still takes part; "" where it is."""
    if hospital.n < MIN_PATIENTS:
        return f"{TOO_FEW}: {hospital.n} patients, {MIN_PATIENTS} needed"
    fewest = min(hospital.patients_with(0), hospital.patients_with(1))
    if fewest < MIN_EACH_OUTCOME:
        return f"{TOO_FEW}: {fewest} patients with one of the outcomes, {MIN_EACH_OUTCOME} needed"
    return ""


def withheld(
    hospital: Hospital,
    others: Sequence[Hospital],
    outside: Array,
    found: Mapping[str, Estimate],
    columns: Mapping[int, str] | None = None,
) -> str:
    """Why a verdict would not be trustworthy; "" where nothing speaks against it.

    ``outside``: (P,) the others' model before any update; ``columns``: as of ``never_measured``.
    """
    events = min(hospital.patients_with(0), hospital.patients_with(1))
    if events < MIN_EVENTS:
        return f"few events: {events} patients with the rarer outcome, {MIN_EVENTS} needed"
    if name := never_measured(hospital, others, columns):
        return f"{name} has one value at this hospital and varies at the others: was it measured?"
    if (slope := reversed_slope(hospital, outside)) < 0:
        return f"the others' model is reversed here (calibration slope {slope:.2f}): is the outcome coded alike?"
    heavy = max(found[name].largest_share for name in ("U", "J"))
    if heavy > LARGEST_SHARE:
        return f"one patient makes {heavy:.0%} of the variance"
    return ""


def reversed_slope(hospital: Hospital, outside: Array) -> float:
    """The calibration slope of the others' model (P,) where its 99 % interval lies below 0; else 0."""
    slope, variance = calibration(hospital, hospital.x @ outside).slope
    return slope if slope + 2.576 * variance**0.5 < 0 else 0.0


def never_measured(hospital: Hospital, others: Sequence[Hospital], columns: Mapping[int, str] | None = None) -> str:
    """The first measurement that is constant here and, by its values elsewhere, not by chance; "": none.

    ``columns``: place in the features -> name, of measurements and not of categories; None: all but the constant.
    """
    named = {k: f"feature {k}" for k in range(1, hospital.x.shape[1])} if columns is None else columns
    for column, name in named.items():
        if np.ptp(hospital.x[:, column]) > 1e-9:
            continue
        values, counts = np.unique(np.concatenate([one.x[:, column] for one in others]).round(6), return_counts=True)
        if len(values) > 1 and (counts.max() / counts.sum()) ** hospital.n < CONSTANT_BY_CHANCE:
            return name
    return ""
