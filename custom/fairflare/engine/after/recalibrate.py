# SPDX-License-Identifier: Apache-2.0
"""Recalibration after the last round: an intercept and a slope for two classes, a temperature for more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt

from fairflare.core.types import LARGEST_LOSS
from fairflare.core.validation import Range
from fairflare.engine.after.base import AfterStep, Array, Cases, Chosen, Fit, Shape, fit_of
from fairflare.functional import calibration as lines
from fairflare.functional import recalibration as maths

FAR = 6.0
"""Largest logit that a line takes in full."""
EDGES = np.linspace(-FAR, FAR, 25)
"""Of the bins of the logit, 0.5 wide."""
BINS = len(EDGES) - 1
GAP = 12.0
"""The same of how far a class's log probability is below the largest."""
TEMPERATURES = np.geomspace(0.1, 10.0, 41)
SMALLEST = 1e-300


@dataclass(frozen=True)
class Recalibrate(AfterStep):
    """sigma(a + b z) in place of sigma(z); softmax(z / T) with more than two classes; z is limited.

    The pooled line or temperature follows from counts and positives per bin of the logit, or from losses on a grid of
    temperatures, summed over the sites. A site draws its own towards it. With ``by`` "group" each group has the line of
    its cases at all sites.

    Attributes:
        penalty: how strongly a site's own is drawn to that of all, in cases' worth of information: 0 not at all.
        slope: whether a slope is fitted too, where there are 50 cases and 10 of each class; otherwise the intercept
            alone.
    """

    stages: ClassVar[tuple[str, ...]] = ("before", "shared", "own")
    parameters: ClassVar[Mapping[str, tuple[float, float, str]]] = {
        "intercept": (-lines.STEEPEST, lines.STEEPEST, "intercept on the logit"),
        "slope": (-lines.STEEPEST, lines.STEEPEST, "slope on the logit"),
        "temperature": (1 / lines.STEEPEST, lines.STEEPEST, "temperature"),
    }
    metrics: ClassVar[Mapping[str, tuple[float, float, str]]] = {
        "brier": (0.0, 2.0, "Brier score, of the second class where there are two"),
        "calibration": (-1.0, 1.0, "mean predicted risk less the share that it came true of"),
        "log_loss": (0.0, LARGEST_LOSS, "cross-entropy"),
    }

    penalty: Annotated[float, Range(0, 1e6)] = 2.0
    slope: bool = True

    def missing(self, shape: Shape) -> str:
        if shape.has_masks:
            return "recalibrate needs class labels, and this task has masks; use conformal"
        return "" if shape.has_classes else "recalibrate needs class labels, which this task has not"

    def length(self, shape: Shape) -> int:
        return 1 + (2 * BINS if shape.classes == 2 else len(TEMPERATURES))

    def sums(self, cases: Cases, chosen: Chosen, shape: Shape) -> Array:
        """Number of cases; then cases and positives per bin, or the loss at each temperature."""
        scores, labels = _numpy(cases, chosen)
        n = [float(len(labels))]
        if shape.classes == 2:
            return np.concatenate([n, *maths.binned(_logit(scores), labels.astype(float), EDGES)])
        return np.concatenate([n, np.maximum(maths.losses_at(_gaps(scores, 0.0), labels, TEMPERATURES), 0.0)])

    def kinds(self, cases: Cases, shape: Shape) -> tuple[Chosen, ...]:
        if shape.classes != 2:
            return super().kinds(cases, shape)
        ones = np.asarray(cases.targets.numpy() == 1)
        return ones, ~ones

    def coarse(self, row: Array, shape: Shape, least: int) -> Array:
        """Of two classes, number, mean and spread of neighbours of each, see ``in_blocks``."""
        if shape.classes != 2:
            return row
        cases, positives = row[1 : 1 + BINS], row[1 + BINS :]
        ones, others = maths.in_blocks(positives, least), maths.in_blocks(cases - positives, least)
        return np.concatenate([row[:1], ones + others, ones])

    def proper(self, row: Array, shape: Shape) -> bool:
        """Bins hold every case once, and no more positives than cases; losses are such as cases can have."""
        if shape.classes != 2:
            return maths.possible_losses(row[1:], TEMPERATURES, row[0], shape.classes, GAP)
        cases, positives = row[1 : 1 + BINS], row[1 + BINS :]
        whole = bool((row == np.floor(row)).all())
        return whole and float(cases.sum()) == row[0] and bool((positives <= cases).all())

    def shared(self, total: Array, shape: Shape) -> Fit:
        """One line, or temperature, for all; nothing without a case."""
        if total[0] < 1:
            return {}
        if shape.classes != 2:
            return {"temperature": maths.least_on_grid(total[1:], TEMPERATURES)}
        cases, positives = total[1 : 1 + BINS], total[1 + BINS :]
        least = min(float(positives.sum()), float(cases.sum() - positives.sum()))
        if least < 1:
            return {}  # one class alone has no finite line
        sloped = self.slope and total[0] >= lines.LEAST_FOR_SLOPE and least >= lines.LEAST_PER_CLASS
        line = maths.fitted_to_bins(cases, positives, EDGES, slope=sloped)
        if line.slope <= 0:
            line = maths.fitted_to_bins(cases, positives, EDGES)
        return {"intercept": line.intercept, "slope": line.slope}

    def own(self, cases: Cases, chosen: Chosen, total: Array, shape: Shape) -> tuple[Fit, str]:
        """Drawn towards that of all; what holds for all where a site has no case."""
        of_all = self.shared(total, shape)
        if not of_all or not chosen.any():
            return of_all, "no calibration cases" if of_all else "no calibration cases of both classes anywhere"
        scores, labels = _numpy(cases, chosen)
        if shape.classes != 2:
            return {"temperature": maths.temperature(_gaps(scores), labels, self.penalty, of_all["temperature"])}, ""
        towards = lines.Line(of_all["intercept"], of_all["slope"])
        z = maths.limited(_logit(scores), FAR)
        line, why = maths.recalibrated(z, labels.astype(float), towards, self.penalty, slope=self.slope)
        remark = f"slope: {why}" if self.slope and why else ""
        return {"intercept": line.intercept, "slope": line.slope}, remark

    def values(self, cases: Cases, stage: str, fits: Mapping[int, Fit], shape: Shape) -> dict[str, Array]:
        """Brier score, calibration in the large and loss, each a mean over cases.

        With more than two classes calibration is the top class's probability less whether it is the right one.
        """
        scores, labels = _numpy(cases, np.ones(cases.n, dtype=bool))
        probabilities = self.probabilities(scores, cases.members.numpy(), {} if stage == "before" else fits, shape)
        rows = np.arange(len(labels))
        truth = np.zeros_like(probabilities)
        truth[rows, labels] = 1.0
        loss = -np.log(np.maximum(probabilities[rows, labels], SMALLEST))
        if shape.classes == 2:
            residual = probabilities[:, 1] - truth[:, 1]
            return {"brier": residual**2, "calibration": residual, "log_loss": loss}
        top = probabilities.argmax(axis=1)
        brier = ((probabilities - truth) ** 2).sum(axis=1)
        return {"brier": brier, "calibration": probabilities[rows, top] - truth[rows, top], "log_loss": loss}

    def changed(self, cases: Cases, fits: Mapping[int, Fit], shape: Shape) -> Array:
        return self.probabilities(cases.outputs.numpy(), cases.members.numpy(), fits, shape)

    def probabilities(self, scores: Array, members: Array, fits: Mapping[int, Fit], shape: Shape) -> Array:
        """(N, C) of logits (N, C), each case by what holds for its group; softmax where nothing does."""
        moved = scores.copy()
        for member in np.unique(members):
            fit, rows = fit_of(fits, int(member)), members == member
            if not fit:
                continue
            if shape.classes == 2:
                z = fit["intercept"] + fit["slope"] * maths.limited(_logit(scores[rows]), FAR)
                moved[rows] = np.stack([np.zeros_like(z), z], axis=1)
            else:
                moved[rows] = _gaps(scores[rows]) / fit["temperature"]
        exponents = np.exp(moved - moved.max(axis=1, keepdims=True))
        return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def _logit(scores: Array) -> Array:
    return np.asarray(scores[:, 1] - scores[:, 0])


def _gaps(scores: Array, beyond: float = maths.BEYOND) -> Array:
    """How far each class's log probability is below the largest, limited."""
    return maths.limited(scores - scores.max(axis=1, keepdims=True), GAP, beyond)


def _numpy(cases: Cases, chosen: Chosen) -> tuple[Array, npt.NDArray[np.int64]]:
    return cases.outputs.numpy()[chosen], cases.targets.numpy()[chosen]
