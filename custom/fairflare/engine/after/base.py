# SPDX-License-Identifier: Apache-2.0
"""What every step after the last round is: sums of calibration cases, and what a site makes of its own and of all."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fairflare.core.types import MOST_EXAMPLES, Number
from fairflare.core.validation import Range
from fairflare.engine.evaluation import Cases as Cases
from fairflare.engine.evaluation import Chosen as Chosen
from fairflare.engine.evaluation import plain as plain

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

Array = npt.NDArray[np.float64]
Fit = Mapping[str, float]
"""Name -> value of what was fitted; empty: there was not enough to fit it from."""
CALIBRATION = Literal["val", "train"]
BY = Literal["site", "group"]
ROUNDING = 1e-6


@dataclass(frozen=True)
class Shape:
    """What server and sites know alike of a task."""

    classes: int
    has_classes: bool
    groups: tuple[str, ...] = ()
    has_masks: bool = False


@dataclass(frozen=True)
class AfterStep(ABC):
    """A frozen dataclass of parameters whose methods are pure.

    Attributes:
        by: who gets parameters of its own: each "site", from its own cases and those of all, or each "group" of
            patients, from the cases of all sites.
        split: the calibration cases: "val", or "train" where there are no others. On cases that a model was trained on
            it looks better than it is.
    """

    stages: ClassVar[tuple[str, ...]]
    """What is compared on the test split, in its order; "own" is the last."""
    parameters: ClassVar[Mapping[str, tuple[float, float, str]]]
    """Name of a fitted number -> its least and largest value, and its meaning."""
    metrics: ClassVar[Mapping[str, tuple[float, float, str]]]
    """Name of a mean over test cases -> the same."""

    partial: ClassVar[tuple[str, ...]] = ()
    """Metrics that only some cases have; their number is sent too."""
    once: ClassVar[bool] = False
    """Whether one case of each patient calibrates: a guarantee for new patients needs exchangeable ones."""

    by: BY = "site"
    split: CALIBRATION = "val"

    @staticmethod
    def shape_of(task: Task, groups: tuple[str, ...]) -> Shape:
        """What server and sites know alike of a task whose sites tell ``groups`` apart."""
        return Shape(len(task.classes), task.kind.has_classes, groups, task.kind.has_masks)

    @abstractmethod
    def missing(self, shape: Shape) -> str:
        """What the task lacks for this step, in words that end a sentence; empty when nothing is missing."""

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What is kept of one batch of outputs (N, ...) and targets."""
        return plain(outputs, targets)

    @abstractmethod
    def length(self, shape: Shape) -> int:
        """Numbers in one row of sums."""

    @abstractmethod
    def sums(self, cases: Cases, chosen: Chosen, shape: Shape) -> Array:
        """(length,) finite and >= 0, the number of cases first: sums over the chosen cases."""

    def counts(self, cases: Cases, shape: Shape) -> Chosen:
        """(N,) which cases sums and ``partial`` metrics are of; all, unless a step says otherwise."""
        return np.ones(cases.n, dtype=bool)

    def kinds(self, cases: Cases, shape: Shape) -> tuple[Chosen, ...]:
        """(N,) each: the kinds of cases whose numbers a row tells."""
        counts = self.counts(cases, shape)
        return counts, ~counts

    def coarse(self, row: Array, shape: Shape, least: int) -> Array:
        """``row`` as it leaves where it is not hidden in a sum over sites: nothing in it is of fewer cases."""
        return row

    @abstractmethod
    def proper(self, row: Array, shape: Shape) -> bool:
        """Whether ``row``, finite and >= 0, can be the sums of one site."""

    @abstractmethod
    def shared(self, total: Array, shape: Shape) -> Fit:
        """What follows from the sums of all sites for everyone; pure, the same at server and sites."""

    @abstractmethod
    def own(self, cases: Cases, chosen: Chosen, total: Array, shape: Shape) -> tuple[Fit, str]:
        """What a site fits for itself, and a remark ("": none)."""

    @abstractmethod
    def values(self, cases: Cases, stage: str, fits: Mapping[int, Fit], shape: Shape) -> dict[str, Array]:
        """Metric -> (N,) value of each case, nan where it has none; ``fits`` go by group's index, -1: all others."""

    def changed(self, cases: Cases, fits: Mapping[int, Fit], shape: Shape) -> Array | None:
        """(N, C) of class labels once ``fits`` hold, see ``values``; None: the step leaves them as they are."""
        return None

    def threshold(self, fit: Fit) -> float | None:
        """The risk of the second class from which on a site flags a case once ``fit`` holds; None: as before."""
        return None

    @property
    def needs(self) -> int:
        """The fewest calibration cases that anything can be fitted to without those of others; 1 unless it says so."""
        return 1

    def reports(self, shape: Shape, *, secure: bool = False) -> tuple[Number, ...]:
        """The numbers that a site may send of what came of it; with secure sums its own parameters stay there."""
        found = [Number(f"shared.{name}", *bounds) for name, bounds in self.parameters.items()]
        count = (0.0, float(MOST_EXAMPLES))
        found.append(Number("n_all", *count, "calibration cases of all"))
        if not secure:
            found += [Number(f"own.{name}", *bounds) for name, bounds in self.parameters.items()]
            found.append(Number("n_calibration", *count, "the site's calibration cases"))
        means = [Number(f"{s}.{name}", *bounds) for s in self.stages for name, bounds in self.metrics.items()]
        means.append(Number("n", *count, "cases of the test split"))
        means += [Number(f"n_{name}", *count, f"cases of the test split that have a {name}") for name in self.partial]
        per_group = list(means)
        if self.by == "group":
            per_group += [n for n in found if n.name.startswith("shared.") or n.name == "n_all"]
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


Level = Annotated[float, Range(0.001, 0.5)]


def fit_of(fits: Mapping[int, Fit], member: int) -> Fit:
    return fits.get(member) or fits.get(-1, {})
