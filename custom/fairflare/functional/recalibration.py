# SPDX-License-Identifier: Apache-2.0
"""Recalibration of probabilities: an intercept a and a slope b on the logit, sigma(a + b z), or a temperature T.

Logits, labels and sums are as in ``line``. T = 1 / b.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fairflare.functional.calibration import (
    CLOSE,
    LEAST_FOR_SLOPE,
    LEAST_PER_CLASS,
    STEEPEST,
    STEPS,
    Line,
    descended,
    fitted,
)

Array = npt.NDArray[np.float64]
BEYOND = 0.1
"""Share of the logarithm of what is beyond a limit that counts."""
SUM_ROUNDING = 1e-9


def recalibrated(
    logits: Array, labels: Array, of_all: Line, penalty: float = 2.0, *, slope: bool = True
) -> tuple[Line, str]:
    """A site's own line, drawn towards that of all sites, and why it has no slope of its own ("": it has one).

    The intercept always; the slope with at least 50 cases and 10 of each class, and if it is above 0: a slope of 0 or
    less would turn the ranking round. Otherwise the slope stays at that of ``of_all``.

    Args:
        of_all: the line of all sites together.
        penalty: of both coefficients, in cases' worth of information; 0 draws nothing.
    """

    def own(with_slope: bool) -> Line:
        weights = (penalty, penalty)
        return fitted(logits, labels, slope=with_slope, start=of_all, penalty=weights, towards=of_all)

    if not slope:
        return own(False), "not asked for"
    per_class = min(float(labels.sum()), float(len(labels) - labels.sum()))
    if len(labels) < LEAST_FOR_SLOPE or per_class < LEAST_PER_CLASS:
        return own(False), f"needs {LEAST_FOR_SLOPE} cases and {LEAST_PER_CLASS} of each class"
    line = own(True)
    return (line, "") if line.slope > 0 else (own(False), "was not above 0")


def temperature(
    log_probabilities: Array, labels: npt.NDArray[np.int64], penalty: float = 0.0, towards: float = 1.0
) -> float:
    """T > 0 with the largest likelihood of softmax(log p / T), less penalty (1/T - 1/towards)^2 / 2.

    The loss is convex in b = 1 / T: Newton's method, with steps halved, within [1 / STEEPEST, STEEPEST].

    Args:
        log_probabilities: (N, C); logits will do.
        labels: (N,).
        penalty: >= 0.
        towards: the temperature that it is drawn to.
    """
    from scipy.special import log_softmax

    scores, centre = log_softmax(log_probabilities, axis=1), 1.0 / towards

    def objective(at: Array) -> float:
        return float(losses_at(scores, labels, np.array([1.0 / at[0]]))[0] + penalty * (at[0] - centre) ** 2 / 2)

    at = np.array([centre])
    for _ in range(STEPS):
        p = np.exp(log_softmax(at[0] * scores, axis=1))
        mean = (p * scores).sum(axis=1)
        gradient = (scores[np.arange(len(labels)), labels] - mean).sum() - penalty * (at[0] - centre)
        curvature = ((p * scores**2).sum(axis=1) - mean**2).sum() + penalty
        step = np.array([gradient / curvature if curvature > 0 else 0.0])
        moved = np.clip(descended(objective, at, step), 1.0 / STEEPEST, STEEPEST)
        if float(np.abs(moved - at).max()) <= CLOSE:
            return float(1.0 / moved[0])
        at = moved
    return float(1.0 / at[0])


def limited(values: Array, most: float, beyond: float = BEYOND) -> Array:
    """``values`` up to ``most`` in size, and of what is beyond that only a share of its logarithm.

    Counts per bin, and losses that one site may not decide, can tell nothing of how far out a case lies; so a line or a
    temperature holds for limited numbers, fitted and applied. They keep their order with a share above 0.

    Values are logits, or log probabilities less the largest; ``most`` > 0, ``beyond`` in [0, 1].
    """
    size = np.abs(values)
    return np.asarray(np.copysign(np.minimum(size, most) + beyond * np.log1p(np.maximum(size - most, 0.0)), values))


def possible_losses(losses: Array, temperatures: Array, cases: float, classes: int, most: float) -> bool:
    """Whether so many cases can have these summed cross-entropies at these temperatures.

    With log probabilities that are ``limited`` to ``most`` below the largest (beyond: 0) a case's loss is convex in
    b = 1 / T, at most log C + b most, and grows by at most ``most`` per b.

    Args:
        losses: (T,) >= 0.
        temperatures: (T,) increasing.
        cases, classes: n >= 0 and C >= 2.
    """
    b, own = 1 / temperatures[::-1], losses[::-1]
    rounding = SUM_ROUNDING * (1.0 + cases * most * b[-1])
    slopes = np.diff(own) / np.diff(b)
    small = bool((own <= cases * (math.log(classes) + b * most) + rounding).all())
    convex = bool((np.diff(slopes) >= -rounding / np.diff(b).min()).all())
    return small and convex and bool(slopes[-1] <= cases * most + rounding / np.diff(b).min())


def losses_at(log_probabilities: Array, labels: npt.NDArray[np.int64], temperatures: Array) -> Array:
    """(T,) summed cross-entropy of softmax(log p / T) at each temperature; >= 0."""
    from scipy.special import log_softmax

    rows = np.arange(len(labels))
    return np.array([-log_softmax(log_probabilities / t, axis=1)[rows, labels].sum() for t in temperatures])


def least_on_grid(losses: Array, temperatures: Array) -> float:
    """The temperature of the least loss: the vertex of the parabola in log T through the best point and its neighbours.

    Losses (T,) are sums over cases, and sites; temperatures (T,) are > 0 and evenly spaced in log T.
    """
    best = int(np.argmin(losses))
    logs = np.log(temperatures)
    if best in (0, len(losses) - 1):
        return float(temperatures[best])
    before, here, after = losses[best - 1 : best + 2]
    bend = before - 2 * here + after
    shift = 0.5 * (before - after) / bend if bend > 0 else 0.0
    return float(math.exp(logs[best] + shift * (logs[1] - logs[0])))


def binned(logits: Array, labels: Array, edges: Array) -> tuple[Array, Array]:
    """Cases, and cases of class 1, per bin between rising ``edges`` (B + 1,); the outer ones take what is beyond."""
    bins = len(edges) - 1
    places = np.clip(np.searchsorted(edges, logits, side="right") - 1, 0, bins - 1)
    cases, ones = np.bincount(places, minlength=bins), np.bincount(places, weights=labels, minlength=bins)
    return cases.astype(np.float64), ones.astype(np.float64)


def in_blocks(counts: Array, least: int) -> Array:
    """(B,) as many cases, of which nothing is known but number, mean and spread of blocks of at least ``least``.

    The cases in their order are cut into as many blocks as can be, equal but for one case, and those of a block put at
    the quantiles of the normal distribution of its mean and spread, each in the nearest bin. A line that is fitted to
    that sees classes that overlap as they do; with all of a block at one place it would often separate them.

    Args:
        counts: (B,) whole numbers >= 0, cases of one class per bin.
        least: >= 1, and at most their sum, if there are any; with 1 they stay as they are.
    """
    from scipy.special import ndtri

    places = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
    found = np.zeros(len(counts))
    for block in np.array_split(places, max(len(places) // max(least, 1), 1)):
        if n := len(block):
            made = np.rint(block.mean() + block.std() * ndtri((np.arange(n) + 0.5) / n)).astype(np.int64)
            found += np.bincount(made.clip(0, len(counts) - 1), minlength=len(counts))
    return found


def fitted_to_bins(cases: Array, positives: Array, edges: Array, *, slope: bool = False) -> Line:
    """The line of the largest likelihood where every case counts as lying in the middle of its bin."""
    centres = (edges[1:] + edges[:-1]) / 2
    shares = np.divide(positives, cases, out=np.zeros_like(cases), where=cases > 0)
    return fitted(centres, shares, counts=cases, slope=slope)
