# SPDX-License-Identifier: Apache-2.0
"""Thresholds after the last round by conformal risk control: for sets of classes, for a risk, or for a mask.

Split conformal prediction: a score says how strange a class is for a case; a threshold is a quantile of the true
classes' scores on calibration cases, and a case's set holds every class whose score is not above it. Scores are in
[0, 1]. Conformal risk control takes the least threshold whose risk, a mean of bounded losses, stays below a level. A
loss lies in [0, B] and does not grow with the threshold lambda, as the share of a lesion that is missed, or that the
true class is not in the set. Curves are risks at the points of a grid that increases. Angelopoulos et al., ICLR 2024
(https://arxiv.org/abs/2208.02814); shrinkage of a site's curve towards that of all: https://arxiv.org/abs/2606.20115.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fairflare.core.validation import Range
from fairflare.engine.after.base import ROUNDING, AfterStep, Array, Cases, Chosen, Fit, Level, Shape, fit_of

Score = Literal["lac", "aps"]
PRODUCT_ROUNDING = 1e-9
"""What a product of a count and a score may be off by."""


def class_scores(probabilities: Array, score: Score = "lac") -> Array:
    """(N, C) scores of every class.

    "lac" (Sadinle et al. 2019): 1 - p_c. "aps" (Romano et al. 2020, without its randomisation): the mass of the classes
    that are at least as likely as c, c itself included; of equally likely ones those with a lower index come first.
    """
    if score == "lac":
        return 1.0 - probabilities
    order = np.argsort(-probabilities, axis=1, kind="stable")
    mass = np.cumsum(np.take_along_axis(probabilities, order, axis=1), axis=1)
    found = np.empty_like(mass)
    np.put_along_axis(found, order, mass, axis=1)
    return np.clip(found, 0.0, 1.0)


def counted(scores: Array, bins: int) -> Array:
    """Cases per bin of a grid on [0, 1] of equal bins (lower edge, upper edge]; a score of 0 is in the first."""
    places = np.clip(np.ceil(scores * bins - PRODUCT_ROUNDING).astype(np.int64) - 1, 0, bins - 1)
    return np.bincount(places, minlength=bins).astype(np.float64)


RISK_ROUNDING = 1e-12


def monotone(curve: Array) -> Array:
    """The least curve above ``curve`` that does not grow: what a threshold leaves must hold for all larger ones."""
    return np.asarray(np.maximum.accumulate(curve[..., ::-1], axis=-1)[..., ::-1])


def fewest(alpha: float, bound: float = 1.0) -> int:
    """The fewest cases with which a level can be held at all: n + 1 >= B / alpha."""
    return max(math.ceil(bound / alpha - 1e-9) - 1, 1)


def threshold(curve: Array, cases: float, grid: Array, alpha: float, bound: float = 1.0) -> float | None:
    """The least grid point lambda with n / (n + 1) R(lambda) + B / (n + 1) <= alpha; None where there is none.

    Of losses of 0 or 1 it is the ceil((n + 1)(1 - alpha))-th score, rounded up to the grid.

    Args:
        curve: (G,) R.
        cases: n >= 0.
        grid: (G,) increasing.
        alpha: the level, in (0, B).
        bound: B.
    """
    return _first((cases * monotone(curve) + bound) / (cases + 1), grid, alpha)


def shrunk_threshold(
    own: Array,
    cases: float,
    others: Array,
    all_cases: float,
    grid: Array,
    alpha: float,
    bound: float = 1.0,
    prior: float = 19.0,
    *,
    corrected: bool = True,
) -> float | None:
    """A site's threshold from its own curve and that of all: least lambda with v R_k + (1 - v) R + correction <= alpha.

    None where there is none: with fewer cases than ``fewest`` the correction alone may be above the level.
    v = n_k / (n_k + n_0); the correction is v B / (n_k + 1) + (1 - v) B / (N + 1), as its source has it.
    n_0 = 0 leaves the site's own curve, n_0 = infinity that of all. No theorem covers a threshold of one site; the
    largest of all sites' and of the pooled one is covered where it is used everywhere.

    Args:
        own, cases: (G,) R_k and n_k >= 0.
        others, all_cases: (G,) R, over all sites, or over all others, and N behind it.
        grid, alpha, bound: as in ``threshold``.
        prior: n_0 >= 0.
        corrected: False leaves the correction out: without any claim, for comparison.
    """
    share = 1.0 if prior == 0 else cases / (cases + prior)
    correction = share * bound / (cases + 1) + (1 - share) * bound / (all_cases + 1)
    mixed = share * monotone(own) + (1 - share) * monotone(others)
    return _first(mixed + (correction if corrected else 0.0), grid, alpha)


def _first(risk: Array, grid: Array, alpha: float) -> float | None:
    good = np.flatnonzero(risk <= alpha + RISK_ROUNDING)
    return float(grid[good[0]]) if len(good) else None


STEPS = 200
GRID = np.linspace(0.0, 1.0, STEPS + 1)
"""Of lambda."""


@dataclass(frozen=True)
class Conformal(AfterStep):
    """The least lambda whose risk, a mean of losses in [0, 1], is at most alpha.

    "sets": a case's set holds every class whose score is at most lambda; the loss is 1 where the true class is not in
    it. "missed": a case (a pixel) is flagged where the probability of the second class (of the structure) is at least
    1 - lambda; the loss is 1 for a missed case of that class (the share of a structure's pixels that is missed).

    Attributes:
        alpha: the largest risk.
        loss: "auto" takes "missed" for masks and "sets" for classes.
        score: of "sets", see ``engine.after.conformal``.
        shrinkage: n_0: with so many cases a site's own curve and that of all count the same; 0: its own alone counts.
    """

    stages: ClassVar[tuple[str, ...]] = ("shared", "own")
    parameters: ClassVar[Mapping[str, tuple[float, float, str]]] = {"threshold": (0.0, 1.0, "lambda")}
    metrics: ClassVar[Mapping[str, tuple[float, float, str]]] = {
        "risk": (0.0, 1.0, "mean loss"),
        "size": (0.0, 1e6, "classes in a set, or the share of cases or pixels that are flagged"),
    }

    partial: ClassVar[tuple[str, ...]] = ("risk",)
    once: ClassVar[bool] = True

    alpha: Level = 0.1
    loss: Literal["auto", "sets", "missed"] = "auto"
    score: Score = "lac"
    shrinkage: Annotated[float, Range(0, 1e9)] = 19.0

    def missing(self, shape: Shape) -> str:
        if not shape.has_classes and not shape.has_masks:
            return "conformal needs class labels or masks, and this task has neither"
        if shape.has_masks:
            return "" if self.loss in ("auto", "missed") else "loss: expected missed, for this task has masks"
        if self.loss == "missed" and shape.classes != 2:
            return f"loss: missed needs two classes, and this task has {shape.classes}"
        return ""

    @property
    def needs(self) -> int:
        return fewest(self.alpha)

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Of masks the curves of loss and size (N, 2, G), and which images have a structure; else as they are."""
        if outputs.dim() < 4:
            return super().condense(outputs, targets)
        curves = [_of_image(p, t) for p, t in zip(outputs.sigmoid().double().cpu().numpy(), (targets > 0.5).cpu())]
        present = (targets > 0.5).flatten(1).any(1)
        return torch.from_numpy(np.stack(curves)), present.cpu()

    def length(self, shape: Shape) -> int:
        return 1 + len(GRID)

    def sums(self, cases: Cases, chosen: Chosen, shape: Shape) -> Array:
        losses, _ = self._curves(cases, shape)
        used = chosen & self.counts(cases, shape)
        return np.concatenate([[float(used.sum())], losses[used].sum(axis=0)])

    def counts(self, cases: Cases, shape: Shape) -> Chosen:
        targets = cases.targets.numpy()
        if shape.has_masks:
            return np.asarray(targets.astype(bool))
        return np.asarray(targets == 1) if self.loss == "missed" else np.ones(cases.n, dtype=bool)

    def proper(self, row: Array, shape: Shape) -> bool:
        """Losses of at most 1 that do not grow with lambda, and at its end, where all is flagged, are none."""
        falls = (np.diff(row[1:]) <= ROUNDING).all() and row[-1] <= ROUNDING
        return bool(falls and (row[1:] <= row[0] + ROUNDING).all())

    def shared(self, total: Array, shape: Shape) -> Fit:
        n = total[0]
        if n < fewest(self.alpha):
            return {}
        found = threshold(total[1:] / n, n, GRID, self.alpha)
        return {} if found is None else {"threshold": found}

    def own(self, cases: Cases, chosen: Chosen, total: Array, shape: Shape) -> tuple[Fit, str]:
        """From the site's curve, shrunk to that of all; where no lambda will do, that of all."""
        of_all, needed = self.shared(total, shape), fewest(self.alpha)
        if not of_all:
            return {}, f"all sites together need {needed} cases"
        row = self.sums(cases, chosen, shape)
        n = float(row[0])
        remark = "" if n >= needed else f"needs {needed} cases for a threshold from its own alone"
        if n < 1 or (self.shrinkage == 0 and remark):
            return of_all, remark
        curve, all_curve = monotone(row[1:] / n), total[1:] / total[0]
        if self.shrinkage == 0:
            found = threshold(curve, n, GRID, self.alpha)
        else:
            found = shrunk_threshold(curve, n, all_curve, total[0], GRID, self.alpha, prior=self.shrinkage)
        if found is None:
            return of_all, f"{remark}, and its few leave no room for a margin: has that of all"
        return {"threshold": found}, remark

    def threshold(self, fit: Fit) -> float | None:
        return 1.0 - fit["threshold"] if self.loss == "missed" and "threshold" in fit else None

    def values(self, cases: Cases, stage: str, fits: Mapping[int, Fit], shape: Shape) -> dict[str, Array]:
        """Loss and size of each case at its threshold; nan where there is no threshold, or nothing to lose."""
        losses, sizes = self._curves(cases, shape)
        at = np.full(cases.n, -1)
        for member in np.unique(cases.members.numpy()[: cases.n]):
            if fit := fit_of(fits, int(member)):
                at[cases.members.numpy() == member] = round(fit["threshold"] * STEPS)
        rows = np.arange(cases.n)
        nothing = at < 0
        risk = np.where(nothing | ~self.counts(cases, shape), np.nan, losses[rows, at])
        return {"risk": risk, "size": np.where(nothing, np.nan, sizes[rows, at])}

    def _curves(self, cases: Cases, shape: Shape) -> tuple[Array, Array]:
        """(N, G) loss and size at each lambda."""
        outputs = cases.outputs.numpy()
        if shape.has_masks:
            return outputs[:, 0], outputs[:, 1]
        labels, probabilities = cases.targets.numpy(), cases.outputs.softmax(1).numpy()
        if self.loss == "missed":
            flagged = _at_most(1.0 - probabilities[:, 1:2], GRID)
            return 1.0 - flagged, flagged
        scores = class_scores(probabilities, self.score)
        own = _at_most(scores[np.arange(len(labels)), labels][:, None], GRID)
        sizes = np.sum([_at_most(scores[:, c : c + 1], GRID) for c in range(scores.shape[1])], axis=0)
        return 1.0 - own, np.asarray(sizes, dtype=np.float64)


def _at_most(scores: Array, grid: Array) -> Array:
    return np.asarray((scores <= grid[None, :]).astype(np.float64))


def _of_image(probabilities: Array, truth: Tensor) -> Array:
    """(2, G): the share of true pixels that is missed, mean over the structures that are there, and of flagged pixels.

    Args:
        probabilities: (C, ...) of one image.
        truth: (C, ...) bool.
    """
    missed, flagged = [], []
    for p, t in zip(probabilities, truth.numpy()):
        flagged.append(_cumulative(1.0 - p.ravel()))
        if t.any():
            missed.append(1.0 - _cumulative(1.0 - p[t]))
    lost = np.mean(missed, axis=0) if missed else np.zeros(len(GRID))
    return np.stack([lost, np.mean(flagged, axis=0)])


def _cumulative(scores: Array) -> Array:
    """(G,) share of scores of at most each lambda; at lambda = 0 none."""
    return np.concatenate([[0.0], np.cumsum(counted(scores, STEPS)) / len(scores)])
