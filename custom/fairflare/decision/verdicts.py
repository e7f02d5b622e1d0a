# SPDX-License-Identifier: Apache-2.0
"""Which answer a hospital gets: rules on posterior probabilities, and detectors that withhold it.

Each verdict needs all of its conditions at once (intersection-union), so that nothing is corrected within a hospital.
Over hospitals the sum of the probabilities that a verdict is false is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from fairflare.decision.estimands import Estimate
from fairflare.decision.regression import Array, Hospital

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
    reason: Reason | None = None


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


REASONS = {
    "few_patients": f"{TOO_FEW}: {{value:.0f}} patients, {MIN_PATIENTS} needed",
    "few_outcomes": f"{TOO_FEW}: {{value:.0f}} patients with one of the outcomes, {MIN_EACH_OUTCOME} needed",
    "few_events": f"few events: {{value:.0f}} patients with the rarer outcome, {MIN_EVENTS} needed",
    "never_measured": "{column} has one value at this hospital and varies at the others: was it measured?",
    "reversed": "the others' model is reversed here (calibration slope {value:.2f}): is the outcome coded alike?",
    "one_patient": "one patient makes {value:.0%} of the variance",
    "net_benefit": "net benefit at the threshold may be worse",
}
"""Code of a reason -> its words; ``value`` is a number, or a column's place."""


class Reason(NamedTuple):
    """Why a verdict is withheld: a code of ``REASONS``, and its number."""

    code: str
    value: float = 0.0

    def words(self, columns: Mapping[int, str] | None = None) -> str:
        """``columns``: as of ``never_measured``."""
        place = int(self.value) if self.code == "never_measured" else -1
        name = (columns or {}).get(place, f"feature {place}")
        return REASONS[self.code].format(value=self.value, column=name)


def too_few(hospital: Hospital) -> Reason | None:
    """Why nothing is estimated at a hospital, which still takes part; None where it is."""
    if hospital.n < MIN_PATIENTS:
        return Reason("few_patients", hospital.n)
    fewest = min(hospital.patients_with(0), hospital.patients_with(1))
    return Reason("few_outcomes", fewest) if fewest < MIN_EACH_OUTCOME else None


def withheld(
    hospital: Hospital,
    others: Others | None,
    slope: tuple[float, float],
    estimates: Mapping[str, Estimate],
    columns: Mapping[int, str] | None = None,
) -> Reason | None:
    """Why a verdict would not be trustworthy; None where nothing speaks against it.

    Args:
        others: the features of all other hospitals; None: nothing is known of them.
        slope: calibration slope of the others' model before any update, and its squared standard error.
        columns: as of ``never_measured``.
    """
    events = min(hospital.patients_with(0), hospital.patients_with(1))
    if events < MIN_EVENTS:
        return Reason("few_events", events)
    if others is not None and (place := never_measured(hospital, others, columns)):
        return Reason("never_measured", place)
    if is_reversed(slope):
        return Reason("reversed", slope[0])
    heavy = max(estimates[name].largest_share for name in ("U", "J"))
    return Reason("one_patient", heavy) if heavy > LARGEST_SHARE else None


def is_reversed(slope: tuple[float, float]) -> bool:
    """Whether the 99 % interval of a calibration slope, given with its squared standard error, lies below 0."""
    return bool(slope[0] + 2.576 * slope[1] ** 0.5 < 0)


@dataclass(frozen=True)
class Others:
    """The features of all other hospitals: how many rows, and (4, P) sums of their first four powers."""

    rows: float
    powers: Array

    @classmethod
    def of(cls, hospitals: Sequence[Hospital]) -> Others:
        return cls(sum(len(one.y) for one in hospitals), np.sum([powers(one) for one in hospitals], axis=0))


def powers(hospital: Hospital) -> Array:
    """(4, P) sums of the powers of the features."""
    return np.stack([(hospital.x**k).sum(axis=0) for k in range(1, 5)])


def never_measured(hospital: Hospital, others: Others, columns: Mapping[int, str] | None = None) -> int:
    """The place of the first measurement that is constant here and, by its values elsewhere, not by chance; 0: none.

    Of values x elsewhere at most 1 - E[(x - v)^2]^2 / E[(x - v)^4] are v (Paley and Zygmund, Mathematical Proceedings
    of the Cambridge Philosophical Society 28, 1932). ``columns``: place in the features -> name, of measurements and
    not of categories; None: all but the constant.
    """
    first, second, third, fourth = others.powers / max(others.rows, 1)
    for place in range(1, hospital.x.shape[1]) if columns is None else columns:
        if np.ptp(hospital.x[:, place]) > 1e-9:
            continue
        v, m = hospital.x[0, place], (first[place], second[place], third[place], fourth[place])
        squares = m[1] - 2 * v * m[0] + v**2
        quarts = m[3] - 4 * v * m[2] + 6 * v**2 * m[1] - 4 * v**3 * m[0] + v**4
        if squares > 1e-9 and max(1 - squares**2 / quarts, 0.0) ** hospital.n < CONSTANT_BY_CHANCE:
            return place
    return 0
