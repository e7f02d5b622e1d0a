# SPDX-License-Identifier: Apache-2.0
"""A hierarchical model over hospitals, of sums: a posterior for each hospital's value, averages and forecasts.

All that leaves a hospital are terms of sums over hospitals (``moments``, ``terms``); each hospital then computes its
own posterior from the totals less its own terms, so that a server that sees totals alone sees no hospital's value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fairflare.functional.intervals import Array as Array
from fairflare.functional.intervals import Owners as Owners
from fairflare.functional.intervals import by_patient as by_patient

LEVEL = 0.95
POINTS = 60
"""Values of the spread between hospitals, over which the posterior is integrated."""
SLOPE_SD = 10.0
"""Prior standard deviation of the slope on size, in median standard errors: next to flat, and never singular."""
LEAST_VARIANCE = 1e-10
LEAST_DISAGREEMENT = 1e-8
SHRUNK_BY = 2.0
"""Added to the denominator of a regression's slopes when variances are smoothed."""


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
        centre, slopes, residual = self._line
        return float(np.exp(centre[-1] + slopes @ (np.log(covariates) - centre[1:-1]) + residual / 2))

    @property
    def residual(self) -> float:
        """The variance of log variances about the line."""
        return self._line[2]

    @cached_property
    def _line(self) -> tuple[Array, Array, float]:
        sites, k = self.total[0, 0], len(self.total) - 2
        centre = self.total[0] / sites
        about = self.total - sites * np.outer(centre, centre)
        within, across = about[1:-1, 1:-1], about[1:-1, -1]
        slopes = np.linalg.solve(within + SHRUNK_BY * np.eye(k), across)
        residual = about[-1, -1] - 2 * slopes @ across + slopes @ within @ slopes
        return centre, slopes, float(max(residual, 0.0) / max(sites - 1 - k, 1.0))


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
