# SPDX-License-Identifier: Apache-2.0
"""A hospital's logistic regression between the federation's and its own patients: its own slopes, and its true risks.

A hospital's coefficients are normal about the federation's, their slopes with variance 1 / pull. How much hospitals
differ is learned from all of them (``em_step``, sums over hospitals), how much this one does from its own patients
(empirical Bayes; A. Gelman et al., Bayesian Data Analysis, 2013, chapters 5 and 13). One exchange is enough: a hospital
is told the exact regression's coefficients and Hessian, from which it takes its own part, and the pulls' weights.

Its own model may be mixed with what the federation offers (``Right``), as far as the posterior says that it does no
harm. Squared errors make the gain of a share alpha of a direction D quadratic: g = q (2 alpha a - alpha^2) with
q = E[D^2] and a = E[r D] / q, the part of the disagreement that is right. It harms only where alpha > 2 a.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairflare.functional.decision import LEAST_DISAGREEMENT, Array, Doubt, Normals

PULLS = np.array([1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0])
"""Inverse variances of hospitals' slopes, on standardised features."""
WIDER = 1.15
"""Of the deviations that a regression gives; chosen on simulated federations, checked on those of other seeds."""
MISFIT = 0.15
"""Prior standard deviation of what a regression misjudges of the part that is right."""
INTERCEPT_VARIANCE = 4.0
STEPS, LARGEST_STEP, CLOSE = 20, 3.0, 1e-6
EM_STEPS = 30


def sigmoid(logits: Array) -> Array:
    """Of any shape; without overflow."""
    return np.asarray(0.5 + 0.5 * np.tanh(logits / 2))


def derivatives(x: Array, y: Array, at: Array) -> tuple[Array, Array]:
    """(P,) gradient and (P, P) negative Hessian of the log likelihood of (n, P) features with a constant in front."""
    risks = sigmoid(x @ at)
    return (y - risks) @ x, (x * (risks * (1 - risks))[:, None]).T @ x


class Others(NamedTuple):
    """What the other hospitals say of a further one: their regression's coefficients (P,), and how many they are."""

    centre: Array
    cov: Array
    sites: int

    @classmethod
    def of_all(cls, centre: Array, total: Array, sites: int, x: Array, y: Array) -> Others:
        """One Newton step takes a hospital's own patients out of the regression of all ``sites``.

        Args:
            centre: of all hospitals' regression.
            total: (P, P) sum of their negative Hessians there, penalties included.
            sites: at least 2, this one among them.
            x, y: the hospital's own patients.
        """
        gradient, hessian = derivatives(x, y, centre)
        cov: Array = np.asarray(np.linalg.inv(total - hessian), dtype=np.float64)
        return cls(centre - cov @ gradient, cov, sites - 1)

    def precisions(self) -> Array:
        """(M, P, P) of a hospital's coefficients about the centre, for each pull."""
        diagonals = np.stack([np.append(INTERCEPT_VARIANCE, np.full(len(self.centre) - 1, 1 / p)) for p in PULLS])
        between = diagonals[:, :, None] * np.eye(len(self.centre))
        return np.asarray(np.linalg.inv(between * (1 + 1 / self.sites) + self.cov), dtype=np.float64)


def stepped(at: Array, gradient: Array, hessian: Array) -> tuple[Array, Array, bool]:
    """Newton's next coefficients, the penalised Hessian at ``at``, and whether that was the last step.

    The penalty of slopes is 1, of the intercept a thousandth; ``derivatives`` at ``at`` are summed over hospitals.
    """
    ridge = np.append(1e-3, np.ones(len(at) - 1))
    hessian = hessian + np.diag(ridge)
    step = np.linalg.solve(hessian, gradient - ridge * at)
    return at + np.clip(step, -LARGEST_STEP, LARGEST_STEP), hessian, bool(np.abs(step).max() < CLOSE)


class Fitted(NamedTuple):
    """(M, P) coefficients for each pull, (M, P, P) their covariances and (M,) logarithms of Laplace's evidence."""

    at: Array
    cov: Array
    evidence: Array


def fitted(x: Array, y: Array, others: Others) -> Fitted:
    """A hospital's regression for each pull.

    Args:
        x: (n, P) features, standardised alike at all hospitals, with a constant in front.
        y: (n,) 0 or 1.
    """
    precision, rows = others.precisions(), np.triu_indices(x.shape[1])
    products = x[:, rows[0]] * x[:, rows[1]]
    at, inner = np.tile(others.centre, (len(PULLS), 1)), np.empty(precision.shape)
    for _ in range(STEPS):
        risks, away = sigmoid(at @ x.T), at - others.centre
        inner[:, rows[0], rows[1]] = inner[:, rows[1], rows[0]] = (risks * (1 - risks)) @ products
        gradient = (y - risks) @ x - np.einsum("mij,mj->mi", precision, away)
        step = np.linalg.solve(inner + precision, gradient[..., None])[..., 0]
        at += np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        if np.abs(step).max() < CLOSE:
            break
    logits, away = at @ x.T, at - others.centre
    likelihood = (y * logits - np.logaddexp(0, logits)).sum(axis=1)
    fit = np.einsum("mi,mij,mj->m", away, precision, away)
    logs = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(inner + precision)[1]
    cov = np.asarray(np.linalg.inv(inner + precision), dtype=np.float64)
    return Fitted(at, cov, likelihood + (logs - fit) / 2)


def shares(evidence: Array, weights: Array) -> Array:
    """(..., M) posterior weights of the pulls, from evidence (..., M) and prior weights (M,)."""
    found = np.exp(evidence - evidence.max(axis=-1, keepdims=True)) * weights
    return np.asarray(found / found.sum(axis=-1, keepdims=True))


def em_step(total: Array, sites: int) -> Array:
    """(M,) prior weights of the pulls, from the sum of ``shares`` over hospitals."""
    return np.asarray((total + 1 / len(total)) / (sites + 1))


class Slopes(NamedTuple):
    """What a hospital's true coefficients may be: a mixture of normal distributions, (M,) weights.

    Its mean risks are a model themselves: the regression with the hospital's own slopes.
    """

    weights: Array
    at: Array
    cov: Array

    @classmethod
    def of(cls, found: Fitted, weights: Array) -> Slopes:
        """With the prior weights of ``em_step``."""
        return cls(shares(found.evidence, weights), found.at, found.cov)

    def risks(self, x: Array) -> Array:
        """(n,) of the model with own slopes."""
        return np.asarray(self.weights @ sigmoid(self.at @ x.T))

    def along(self, x: Array, own: Array, move: Array) -> tuple[Array, Array]:
        """(M,) means and standard deviations of E[(true risk - own) move], of patients ``x`` (n, P).

        True risks are taken at the mean over the normal distribution (MacKay's approximation), and move linearly.
        """
        spread = np.einsum("mij,ni,nj->mn", self.cov, x, x)
        risks = sigmoid(self.at @ x.T / np.sqrt(1 + np.pi / 8 * spread))
        slopes = (risks * (1 - risks) * move) @ x / len(x)
        return (risks - own) @ move / len(x), np.sqrt(np.einsum("mi,mij,mj->m", slopes, self.cov, slopes))


class Regressed(NamedTuple):
    """The part of a direction that is right, by the hospital's regression (``Slopes``), not by its outcomes.

    Attributes:
        q: E[D^2] of the models as deployed; of patients that trained none of them it is larger.
        of: the distribution of a.
    """

    q: float
    of: Normals

    @classmethod
    def of_models(cls, slopes: Slopes, x: Array, own: Array, moved: Array, new: float | None = None) -> Regressed:
        """Of deployed models' risks (n,) of the hospital's patients ``x`` (n, P); ``new``: q of other patients."""
        move = moved - own
        q = max(float((move**2).mean()), LEAST_DISAGREEMENT)
        means, sds = slopes.along(x, own, move)
        return cls(new or q, Normals(slopes.weights, means / q, np.maximum(sds / q, LEAST_SPREAD)))

    def widened(self, shift: float = 0.0, variance: float = 0.0) -> Regressed:
        """With deviations times ``WIDER``, and moved by ``misfit``, if that is known."""
        means = self.of.mean + WIDER * (self.of.means - self.of.mean) + shift
        return Regressed(self.q, Normals(self.of.weights, means, np.sqrt((WIDER * self.of.sds) ** 2 + variance)))


def misfit_terms(part: Right, mean: float, factor: float) -> Array:
    """(2,) terms of a sum over hospitals: 1 / variance of a from patients out of fold, and times its distance.

    Args:
        mean: that of a by the hospital's regression.
        factor: what folds have in common, see ``Folds.factor``.
    """
    precision = 1 / (factor * part.variance)
    return np.array([precision, precision * (part.a - mean)])


def misfit(total: Array) -> tuple[float, float]:
    """By how much regressions misjudge a, over all hospitals: mean and variance; a priori N(0, ``MISFIT``^2)."""
    precision = float(total[0]) + MISFIT**-2
    return float(total[1]) / precision, 1 / precision


SHARES = np.linspace(0.0, 1.0, 51)
SITES_FOR_SIZE = 6
"""Hospitals from which on the part that is right may depend on a hospital's size."""
LIMIT = 0.05
"""The largest probability of harm."""
TOLERANCE = 0.002
LEAST_SPREAD = 1e-4
UNLIKE = Doubt(0.15, 0.3, 0.5)
"""Of the part that is right. Without it a fifth of the hospitals with slopes of their own are harmed in simulated mixed
federations, since the others speak for them; chosen there, and checked on federations of other seeds."""


class Right(NamedTuple):
    """Which part of a direction is right at a hospital.

    Attributes:
        n: patients.
        a: E[r D] / q; 0: none, 1: all of it.
        variance: V of a.
        q: E[D^2], of models of all patients.
    """

    n: int
    a: float
    variance: float
    q: float


def gain(of: Normals, q: float, share: float = 1.0) -> Normals:
    """The gain of a share (> 0) of the direction whose right part has the distribution ``of``; ``q``: ``Right.q``."""
    return of.scaled(2 * share * q, -q * share**2)


def harm(of: Normals, q: float, share: float = 1.0, margin: float = 0.0) -> float:
    """The probability that a share of the direction is worse than the own model by more than ``margin``."""
    return float(of.below(share / 2 - margin / (2 * share * q)))


def safe_share(of: Normals, q: float, margin: float = TOLERANCE) -> float:
    """The share of the largest expected gain of those that harm by more than ``margin`` with probability <= ``LIMIT``.

    Args:
        of: the posterior of ``Right.a``.
        q: ``Right.q``.
        margin: the loss that does not matter; 0: strict.
    """
    tried = SHARES[1:]
    safe = tried[of.below(tried / 2 - margin / (2 * tried * q)) <= LIMIT]
    gain = 2 * safe * of.mean - safe**2
    return float(safe[gain.argmax()]) if len(safe) and gain.max() > 0 else 0.0
