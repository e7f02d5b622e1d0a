# SPDX-License-Identifier: Apache-2.0
"""How well predicted risks fit what came true, from counts per bin of the risk, and a line on the logit that mends it.

Bins lie between points of one grid for everyone, and neighbours are merged until each holds enough cases of either
outcome: so a bin tells nothing of few patients, and bins of several sites still have edges in common. Everywhere risks
(N,) are in [0, 1], outcomes (N,) 0 or 1, and bins (B,) the places in ``GRID`` where they begin, the first 0.

The line sigma(a + b z) is fitted by maximum likelihood from sums over cases, so that sums over sites serve as well as
sums within one: of the five numbers of a Newton step, of counts per bin of the logit, or of losses on a grid of
temperatures. T = 1 / b. Logits (N,) are z, finite, and labels (N,) y: in {0, 1}, or in [0, 1] as shares of counts (N,),
the cases that each stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairflare.functional.intervals import Array as Array
from fairflare.functional.intervals import Owners as Owners
from fairflare.functional.intervals import resamples

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
        found = sums(logits, labels, Line(*at), many)
        gradient = np.array([found.positives - found.p, found.residual_z]) - weights * (at - centre)
        hessian = np.array([[found.v, found.vz], [found.vz, found.vzz]]) + np.diag(weights)
        step = np.zeros(2)
        if free.any():
            step[free] = np.linalg.lstsq(hessian[np.ix_(free, free)], gradient[free], rcond=None)[0]
        moved = descended(objective, at, step)
        done, at = float(np.abs(moved - at).max()) <= CLOSE, moved
        if done:
            break
    return Line(float(at[0]), float(at[1]))


def descended(objective: Callable[[Array], float], at: Array, step: Array) -> Array:
    """``at`` plus the step, halved until the objective does not grow; within ``STEEPEST``."""
    here = objective(at)
    for halving in range(HALVINGS):
        moved = np.clip(at + step / 2**halving, -STEEPEST, STEEPEST)
        if objective(moved) <= here + CLOSE * abs(here):
            return np.asarray(moved)
    return at


Ints = npt.NDArray[np.int64]
CELLS = 40
GRID: Array = np.linspace(0.0, 1.0, CELLS + 1)
"""The risks between which bins may begin and end, 0.025 apart."""
CURVE_BINS = 10
"""Bins of a reliability curve, and of the ECE, at most."""
Z = 1.959963984540054
"""The normal distribution's 97.5 % quantile."""
SURE = 1e-12
"""How close to 0 and 1 a risk's logit is taken."""


@dataclass(frozen=True)
class Bins:
    """Sums (B,) over each bin: its cases, those that it came true of, and their predicted risks."""

    starts: Ints
    n: Array
    positives: Array
    risk: Array

    @property
    def edges(self) -> Array:
        """(B + 1,) risks at which bins begin and the last one ends."""
        return np.asarray(GRID[np.append(self.starts, CELLS)])


def cell_of(risks: Array) -> Ints:
    """(N,) place in ``GRID`` of the cell that each risk in [0, 1] lies in; a risk on an edge lies above it."""
    return np.clip(np.searchsorted(GRID, risks, side="right") - 1, 0, CELLS - 1).astype(np.int64)


def merged(risks: Array, outcomes: Array, least: int) -> Ints:
    """Where bins begin: as many as there can be if each holds at least ``least`` cases of either outcome.

    What is left over at the end goes to the last one. Empty where all cases together are too few.
    """
    cells = cell_of(risks)
    ones = np.bincount(cells, weights=outcomes, minlength=CELLS)
    others = np.bincount(cells, minlength=CELLS) - ones
    return np.array(_starts(np.stack((ones, others), axis=1), least), dtype=np.int64)


def _starts(sizes: Array, enough: float) -> list[int]:
    """Where bins begin if from the left each takes (C,) or (C, 2) sizes until it has enough; [] of too few in all."""
    starts, held = [0], np.zeros(sizes.shape[1:])
    for place, size in enumerate(sizes, start=1):
        held = held + size
        if (held >= enough).all():
            starts.append(place)
            held = np.zeros(sizes.shape[1:])
    return starts[:-1]


def merged_beside(risks: Array, outcomes: Array, least: int, flags: npt.NDArray[np.bool_]) -> Ints:
    """The same where it is also known how many were flagged, and of which outcome: those with a risk from t on.

    An edge leaves at least ``least`` cases of either outcome between itself and t, where it is not t itself: else the
    number of those between would follow by subtraction. ``flags`` (N,): whose risk is at least t.
    """
    if not len(merged(risks, outcomes, least)):
        return np.zeros(0, dtype=np.int64)
    below, above = (merged(risks[side], outcomes[side], least) for side in (~flags, flags))
    cells = cell_of(risks)
    first, last = int(cells[flags].min(initial=CELLS)), int(cells[~flags].max(initial=-1))
    # t is an edge where it may be and lies on the grid; else the bin that it is in holds cases of both sides.
    edge = [first] if len(below) and len(above) and last < first else []
    return np.array([0, *below[1:], *edge, *above[1:]], dtype=np.int64)


def crowded(risks: Array, least: float) -> Ints:
    """Where bins of at least ``least`` cases begin, whatever came true of them: of which only one number is given.

    A bin holds a tenth of all, too.
    """
    sizes = np.bincount(cell_of(risks), minlength=CELLS).astype(np.float64)
    return np.array(_starts(sizes, max(least, len(risks) / CURVE_BINS)) or [0], dtype=np.int64)


def binned(risks: Array, outcomes: Array, starts: Ints, cells: Ints | None = None) -> Bins:
    """The sums of the bins that begin at ``starts``.

    Args:
        cells: (N,) the cells that decide which bin a case is in; those of ``risks`` by default. Risks that were changed
            afterwards keep the bins of the ones before: other bins would tell of the few cases between two edges.
    """
    places = np.searchsorted(starts, cell_of(risks) if cells is None else cells, side="right") - 1
    count = len(starts)
    return Bins(
        starts,
        np.bincount(places, minlength=count).astype(np.float64),
        np.bincount(places, weights=outcomes, minlength=count).astype(np.float64),
        np.bincount(places, weights=risks, minlength=count).astype(np.float64),
    )


def coarser(bins: Bins, most: int = CURVE_BINS) -> Bins:
    """Neighbours merged until each bin holds 1 / most of all cases: what a curve and the ECE are made of."""
    firsts = np.array(_starts(bins.n, bins.n.sum() / most * (1 - 1e-12)) or [0])
    n, positives, risk = (np.add.reduceat(values, firsts) for values in (bins.n, bins.positives, bins.risk))
    return Bins(bins.starts[firsts], n, positives, risk)


def calibration_error(bins: Bins) -> float:
    """ECE: the mean over cases of how far a bin's mean risk is from its share of outcomes, in [0, 1]."""
    return float(np.abs(bins.risk - bins.positives).sum() / bins.n.sum())


def line_with_interval(
    risks: Array, outcomes: Array, patients: Owners | None = None
) -> tuple[Line, tuple[float, float]] | None:
    """Calibration intercept and slope, sigma(a + b logit(risk)), with their standard errors (Cox 1958).

    The maximum likelihood fit and, from its information, Wald's errors; of several cases a patient those of Liang and
    Zeger. None where the outcomes are separated, where all risks are the same, and with fewer than ``LEAST_PER_CLASS``
    patients of an outcome.
    """
    owner = np.arange(len(risks)) if patients is None else np.unique(patients, return_inverse=True)[1]
    if min(len(np.unique(owner[outcomes == k])) for k in (0, 1)) < LEAST_PER_CLASS:
        return None
    near = np.clip(risks, SURE, 1 - SURE)
    z = np.log(near) - np.log1p(-near)
    line = fitted(z, outcomes, slope=True, start=UNCHANGED)
    found = sums(z, outcomes, line)
    information = np.array([[found.v, found.vz], [found.vz, found.vzz]])
    if max(abs(line.intercept), abs(line.slope)) >= STEEPEST or np.linalg.cond(information) > 1e12:
        return None
    cov, many = np.linalg.inv(information), owner.max() + 1
    if patients is not None:
        residuals = outcomes - 1 / (1 + np.exp(-line.intercept - line.slope * z))
        scores = np.stack([np.bincount(owner, part) for part in (residuals, residuals * z)])
        cov = many / (many - 1) * cov @ scores @ scores.T @ cov
    errors = np.sqrt(np.diag(cov))
    return line, (float(errors[0]), float(errors[1]))


def resampled(
    squares: Array, residuals: Array, places: Ints, seed: int, times: int, patients: Owners | None = None
) -> tuple[Array, Array, Array]:
    """Brier score, calibration in the large and ECE of ``times`` resamples of the patients.

    Of each of N cases the squared error, the residual (risk less outcome), and the bin of the ECE; the bins stay.
    """
    of_bin = residuals[:, None] * (places[:, None] == np.arange(places.max() + 1))
    parts = []
    for counts in resamples(len(squares), times, seed, patients):
        n, off = counts.sum(axis=1), counts @ of_bin
        parts.append((counts @ squares / n, off.sum(axis=1) / n, np.abs(off).sum(axis=1) / n))
    brier, large, ece = (np.concatenate(part) for part in zip(*parts))
    return brier, large, ece


def middle(values: Array) -> tuple[float, float]:
    """What holds the middle 95 % of values that were resampled."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
