# SPDX-License-Identifier: Apache-2.0
"""Regression on a user's own table: an amount, or a count."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.tasks.base import expect
from fairflare.tasks.kinds.amounts import OwnAmounts
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
