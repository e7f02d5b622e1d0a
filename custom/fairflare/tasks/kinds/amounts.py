# SPDX-License-Identifier: Apache-2.0
"""Regression: every case has an amount, trained by squared error, or a count, trained by Poisson deviance.

Amounts are trained on one scale for all sites, in spreads from the mean, and told in their own units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.core.types import Objective, SiteData
from fairflare.core.validation import Names, shown
from fairflare.core.validation import expected as expect
from fairflare.data.readers.table_features import LARGEST, as_numbers, check_cells
from fairflare.functional.intervals import Array
from fairflare.tasks import metrics_regression  # noqa: F401  (a job carries the metrics with the kind)
from fairflare.tasks.kind import Baseline, Cases, TaskKind
from fairflare.tasks.kinds.own import OwnData

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

DIGITS = 9
"""Significant ones of the mean and spread that leave a site."""
HALF = 0.5
LIMIT = 20.0
"""Logarithm of a rate from which on it grows with it linearly: a first step that is too long overflows nothing."""


@dataclass(frozen=True)
class AmountCases(Cases):
    """Outputs (N, 1) and targets (N,) in spreads from the mean.

    Attributes:
        mean: of the outcome, in its units.
        spread: of the outcome, > 0.
    """

    mean: float = 0.0
    spread: float = 1.0

    @cached_property
    def predicted(self) -> Array:
        """(N,) in the outcome's units."""
        return self.mean + self.spread * self.outputs[:, 0].double().numpy()

    @cached_property
    def truth(self) -> Array:
        """(N,) likewise."""
        return self.mean + self.spread * self.targets.double().numpy()

    @cached_property
    def errors(self) -> Array:
        """(N,) predicted less true."""
        return self.predicted - self.truth

    @property
    def centre(self) -> float:
        """The mean of the cases' outcomes."""
        return float(self.truth.mean())

    @property
    def tolerance(self) -> Array | float:
        """The largest error of a close prediction."""
        return HALF * self.spread


@dataclass(frozen=True)
class CountCases(AmountCases):
    """Outputs (N, 1), logarithms of rates; targets (N,) counts, or (N, 2) counts and exposures."""

    @property
    def finite(self) -> bool:
        return bool(torch.isfinite(_expected(self.outputs.double(), self.targets.double())).all())

    @cached_property
    def predicted(self) -> Array:
        return _expected(self.outputs.double(), self.targets.double()).numpy()

    @cached_property
    def truth(self) -> Array:
        return _counts(self.targets.double())[0].numpy()

    @property
    def tolerance(self) -> Array:
        """(N,) 1, or half of the count."""
        return np.maximum(1.0, HALF * self.truth)

    @cached_property
    def deviances(self) -> Array:
        """(N,)."""
        return poisson_deviance(self.outputs.double(), self.targets.double(), reduction="none").numpy()


def squared_error(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """(y - f)^2 of outputs f (N, 1), called so as every objective does, and targets y (N,)."""
    each = (logits[:, 0] - targets) ** 2
    return each.mean() if reduction == "mean" else each


def poisson_deviance(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """2 (y log(y / m) - y + m) of counts y and what is expected, m = e exp(f) (McCullagh and Nelder, 1989, 2.3).

    Logits f (N, 1) are logarithms of rates per unit of exposure; targets y (N,), or y and exposures e > 0 as (N, 2).
    """
    counts, exposures = _counts(targets)
    saturated = torch.xlogy(counts, counts) - counts
    each = 2 * (saturated - counts * (logits[:, 0] + exposures.log()) + _expected(logits, targets))
    return each.mean() if reduction == "mean" else each


def _counts(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Counts and exposures (N,)."""
    return (targets, torch.ones_like(targets)) if targets.dim() == 1 else (targets[:, 0], targets[:, 1])


def _expected(outputs: Tensor, targets: Tensor) -> Tensor:
    """(N,) counts."""
    logarithms = outputs[:, 0]
    return _counts(targets)[1] * logarithms.clamp(max=LIMIT).exp() * (1 + (logarithms - LIMIT).clamp(min=0.0))


@dataclass(frozen=True)
class Amounts(TaskKind):
    """An amount, such as a volume or an expense.

    Attributes:
        mean: that targets are centred by, in the outcome's units.
        spread: that they are divided by, > 0.
    """

    name: str = "regression"
    metrics: tuple[str, ...] = ("rmse", "mae", "r2", "calibration_slope", "within")
    headline: str = "rmse"
    score: str = "within"
    mean: float = 0.0
    spread: float = 1.0

    case_type: ClassVar[type[AmountCases]] = AmountCases
    family: ClassVar[str] = "gaussian"
    outputs: ClassVar[str] = "amounts (N, 1) in spreads from the mean"
    targets: ClassVar[str] = "amounts (N,) in spreads from the mean"

    def lists(self, classes: Sequence[str]) -> dict[str, Any]:
        return {"masks": False, "classes": classes, "label": self._label}

    def _label(self, given: Any) -> float:
        if type(given) not in (int, float) or not abs(given) < LARGEST:
            raise ValueError("expected a finite number")
        return (given - self.mean) / self.spread

    def of_cells(
        self, file: str, columns: Mapping[str, Sequence[str]], names: Sequence[str], classes: Sequence[str]
    ) -> Tensor:
        return torch.from_numpy((as_numbers(file, names[0], columns[names[0]]) - self.mean) / self.spread).float()

    def remarks(self, targets: Tensor, classes: Sequence[str]) -> Iterator[tuple[str, str]]:
        if len(torch.unique(targets, dim=0)) == 1:
            text = "have the same outcome: R2 and calibration slope are not defined on them"
            yield "one_outcome", f"all {len(targets)} examples {text}"

    def summary(self, targets: Tensor) -> list[float] | None:
        values = self.mean + self.spread * targets.double()
        found = [float(f"{float(one):.{DIGITS}g}") for one in (values.mean(), values.std(correction=0))]
        return found if found[1] > 0 else None

    def head(self, classes: Sequence[str]) -> tuple[int, dict[str, Any]]:
        return 1, {}

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        return squared_error

    def cases(self, outputs: Tensor, targets: Tensor, classes: Sequence[str]) -> AmountCases:
        return self.case_type(outputs.detach().cpu(), targets.cpu(), tuple(classes), self.mean, self.spread)

    def answer(self, outputs: Tensor, classes: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
        return [f"predicted_{classes[0]}"], (self.mean + self.spread * outputs.double()).tolist()

    def exported(self, classes: Sequence[str]) -> tuple[str, dict[str, Any], list[str], str]:
        words = f"the predicted {classes[0]} (N, 1), in its units"
        return "Scaled", {"mean": self.mean, "spread": self.spread}, [f"predicted_{classes[0]}"], words

    def baseline(self, task: Task, data: SiteData) -> Baseline:
        targets = torch.cat([batch.targets.cpu() for batch in data.fixed("train", 256)]).double()
        constant = self._constant(targets)
        return Baseline(lambda inputs: torch.full((len(inputs), 1), constant))

    def _constant(self, targets: Tensor) -> float:
        return float(targets.mean())


@dataclass(frozen=True)
class Counts(Amounts):
    """A count, such as days or events, maybe with an exposure (person-years, beds) that it grows with."""

    metrics: tuple[str, ...] = ("rmse", "mae", "deviance", "r2", "calibration_slope", "within")
    headline: str = "deviance"

    case_type = CountCases
    family: ClassVar[str] = "poisson"
    outputs: ClassVar[str] = "logarithms of rates (N, 1)"
    targets: ClassVar[str] = "counts (N,), or counts and exposures (N, 2)"

    def _label(self, given: Any) -> float:
        if type(given) not in (int, float) or not 0 <= given < LARGEST or given != int(given):
            raise ValueError("expected a whole number of at least 0")
        return float(given)

    def of_cells(
        self, file: str, columns: Mapping[str, Sequence[str]], names: Sequence[str], classes: Sequence[str]
    ) -> Tensor:
        found = [as_numbers(file, name, columns[name]) for name in names]
        whole = (found[0] >= 0) & (found[0] % 1 == 0)
        check_cells(file, names[0], whole, "a whole number of at least 0", columns, "number")
        if len(names) > 1:
            check_cells(file, names[1], found[1] > 0, "an exposure above 0", columns, "number")
        return torch.from_numpy(found[0] if len(names) == 1 else np.stack(found, axis=1)).float()

    def summary(self, targets: Tensor) -> list[float] | None:
        return None

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        return poisson_deviance

    def answer(self, outputs: Tensor, classes: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
        rates = _expected(outputs.double(), torch.ones(len(outputs), dtype=torch.float64))
        return [f"predicted_{classes[0]}"], rates[:, None].tolist()

    def exported(self, classes: Sequence[str]) -> tuple[str, dict[str, Any], list[str], str]:
        return "Rate", {"limit": LIMIT}, [f"predicted_{classes[0]}"], f"{classes[0]} (N, 1) for an exposure of 1"

    def _constant(self, targets: Tensor) -> float:
        counts, exposures = _counts(targets)
        return math.log(max(float(counts.sum() / exposures.sum()), 1e-9))


@cache
def kind_of(amount: str, scale: str) -> Amounts:
    """The kind that the options ``amount`` ("amount" or "count") and ``outcome_scale`` of a task ask for.

    Raises:
        UserError: the scale is not two finite numbers, the second above 0, or is given for counts.
    """
    if amount == "count":
        expect("outcome_scale", not scale, "none of counts, which have no scale", scale)
        return Counts()
    try:
        mean, spread = map(float, scale.split(",")) if scale else (0.0, 1.0)
    except ValueError:
        raise UserError(f"outcome_scale: expected MEAN,SPREAD, got {shown(scale)}") from None
    fits = abs(mean) < LARGEST and 0 < spread < LARGEST
    expect("outcome_scale", fits, "a finite mean, and a spread above 0", scale)
    return Amounts(mean=mean, spread=spread)


@dataclass(frozen=True)
class OwnAmounts(OwnData):
    """What own tables and own images with one number each share.

    Args:
        labels: what the amount is called in results.
        amount: "amount": trained by squared error; "count": whole numbers from 0, by Poisson deviance with a log link.
        outcome_scale: "MEAN,SPREAD" in the outcome's units that amounts are trained in; empty: what the sites have
            agreed on, from their training cases; where a task is made without a plan, "0,1".
    """

    fewest: ClassVar[int] = 1

    labels: Names = "outcome"
    amount: Literal["amount", "count"] = "amount"
    outcome_scale: str = ""

    def _check_own(self, fewest: int) -> None:
        super()._check_own(fewest)
        expect("labels", len(self.classes) == 1 and not self.numbered, "one name", self.labels)
        kind_of(self.amount, self.outcome_scale)  # raises where it cannot be read

    @property
    def kind(self) -> Amounts:  # type: ignore[override]  # depends on options
        return kind_of(self.amount, self.outcome_scale)

    @property
    def headline(self) -> str:  # type: ignore[override]  # depends on an option
        return self.kind.headline
