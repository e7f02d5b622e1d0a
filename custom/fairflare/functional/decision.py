# SPDX-License-Identifier: Apache-2.0
"""Whether a hospital gains by a candidate model: benefits out of fold, and a hierarchical model over hospitals.

A hospital's benefit is the loss of its own model less that of the candidate, so that positive is a gain. Risks are out
of fold: each patient's come from models that never saw this patient, in ``Design.repeats`` repetitions. All that leaves
a hospital are terms of sums over hospitals (``moments``, ``terms``); each hospital then computes its own posterior from
the totals less its own terms, so that a server that sees totals alone sees no hospital's benefit. At the end: the best
that a hospital's table gives alone, penalised regression or boosted trees, chosen by cross-validation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairflare.functional.intervals import Array as Array
from fairflare.functional.intervals import Owners as Owners
from fairflare.functional.intervals import by_patient as by_patient

LEVEL, POWER = 0.95, 0.8
POINTS = 60
"""Values of the spread between hospitals, over which the posterior is integrated."""
SLOPE_SD = 10.0
"""Prior standard deviation of the slope on size, in median standard errors: next to flat, and never singular."""
LEAST_VARIANCE = 1e-10
LEAST_DISAGREEMENT = 1e-8
SHRUNK_BY = 2.0
"""Added to the denominator of a regression's slopes when variances are smoothed."""
GAINS, LOSES, SAME, UNCLEAR = "gains", "loses", "no difference that matters", "cannot be told"
MATTERS = 0.02
"""A benefit whose interval lies within -/+ this share of the own model's loss makes no difference that matters."""


@dataclass(frozen=True)
class Design:
    """How patients are tested out of fold.

    Attributes:
        folds: F >= 2.
        repeats: R >= 1 times that the folds are dealt.
        exponent: of the learning curve, the own model's excess error falls as n^-exponent; 0: no correction, and the
            benefit is that of the models of (F - 1) / F of the patients.
    """

    folds: int = 5
    repeats: int = 3
    exponent: float = 0.7

    @property
    def kappa(self) -> float:
        """The part of the own model's excess error that all patients take away beside (F - 1) / F of them."""
        return float(1 - ((self.folds - 1) / self.folds) ** self.exponent)

    @property
    def factor(self) -> float:
        """What multiplies a patient's variance: 1 / R + F / (F - 1); Nadeau and Bengio, Machine Learning 52, 2003."""
        return 1 / self.repeats + self.folds / (self.folds - 1)


class Benefit(NamedTuple):
    """A hospital's benefit by one candidate.

    Attributes:
        n: patients.
        mean: e, over patients and repetitions.
        variance: s2 of one patient's difference, the mean over repetitions.
        disagreement: q, the mean squared difference of the two risks; needs no outcome.
    """

    n: int
    mean: float
    variance: float
    disagreement: float

    def interval(self, design: Design, level: float = LEVEL) -> tuple[float, float]:
        """e -/+ t sqrt(f s2 / n): from this hospital's patients alone."""
        from scipy.special import stdtrit

        half = float(stdtrit(self.n - 1, (1 + level) / 2)) * math.sqrt(design.factor * self.variance / self.n)
        return self.mean - half, self.mean + half


def brier_benefit(
    labels: Array, own: Array, candidate: Array, design: Design, patients: Owners | None = None
) -> Benefit:
    """Of squared errors: d = (2 - kappa) r D - D^2 with D = candidate - own and r = label - own.

    Args:
        labels: (N,) 0 or 1.
        own, candidate: (R, N) risks out of fold.
        design: without its correction d is the plain difference of squared errors.
        patients: as of ``by_patient``.
    """
    move = candidate - own
    return of_differences((2 - design.kappa) * (labels - own) * move - move**2, move, patients)


def of_differences(differences: Array, move: Array, patients: Owners | None = None) -> Benefit:
    """The sums of (R, N) differences in loss between models whose risks are ``move`` (R, N) apart.

    ``patients``: as of ``by_patient``.
    """
    each = by_patient(differences, patients)
    found = differences.mean(), each.var(axis=1, ddof=1).mean(), (move**2).mean()
    return Benefit(each.shape[1], *(float(value) for value in found))


# Variances, smoothed over hospitals: a hospital's own follows its own chance.


def moments(variance: float, covariates: Sequence[float]) -> Array:
    """(k + 2, k + 2) terms of a sum over hospitals: products of 1, the covariates' logarithms and the variance's."""
    logs = np.log([*covariates, max(variance, LEAST_VARIANCE)])
    row = np.concatenate([[1.0], logs])
    return np.outer(row, row)


@dataclass(frozen=True)
class Smoothed:
    """log variance as a line in the logarithms of covariates, from the ``moments`` of at least three hospitals."""

    total: Array

    def at(self, covariates: Sequence[float]) -> float:
        """The mean variance of hospitals with these covariates: exp(line + half the residual variance)."""
        sites, k = self.total[0, 0], len(covariates)
        centre = self.total[0] / sites
        about = self.total - sites * np.outer(centre, centre)
        within, across = about[1:-1, 1:-1], about[1:-1, -1]
        slopes = np.linalg.solve(within + SHRUNK_BY * np.eye(k), across)
        residual = about[-1, -1] - 2 * slopes @ across + slopes @ within @ slopes
        line = centre[-1] + slopes @ (np.log(covariates) - centre[1:-1])
        return float(np.exp(line + max(residual, 0.0) / max(sites - 1 - k, 1.0) / 2))


# The average, which counts every hospital once: weights by precision speak for large hospitals.


class Average(NamedTuple):
    """The mean benefit of hospitals like these, with its interval."""

    mean: float
    low: float
    high: float


def average(total: Sequence[float]) -> Average:
    """Equal weights and Student's t, with the larger of the variance between hospitals and that of chance.

    What folds have in common at a hospital is in the variance between hospitals, so that no factor of Nadeau and Bengio
    multiplies V. ``total``: over hospitals, of 1, e, e^2 and the variance V of e.
    """
    from scipy.special import stdtrit

    sites, first, second, variances = total
    mean = first / sites
    between = max((second - sites * mean**2) / (sites - 1), 0.0)
    half = float(stdtrit(sites - 1, (1 + LEVEL) / 2)) * math.sqrt(max(between, variances / sites) / sites)
    return Average(mean, mean - half, mean + half)


# The hierarchical model: e_s = b0 + b1 x_s + u_s + noise, all in units of s0.


@dataclass(frozen=True)
class Normals:
    """A mixture of normal distributions: (K,) weights that sum to 1, means and standard deviations."""

    weights: Array
    means: Array
    sds: Array

    @property
    def mean(self) -> float:
        return float(self.weights @ self.means)

    @property
    def sd(self) -> float:
        second = self.weights @ (self.sds**2 + self.means**2)
        return math.sqrt(max(float(second) - self.mean**2, 0.0))

    def below(self, values: Array | float) -> Array:
        """The mass below each value."""
        from scipy.special import ndtr

        return np.asarray(ndtr((np.asarray(values)[..., None] - self.means) / self.sds) @ self.weights)

    def quantile(self, level: float) -> float:
        """Where the mass below is ``level``, in (0, 1)."""
        from scipy.optimize import brentq
        from scipy.special import ndtri

        ends = self.means + self.sds * float(ndtri(level))
        low, high = float(ends.min()), float(ends.max())
        if high - low < 1e-12:
            return low
        return float(brentq(lambda x: float(self.below(x)) - level, low - 1e-9, high + 1e-9, xtol=1e-9))

    def interval(self, level: float = LEVEL, stretch: float = 1.0) -> tuple[float, float]:
        """Between the two quantiles, their distances from the mean times ``stretch``."""
        low, high = (self.quantile((1 + sign * level) / 2) for sign in (-1, 1))
        return self.mean + stretch * (low - self.mean), self.mean + stretch * (high - self.mean)

    def scaled(self, by: float, shift: float = 0.0) -> Normals:
        """The distribution of ``by`` x + ``shift``, ``by`` > 0."""
        return Normals(self.weights, by * self.means + shift, by * self.sds)


def spreads() -> Array:
    """(POINTS,) spreads between hospitals, in units of s0, each of the same prior mass.

    The prior density is s0 / (s0 + tau)^2 (DuMouchel's).
    """
    q = (np.arange(POINTS) + 0.5) / POINTS
    return q / (1 - q)


def scale(sites: float, precision: float) -> float:
    """s0 = sqrt(S / sum 1 / V), from two sums over hospitals."""
    return math.sqrt(sites / precision)


def terms(value: float, variance: float, x: float, s0: float) -> Array:
    """(POINTS, 7) terms of the sums over hospitals of which the hierarchical model is made.

    For each spread: w, w x, w x^2, w z, w x z, w z^2 and log w with w = s0^2 / (V + tau^2), z = value / s0.

    Args:
        value, variance, x: the hospital's estimate, V of its noise, and its covariate; 0 in a model without.
        s0: ``scale``; everything is in its units.
    """
    w, z = 1 / (variance / s0**2 + spreads() ** 2), value / s0
    return np.stack([w, w * x, w * x * x, w * z, w * x * z, w * z * z, np.log(w)], axis=1)


def of_size(n: float) -> float:
    """The covariate of a hospital of n patients: 100 / n - 1, as excess errors fall with n."""
    return 100 / n - 1


class Doubt(NamedTuple):
    """With probability ``share`` a hospital is unlike the others: normal, with this mean and standard deviation."""

    share: float
    mean: float
    sd: float


@dataclass(frozen=True)
class Hospitals:
    """What is known of hospitals like these: a mixture over their spread, from totals (POINTS, 7) of ``terms``."""

    s0: float
    total: Array

    def without(self, own: Array) -> Hospitals:
        """From the others alone; ``own`` are a hospital's ``terms``."""
        return Hospitals(self.s0, self.total - own)

    def _lines(self, x: float) -> tuple[Array, Array, Array]:
        """For each spread: its posterior weight's logarithm, the mean at ``x``, and that mean's variance."""
        w, wx, wxx, wz, wxz, wzz, logs = self.total.T
        wxx = wxx + SLOPE_SD**-2
        det = w * wxx - wx * wx
        b0, b1 = (wxx * wz - wx * wxz) / det, (w * wxz - wx * wz) / det
        fit = wzz - b0 * wz - b1 * wxz
        return (logs - np.log(det) - fit) / 2, b0 + b1 * x, (wxx - 2 * wx * x + w * x * x) / det

    def given(self, value: float, variance: float, x: float, luck: float = 0.0, doubt: Doubt | None = None) -> Normals:
        """The posterior of a further hospital's true value, of which ``value`` is an estimate.

        ``without(own).given(own)`` is the posterior that the model of all hospitals gives.

        Args:
            value, variance, x: as of ``terms``.
            luck: variance of what the estimate cannot know: how lucky the one trained model is.
            doubt: whether the hospital may be unlike the others; None: it is like them.
        """
        z, v = value / self.s0, variance / self.s0**2
        logs, mean, error = self._lines(x)
        prior = error + spreads() ** 2
        if doubt:
            whole = np.logaddexp.reduce(logs)
            logs = np.append(logs - whole + math.log(1 - doubt.share), math.log(doubt.share))
            mean, prior = np.append(mean, doubt.mean / self.s0), np.append(prior, (doubt.sd / self.s0) ** 2)
        all_, kept = prior + v, prior / (prior + v)
        logs = logs - (np.log(all_) + (z - mean) ** 2 / all_) / 2
        return self._mixture(logs, kept * z + (1 - kept) * mean, kept * v + luck / self.s0**2)

    def new(self, x: float, luck: float = 0.0) -> Normals:
        """The value of a hospital of which nothing but ``x`` is known."""
        log_weights, mean, error = self._lines(x)
        return self._mixture(log_weights, mean, error + spreads() ** 2 + luck / self.s0**2)

    def _mixture(self, logs: Array, means: Array, variances: Array) -> Normals:
        weights = np.exp(logs - logs.max())
        return Normals(weights / weights.sum(), means * self.s0, np.sqrt(variances) * self.s0)

    @property
    def spread(self) -> float:
        """The posterior mean of the standard deviation between hospitals."""
        log_weights, *_ = self._lines(0.0)
        weights = np.exp(log_weights - log_weights.max())
        return float(weights @ spreads() / weights.sum()) * self.s0


def stretch(sites: int) -> float:
    """What widens the interval for a new hospital, where few are known (Higgins et al., JRSS A 172, 2009)."""
    from scipy.special import ndtri, stdtrit

    return float(stdtrit(max(sites - 2, 3), (1 + LEVEL) / 2) / ndtri((1 + LEVEL) / 2))


# What is said.


def verdict(p_harm: float, low: float, high: float, margin: float, limit: float = 0.05) -> str:
    """By the probability of harm; ``SAME`` where the interval lies within -/+ ``margin``."""
    if low >= -margin and high <= margin:
        return SAME
    if p_harm < limit:
        return GAINS
    return LOSES if p_harm > 1 - limit else UNCLEAR


def patients_needed(benefit: float, variance: float, design: Design) -> float:
    """About how many patients in all would tell the expected benefit from none, with a power of .8; inf for none.

    ``variance`` is that of a patient's difference.
    """
    from scipy.special import ndtri

    if not benefit:
        return math.inf
    reach = float(ndtri((1 + LEVEL) / 2) + ndtri(POWER)) / benefit
    return math.ceil(design.factor * variance * reach**2)


INNER, PENALTIES = 5, np.logspace(-3, 2, 6)
SCORE = "neg_brier_score"
REGRESSION, TREES = "regression", "trees"
GROWN = {"learning_rate": 0.05, "max_iter": 100, "max_leaf_nodes": 8, "min_samples_leaf": 10, "l2_regularization": 1.0}


def own_risks(x: Array, y: Array, new: Array, patients: Owners | None = None) -> tuple[Array, str]:
    """Risks (M,) of the rows ``new`` (M, F) by the own model of the rows (x, y), and its kind; see ``own_model``."""
    from threadpoolctl import threadpool_limits

    model, kind = own_model(x, y, patients)
    with threadpool_limits(1):
        return np.asarray(model.predict_proba(new)[:, 1]), kind


def own_model(x: Array, y: Array, patients: Owners | None = None) -> tuple[Any, str]:
    """The better of two models of the rows (x, y), and which it is.

    Args:
        x: (N, F) finite.
        y: (N,) 0 or 1, two or more of each.
        patients: (N,) whose rows lie in one part of the cross-validation; None: each row is another patient.

    Returns:
        A fitted classifier of scikit-learn, and "regression" or "trees". Classes of fewer than three patients give a
        regression without cross-validation.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, StratifiedKFold, cross_val_score
    from threadpoolctl import threadpool_limits

    owner = np.arange(len(y)) if patients is None else patients
    folds = min(INNER, *(len(np.unique(owner[y == k])) for k in (0, 1)))
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # of a solver that stops before it has converged
        if folds < 3:
            return LogisticRegression(C=0.1).fit(x, y), REGRESSION
        dealing = StratifiedKFold if patients is None else StratifiedGroupKFold
        inner = list(dealing(folds, shuffle=True, random_state=0).split(x, y, patients))
        ridge = GridSearchCV(LogisticRegression(max_iter=300), {"C": PENALTIES}, scoring=SCORE, cv=inner).fit(x, y)
        trees = HistGradientBoostingClassifier(**GROWN, random_state=0)
        if cross_val_score(trees, x, y, scoring=SCORE, cv=inner).mean() > ridge.best_score_:
            return trees.fit(x, y), TREES
        return ridge.best_estimator_, REGRESSION
