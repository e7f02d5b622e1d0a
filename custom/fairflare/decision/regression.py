# SPDX-License-Identifier: Apache-2.0
"""The models that a hospital compares: logistic regressions, all from one federated training.

At the maximum w of everybody's penalised log likelihood, with negative Hessian H, hospital k knows its own gradient g
and negative Hessian h. The others are described by Q = H - h and by their maximum, one Newton step away:

    outside model   c = w - Q^-1 g
    member model    argmax_b  loglik(b; training rows of k) - (b - c)' Q (b - c) / 2
    own model       argmax_b  loglik(b; training rows of k) - penalty |slopes|^2 / 2

The member model takes the others' log likelihood as quadratic and the hospital's own rows exactly, so that it can be
had without any fold of them, and no federated training is repeated. Where a hospital has more than ``REFIT_SHARE`` of
all rows, one Newton step is too far: the others then train once more without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fairflare.functional.slopes import LARGEST_STEP, STEPS, derivatives, sigmoid, stepped

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

OWN, OUTSIDE, MEMBER, ENSEMBLE = "own", "outside", "member", "one exchange"
PENALTIES = np.logspace(3, -2, 6)
"""Of the own model's slopes, on standardised features; the hospital's own cross-validation chooses."""
INNER_FOLDS = 5
INTERCEPT_PENALTY = 1e-3
UPDATE_PENALTIES = np.array([0.5, 1.0])
"""Of the update's intercept, and of its slope less 1."""
LIKELIHOOD_RATIO = 3.84
"""Above it the update changes the slope too: the .95 quantile of chi-squared with one degree of freedom."""
ITERATIONS, TOLERANCE = 25, 1e-4
"""Of Newton's steps; the last one, below the tolerance, is still made, and leaves an error of its square."""
REFIT_SHARE = 0.3
MAX_CELLS = 2_000_000
"""Problems times rows that are fitted at once."""


@dataclass(frozen=True)
class Hospital:
    """One hospital's rows.

    Attributes:
        x: (N, P) features, prepared alike at all hospitals, with a constant in front.
        y: (N,) outcomes, 0 or 1.
        patient: (N,) whose row each is, numbers from 0 to n - 1.
        grouped: whether the table names patients; if not, each row is taken for another patient.
        identities: as of ``Split``.
    """

    x: Array
    y: Array
    patient: Rows
    grouped: bool = True
    identities: npt.NDArray[np.uint64] | None = None

    @classmethod
    def of(
        cls,
        x: Array,
        y: Array,
        patients: npt.NDArray[np.generic] | None = None,
        identities: npt.NDArray[np.uint64] | None = None,
    ) -> Hospital:
        """From rows with patients under any names; None: the table names none."""
        number = np.arange(len(y)) if patients is None else np.unique(patients, return_inverse=True)[1]
        named = not (patients is None and identities is None)
        return cls(np.asarray(x, np.float64), np.asarray(y, np.float64), number, named, identities)

    @cached_property
    def n(self) -> int:
        """Patients."""
        return len(np.unique(self.patient))

    @cached_property
    def prevalence(self) -> float:
        """Share of rows with the outcome."""
        return float(self.y.mean())

    def patients_with(self, outcome: int) -> int:
        return len(np.unique(self.patient[self.y == outcome]))


@dataclass(frozen=True)
class Training:
    """The federated training: coefficients (P,), and the negative Hessian (P, P) of all with the penalty."""

    coefficients: Array
    hessian: Array

    def others(self, hospital: Hospital, rows: Array | slice = slice(None)) -> tuple[Array, Array]:
        """The outside model (P,) of a hospital whose ``rows`` took part, and Q (P, P) of all others."""
        gradient, hessian = derivatives(hospital.x[rows], hospital.y[rows], self.coefficients)
        q = self.hessian - hessian
        return self.coefficients - np.linalg.solve(q, gradient), q


def train(hospitals: Sequence[Hospital]) -> Training:
    """Newton's method on sums over hospitals of gradients and Hessians; slopes have the penalty 1."""
    at = np.zeros(hospitals[0].x.shape[1])
    for _ in range(STEPS):
        parts = [derivatives(one.x, one.y, at) for one in hospitals]
        at, hessian, done = stepped(at, *(np.sum(each, axis=0) for each in zip(*parts, strict=True)))
        if done:
            break
    return Training(at, hessian)


def penalised(
    x: Array, y: Array, weights: Array, centre: Array, precision: Array, start: Array, damped: bool = False
) -> Array:
    """(B, P) maxima of sum_i weights_bi loglik_i(b) - (b - centre)' precision_b (b - centre) / 2.

    Args:
        x, y: (N, P) and (N,).
        weights: (B, N), of each problem's rows.
        centre, start: (P,).
        precision: (B, P, P).
        damped: halve the Newton steps that lower the objective; without it, problems that do not settle are fitted
            once more so, from 0.
    """
    size = max(1, MAX_CELLS // len(y))
    if len(weights) > size:
        each = [slice(i, i + size) for i in range(0, len(weights), size)]
        return np.concatenate([penalised(x, y, weights[s], centre, precision[s], start, damped) for s in each])

    def objective(at: Array) -> Array:
        logits, away = at @ x.T, at - centre
        fit = (weights * (y * logits - np.logaddexp(0, logits))).sum(axis=1)
        return np.asarray(fit - np.einsum("bi,bij,bj->b", away, precision, away) / 2)

    rows = np.triu_indices(x.shape[1])
    products = x[:, rows[0]] * x[:, rows[1]]
    at = np.tile(start, (len(weights), 1))
    hessian = np.empty(precision.shape)
    for _ in range(ITERATIONS):
        risks = sigmoid(at @ x.T)
        hessian[:, rows[0], rows[1]] = hessian[:, rows[1], rows[0]] = (weights * risks * (1 - risks)) @ products
        pull = np.einsum("bij,bj->bi", precision, at - centre)
        move = np.linalg.solve(hessian + precision, ((weights * (y - risks)) @ x - pull)[..., None])[..., 0]
        move *= np.minimum(1, LARGEST_STEP / np.maximum(np.abs(move).max(axis=1, keepdims=True), LARGEST_STEP))
        for _ in range(ITERATIONS if damped else 0):
            worse = objective(at + move) < objective(at) - TOLERANCE
            if not worse.any():
                break
            move[worse] /= 2
        at = at + move
        unsettled = np.abs(move).max(axis=1) >= TOLERANCE
        if not unsettled.any():
            break
    if unsettled.any() and not damped:
        again = (weights[unsettled], centre, precision[unsettled], np.zeros_like(start), True)
        at[unsettled] = penalised(x, y, *again)
    return at


def own_models(hospital: Hospital, training_rows: Array, start: Array) -> Array:
    """(B, P) ridge regressions of a hospital's own rows, the penalty of each chosen within them by Brier score.

    ``training_rows``: (B, N) of 0 and 1. Cross-validation deals patients, not rows; ``start`` only saves steps.
    """
    x, y = hospital.x, hospital.y
    inner = (np.random.default_rng(0).permutation(hospital.n) % INNER_FOLDS)[hospital.patient]
    kept = np.vstack([inner != fold for fold in range(INNER_FOLDS)] + [np.ones(len(y), dtype=bool)])  # the last: all
    ridge = np.append(INTERCEPT_PENALTY, np.ones(x.shape[1] - 1))
    precision = np.repeat(PENALTIES, len(kept))[:, None, None] * np.diag(ridge)
    found = []
    for mask in training_rows:
        weights = np.tile(mask * kept, (len(PENALTIES), 1))
        each = penalised(x, y, weights, np.zeros(len(ridge)), precision, start).reshape(len(PENALTIES), len(kept), -1)
        errors = (sigmoid(each[:, :-1] @ x.T) - y) ** 2
        losses = (errors * (mask * ~kept[:-1])).sum(axis=(1, 2))
        found.append(each[losses.argmin(), -1])
    return np.stack(found)


def updated(x: Array, y: Array, training_rows: Array, models: Array, slope: bool = True) -> Array:
    """(B, P) models with the hospital's own intercept, and own slope where the likelihood ratio asks for it.

    Fits logit = a + b (model's logit) to the training rows, with ``UPDATE_PENALTIES`` on a and b - 1. The ratio is that
    of the penalised likelihoods. ``training_rows``: (B, N); ``models``: (B, P).
    """
    logits = models @ x.T
    intercept, value = _update(logits, y, training_rows, np.array([True, False]))
    if slope:
        both, better = _update(logits, y, training_rows, np.array([True, True]))
        intercept = np.where((2 * (better - value) > LIKELIHOOD_RATIO)[:, None], both, intercept)
    found = models * (1 + intercept[:, 1:])
    found[:, 0] += intercept[:, 0]
    return found


def _update(logits: Array, y: Array, weights: Array, free: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """(B, 2) intercept and slope less 1, of which ``free`` (2,) move, and (B,) penalised log likelihoods.

    Newton's method from a slope of 0, where it is free: a start with steep logits may diverge. A step that lowers the
    likelihood is halved.
    """

    def likelihood(at: Array) -> Array:
        moved = at[:, :1] + (1 + at[:, 1:]) * logits
        return np.asarray((weights * (y * moved - np.logaddexp(0, moved))).sum(axis=1) - at**2 @ UPDATE_PENALTIES / 2)

    at = np.tile([0.0, -1.0 if free[1] else 0.0], (len(logits), 1))
    value, terms = likelihood(at), np.stack([np.ones_like(logits), logits], axis=1)[:, free]
    for _ in range(ITERATIONS):
        risks = sigmoid(at[:, :1] + (1 + at[:, 1:]) * logits)
        gradient = np.einsum("bkn,bn->bk", terms, weights * (y - risks)) - (UPDATE_PENALTIES * at)[:, free]
        curvature = np.einsum("bkn,bln->bkl", terms * (weights * risks * (1 - risks))[:, None], terms)
        move = np.zeros_like(at)
        move[:, free] = np.linalg.solve(curvature + np.diag(UPDATE_PENALTIES[free]), gradient[..., None])[..., 0]
        for _ in range(ITERATIONS):
            tried = likelihood(at + move)
            worse = tried < value - TOLERANCE
            if not worse.any():
                break
            move[worse] /= 2
        at, value = at + move, tried
        if np.abs(move).max() < TOLERANCE:
            break
    return at, value


@dataclass(frozen=True)
class Others:
    """What the others tell a hospital, all of it sums over them.

    Attributes:
        outside: (P,) their model; (B, P) where folds are of the whole federation.
        centre, precision: (P,) and (P, P): their log likelihood about the model of all, for the member model.
        own_models: sums of rows times own coefficients, and of rows: one exchange; None: it was not made.
        members: (B, P) member models, where folds are of the whole federation.
    """

    outside: Array
    centre: Array
    precision: Array
    own_models: tuple[Array, Array] | None = None
    members: Array | None = None


def members(hospital: Hospital, others: Others, training_rows: Array) -> Array:
    """(B, P) member models, before the update; (B, N) ``training_rows`` of 0 and 1."""
    if others.members is not None:
        return others.members
    precision = np.tile(others.precision, (len(training_rows), 1, 1))
    return penalised(hospital.x, hospital.y, training_rows, others.centre, precision, others.centre)


def shared_models(hospital: Hospital, others: Others, training_rows: Array, own: Array) -> dict[str, Array]:
    """Name -> (B, P) coefficients of each model that others help to fit, without the rows that a fold leaves out.

    The outside model, before its update, is the same in every fold, as it never saw the hospital's patients.
    ``training_rows``: (B, N) of 0 and 1; ``own``: (B, P) of ``own_models``.
    """
    x, y = hospital.x, hospital.y
    found = {
        OUTSIDE: updated(x, y, training_rows, np.broadcast_to(others.outside, own.shape)),
        MEMBER: updated(x, y, training_rows, members(hospital, others, training_rows)),
    }
    if others.own_models is not None:
        total, elsewhere = others.own_models
        rows = training_rows.sum(axis=1)[:, None]
        found[ENSEMBLE] = updated(x, y, training_rows, (total + rows * own) / (elsewhere + rows), slope=False)
    return found
