# SPDX-License-Identifier: Apache-2.0
"""Recalibration after the last round: an intercept and a slope for two classes, a temperature for more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from fairflare.core.types import LARGEST_LOSS, MOST_EXAMPLES, Number
from fairflare.core.validation import Range
from fairflare.engine.evaluation import Cases, Chosen
from fairflare.functional import calibration as lines
from fairflare.functional import recalibration as maths

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

Array = npt.NDArray[np.float64]
Fit = Mapping[str, float]
"""Name -> value of what was fitted; empty: there was not enough to fit it from."""
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
class Shape:
    """What server and sites know alike of a task."""

    classes: int
    has_classes: bool
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recalibrate:
    """sigma(a + b z) in place of sigma(z); softmax(z / T) with more than two classes; z is limited.

    The pooled line or temperature follows from counts and positives per bin of the logit, or from losses on a grid of
    temperatures, summed over the sites. A site draws its own towards it. With ``by`` "group" each group has the line of
    its cases at all sites.

    Attributes:
        by: who gets parameters of its own: each "site", from its own cases and those of all, or each "group" of
            patients, from the cases of all sites.
        split: the calibration cases: "val", or "train" where there are no others. On cases that a model was trained on
            it looks better than it is.
        penalty: how strongly a site's own is drawn to that of all, in cases' worth of information: 0 not at all.
        slope: whether a slope is fitted too, where there are 50 cases and 10 of each class; otherwise the intercept
            alone.
    """

    stages: ClassVar[tuple[str, ...]] = ("before", "shared", "own")
    """What is compared on the test split, in its order."""
    parameters: ClassVar[Mapping[str, tuple[float, float, str]]] = {
        "intercept": (-lines.STEEPEST, lines.STEEPEST, "intercept on the logit"),
        "slope": (-lines.STEEPEST, lines.STEEPEST, "slope on the logit"),
        "temperature": (1 / lines.STEEPEST, lines.STEEPEST, "temperature"),
    }
    """Name of a fitted number -> its least and largest value, and its meaning."""
    metrics: ClassVar[Mapping[str, tuple[float, float, str]]] = {
        "brier": (0.0, 2.0, "Brier score, of the second class where there are two"),
        "calibration": (-1.0, 1.0, "mean predicted risk less the share that it came true of"),
        "log_loss": (0.0, LARGEST_LOSS, "cross-entropy"),
    }
    """Name of a mean over test cases -> the same."""

    by: Literal["site", "group"] = "site"
    split: Literal["val", "train"] = "val"
    penalty: Annotated[float, Range(0, 1e6)] = 2.0
    slope: bool = True

    @staticmethod
    def shape_of(task: Task, groups: tuple[str, ...]) -> Shape:
        """What server and sites know alike of a task whose sites tell ``groups`` apart."""
        return Shape(len(task.classes), task.kind.has_classes, groups)

    def missing(self, shape: Shape) -> str:
        """What the task lacks, in words that end a sentence; empty when nothing is missing."""
        return "" if shape.has_classes else "recalibrate needs class labels, which this task has not"

    def length(self, shape: Shape) -> int:
        """Numbers in one row of sums."""
        return 1 + (2 * BINS if shape.classes == 2 else len(TEMPERATURES))

    def sums(self, cases: Cases, chosen: Chosen, shape: Shape) -> Array:
        """Number of cases; then cases and positives per bin, or the loss at each temperature."""
        scores, labels = _numpy(cases, chosen)
        n = [float(len(labels))]
        if shape.classes == 2:
            return np.concatenate([n, *maths.binned(_logit(scores), labels.astype(float), EDGES)])
        return np.concatenate([n, np.maximum(maths.losses_at(_gaps(scores, 0.0), labels, TEMPERATURES), 0.0)])

    def kinds(self, cases: Cases, shape: Shape) -> tuple[Chosen, ...]:
        """(N,) each: the kinds of cases whose numbers a row tells."""
        if shape.classes != 2:
            return (np.ones(cases.n, dtype=bool),)
        ones = np.asarray(cases.targets.numpy() == 1)
        return ones, ~ones

    def coarse(self, row: Array, shape: Shape, least: int) -> Array:
        """``row`` as it leaves where it is not hidden in a sum over sites: nothing in it is of fewer cases.

        Of two classes, number, mean and spread of neighbours of each, see ``in_blocks``.
        """
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
        """(N, C) probabilities once ``fits`` hold."""
        return self.probabilities(cases.outputs.numpy(), cases.members.numpy(), fits, shape)

    def probabilities(self, scores: Array, members: Array, fits: Mapping[int, Fit], shape: Shape) -> Array:
        """(N, C) of logits (N, C), each case by what holds for its group; softmax where nothing does."""
        moved = scores.copy()
        for member in np.unique(members):
            fit, rows = fits.get(int(member)) or fits.get(-1, {}), members == member
            if not fit:
                continue
            if shape.classes == 2:
                z = fit["intercept"] + fit["slope"] * maths.limited(_logit(scores[rows]), FAR)
                moved[rows] = np.stack([np.zeros_like(z), z], axis=1)
            else:
                moved[rows] = _gaps(scores[rows]) / fit["temperature"]
        exponents = np.exp(moved - moved.max(axis=1, keepdims=True))
        return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))

    def reports(self, shape: Shape, *, secure: bool = False) -> tuple[Number, ...]:
        """The numbers that a site may send of what came of it; with secure sums its own parameters stay there."""
        found = [Number(f"shared.{name}", *bounds) for name, bounds in self.parameters.items()]
        count = (0.0, float(MOST_EXAMPLES))
        found.append(Number("n_all", *count, "calibration cases of all"))
        of_all = list(found)
        if not secure:
            found += [Number(f"own.{name}", *bounds) for name, bounds in self.parameters.items()]
            found.append(Number("n_calibration", *count, "the site's calibration cases"))
        means = [Number(f"{s}.{name}", *bounds) for s in self.stages for name, bounds in self.metrics.items()]
        means.append(Number("n", *count, "cases of the test split"))
        per_group = means + of_all if self.by == "group" else means
        in_groups = [number.in_group(group) for group in shape.groups for number in per_group]
        return (*found, *means, *in_groups)

    def of_all(self, rows: Array, shape: Shape, shared: Mapping[str, Fit] | None = None) -> dict[str, float]:
        """The numbers of ``reports`` that follow from the sums of all sites, and are the same everywhere.

        Args:
            rows: (rows, length) sums.
            shared: row's name -> what ``shared`` makes of it, where that is known.
        """
        names = self.rows(shape)
        fits = shared or {name: self.shared(row, shape) for name, row in zip(names, rows, strict=True)}
        found: dict[str, float] = {}
        for name, row in zip(names, rows, strict=True):
            where = f"/{name}" if name else ""
            found |= {f"shared.{key}{where}": float(value) for key, value in fits[name].items()}
            found[f"n_all{where}"] = float(row[0])
        return found

    def rows(self, shape: Shape) -> tuple[str, ...]:
        """What there is a row of sums of: all cases (""), and with ``by`` "group" each group."""
        return ("", *shape.groups) if self.by == "group" else ("",)

    def terms(self, shape: Shape) -> int:
        return len(self.rows(shape)) * self.length(shape)

    def checked(self, sums: object, shape: Shape, most: float) -> list[float]:
        """The sums of one site, as they may be added; raises ValueError."""
        expected = self.terms(shape)
        if not isinstance(sums, (list, tuple)) or len(sums) != expected or any(type(v) is not float for v in sums):
            raise ValueError(f"expected {expected} sums")
        if not all(0 <= value < math.inf for value in sums):
            raise ValueError("expected finite sums of at least 0")
        for row in np.array(sums, dtype=np.float64).reshape(-1, self.length(shape)):
            if row[0] != int(row[0]) or row[0] > most or not self.proper(row, shape):
                raise ValueError("sums that no cases have")
        return list(sums)


def _logit(scores: Array) -> Array:
    return np.asarray(scores[:, 1] - scores[:, 0])


def _gaps(scores: Array, beyond: float = maths.BEYOND) -> Array:
    """How far each class's log probability is below the largest, limited."""
    return maths.limited(scores - scores.max(axis=1, keepdims=True), GAP, beyond)


def _numpy(cases: Cases, chosen: Chosen) -> tuple[Array, npt.NDArray[np.int64]]:
    return cases.outputs.numpy()[chosen], cases.targets.numpy()[chosen]
