# SPDX-License-Identifier: Apache-2.0
"""Other outcomes than one class on a user's own table: an amount or a count, several labels, classes in an order."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fairflare.tasks.base import expect
from fairflare.tasks.kinds.amounts import OwnAmounts
from fairflare.tasks.kinds.grades import OwnGrades
from fairflare.tasks.kinds.labels import OwnLabels
from fairflare.tasks.own.tabular import Tabular


@dataclass(frozen=True)
class Regression(OwnAmounts, Tabular):  # type: ignore[override]  # its headline depends on an option
    """One table per site, as ``Tabular`` describes it, whose column ``label`` holds an amount or a count.

    Args:
        exposure: of a count, the column that it grows with (person-years); above 0. Empty: 1 for everybody.
    """

    name = "regression"
    title = "Regression on your own table"

    exposure: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("exposure", not self.exposure or self.amount == "count", "none unless amount=count", self.exposure)

    @property
    def outcome_columns(self) -> tuple[str, ...]:
        return (self.label, self.exposure) if self.exposure else (self.label,)

    def _targets(self, file: str, columns: dict[str, list[str]]) -> Tensor:
        return self.kind.of_cells(file, columns, self.outcome_columns, self.classes)


@dataclass(frozen=True)
class MultiLabel(OwnLabels, Tabular):
    """One table per site, as ``Tabular`` describes it, whose rows have any number of labels.

    Args:
        label: a column whose cells list labels, as edema|effusion; empty: each label has a column of its own of 1 and
            0, or yes and no. What is not in a list is not there; an empty cell says nothing and counts nowhere.
    """

    name = "multilabel"
    title = "Several labels at once on your own table"

    label: str = ""

    @property
    def outcome_columns(self) -> tuple[str, ...]:
        return (self.label,) if self.label else self.classes

    def _targets(self, file: str, columns: dict[str, list[str]]) -> Tensor:
        return self.kind.of_cells(file, columns, self.outcome_columns, self.classes)


@dataclass(frozen=True)
class Ordinal(OwnGrades, Tabular):
    """One table per site, as ``Tabular`` describes it, whose classes have an order."""

    name = "ordinal"
    title = "Classes in an order on your own table"
