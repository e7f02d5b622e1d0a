# SPDX-License-Identifier: Apache-2.0
"""Regression on a user's own table: an amount, or a count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fairflare.core.validation import Names
from fairflare.tasks.base import expect
from fairflare.tasks.kinds.amounts import Amounts, kind_of
from fairflare.tasks.own.tabular import Tabular


@dataclass(frozen=True)
class Regression(Tabular):
    """One table per site, as ``Tabular`` describes it, whose column ``label`` holds an amount or a count.

    Args:
        labels: what the amount is called in results.
        amount: "amount": trained by squared error; "count": whole numbers from 0, by Poisson deviance with a log link.
        outcome_scale: "MEAN,SPREAD" in the outcome's units that amounts are trained in; empty: what the sites have
            agreed on, from their training rows; where a task is made without a plan, "0,1".
        exposure: of a count, the column that it grows with (person-years); above 0. Empty: 1 for everybody.
    """

    name = "regression"
    title = "Regression on your own table"
    fewest = 1

    labels: Names = "outcome"
    amount: Literal["amount", "count"] = "amount"
    outcome_scale: str = ""
    exposure: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("labels", len(self.classes) == 1 and not self.numbered, "one name", self.labels)
        expect("exposure", not self.exposure or self.amount == "count", "none unless amount=count", self.exposure)

    @property
    def kind(self) -> Amounts:  # type: ignore[override]  # depends on options
        return kind_of(self.amount, self.outcome_scale)

    @property
    def headline(self) -> str:  # type: ignore[override]  # depends on an option
        return self.kind.headline

    @property
    def outcome_columns(self) -> tuple[str, ...]:
        return (self.label, self.exposure) if self.exposure else (self.label,)

    def _targets(self, file: str, columns: dict[str, list[str]]) -> Tensor:
        return self.kind.of_cells(file, columns, self.outcome_columns, self.classes)
