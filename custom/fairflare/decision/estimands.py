# SPDX-License-Identifier: Apache-2.0
"""What is estimated: differences in loss on a hospital's future patients, out of fold, with variances by patient.

    U   loss(own) - loss(outside model, updated)       what using brings
    J   loss(own) - loss(member model, updated)        what a member has
    D   loss(outside) - loss(member) = J - U           what its own participation adds to itself
    E   loss(own) - loss(one exchange of coefficients)
    EJ  loss(one exchange) - loss(member)              what rounds add to one exchange
    G   mean over the others of loss(without this hospital) - loss(member)   what its own participation gives them

The loss is the Brier score, of the models as deployed, that is of all patients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fairflare.decision.regression import ENSEMBLE, MEMBER, OUTSIDE, OWN, Array, Hospital
from fairflare.functional.intervals import by_patient

ESTIMANDS = {
    "U": (OWN, OUTSIDE),
    "J": (OWN, MEMBER),
    "D": (OUTSIDE, MEMBER),
    "E": (OWN, ENSEMBLE),
    "EJ": (ENSEMBLE, MEMBER),
}
"""Estimand -> the two models, the loss of the first less that of the second."""
MIN_FACTOR = 1.75
"""Of a patient's variance: with many deals or folds Nadeau and Bengio's factor alone gives intervals that hold 90 %."""
FACTOR_NET_BENEFIT = 1.25
LEARNING_EXPONENT = 0.7
"""The own model's excess error falls as patients^-this."""


@dataclass(frozen=True)
class Folds:
    """How patients are dealt: K folds, R times; ``federation``: no hospital's patients of a fold train."""

    folds: int = 5
    deals: int = 2
    federation: bool = False

    @property
    def kappa(self) -> float:
        """The part of the own model's excess error that all patients take away beside (K - 1) / K of them."""
        return float(1 - ((self.folds - 1) / self.folds) ** LEARNING_EXPONENT)

    @property
    def factor(self) -> float:
        """1 / R + K / (K - 1), at least 1.75; C. Nadeau and Y. Bengio, Machine Learning 52, 2003."""
        return max(1 / self.deals + self.folds / (self.folds - 1), MIN_FACTOR)

    def stretch(self, share: float) -> float:
        """Of D: fold models lack 1 / K of the hospital's patients, who are ``share`` of all; K / (K - 1) at share 0."""
        if self.federation:
            return 1.0
        return self.folds / (self.folds - 1) * (1 - share / self.folds)


@dataclass(frozen=True)
class Estimate:
    """A mean difference at one hospital.

    Attributes:
        value: above 0 the second model is better.
        variance: s2, of one patient's difference.
        n: patients.
        factor: f; the squared standard error of the value is f s2 / n.
        largest_share: the largest patient's part of the sum of squared deviations.
        degrees: of freedom of Student's distribution; None: n - 1.
    """

    value: float
    variance: float
    n: int
    factor: float
    largest_share: float = 0.0
    degrees: float | None = None

    @property
    def standard_error(self) -> float:
        return math.sqrt(self.factor * self.variance / self.n)

    def below(self, limit: float) -> float:
        """The probability that the truth is below ``limit``, by Student's distribution, from these patients alone."""
        from scipy.special import stdtr

        return float(stdtr(self.degrees or self.n - 1, (limit - self.value) / max(self.standard_error, 1e-12)))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        from scipy.special import stdtrit

        half = float(stdtrit(self.degrees or self.n - 1, (1 + level) / 2)) * self.standard_error
        return self.value - half, self.value + half


def loss_difference(y: Array, first: Array, second: Array, kappa: float = 0.0) -> Array:
    """(R, N) Brier loss of the risks ``first`` less that of ``second``, (R, N) out of fold.

    With ``kappa`` the first is the own model, whose excess error in the direction q falls once all patients train it:
    (2 - kappa)(y - first) q - q^2 with q = second - first.
    """
    q = second - first
    return np.asarray((2 - kappa) * (y - first) * q - q**2)


def mean_over_patients(differences: Array, hospital: Hospital, factor: float, times: float = 1.0) -> Estimate:
    """The mean of (R, N) differences times ``times``; its variance is over patients, the mean over deals.

    The variance of few patients with large deviations is itself uncertain: it has 2 n / (kurtosis - 1) degrees of
    freedom (G. Box, Annals of Mathematical Statistics 25, 1954), n of normal differences.
    """
    each, n = by_patient(times * differences, hospital.patient), hospital.n
    squares = (each - each.mean(axis=1, keepdims=True)) ** 2
    shares = squares / np.maximum(squares.sum(axis=1, keepdims=True), 1e-300)
    spread = float((shares**2).sum(axis=1).mean()) - 1 / n
    degrees = min(n - 1.0, 2 / max(spread, 1e-12))
    variance = float(each.var(axis=1, ddof=1).mean())
    return Estimate(float(each.mean()), variance, n, factor, float(shares.max(axis=1).mean()), degrees)


def estimates(hospital: Hospital, risks: Mapping[str, Array], folds: Folds, share: float) -> dict[str, Estimate]:
    """Every estimand of these models; ``risks``: model -> (R, N) out of fold; ``share``: the hospital's rows of all."""
    found = {}
    for name, (first, second) in ESTIMANDS.items():
        if not {first, second} <= risks.keys():
            continue
        against_own = first == OWN
        differences = loss_difference(hospital.y, risks[first], risks[second], folds.kappa if against_own else 0.0)
        times = 1.0 if against_own else folds.stretch(share)
        one = mean_over_patients(differences, hospital, folds.factor, times)
        found[name] = one if against_own else replace(one, degrees=None)  # D's stretch and floor are wide enough
    return found


def net_benefit_difference(hospital: Hospital, first: Array, second: Array, threshold: float) -> Estimate:
    """Net benefit of the second model less that of the first at a risk threshold, as ``loss_difference``.

    A. Vickers and E. Elkin, Medical Decision Making 26, 2006. The variance has one more patient who is classified
    otherwise: a hospital where nobody is would have an interval of no width.
    """
    odds, p = threshold / (1 - threshold), hospital.prevalence
    worth = hospital.y - (1 - hospital.y) * odds
    differences = worth * ((second >= threshold).astype(float) - (first >= threshold).astype(float))
    one = mean_over_patients(differences, hospital, FACTOR_NET_BENEFIT)
    more = (p + (1 - p) * odds**2) / hospital.n
    return Estimate(one.value, one.variance + more, one.n, one.factor)


def margin(prevalence: float) -> float:
    """A loss that does not matter: two points of scaled Brier score, .005 at one half and .0006 at 3 %."""
    return 0.02 * prevalence * (1 - prevalence)
