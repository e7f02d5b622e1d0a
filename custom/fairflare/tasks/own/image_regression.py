# SPDX-License-Identifier: Apache-2.0
"""Regression on a user's own images: an amount, or a count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairflare.core.validation import Names
from fairflare.tasks.base import expect
from fairflare.tasks.kinds.amounts import Amounts, kind_of
from fairflare.tasks.own.classification import Classification


@dataclass(frozen=True)
class ImageRegression(Classification):
    """2D images with one number each, as the options of ``Classification`` and those below say.

    Args:
        labels: what the amount is called in results.
        amount: see ``tasks.own.regression``.
        outcome_scale: likewise.
    """

    name = "image-regression"
    title = "Regression on your own images"
    fewest = 1

    labels: Names = "outcome"
    amount: Literal["amount", "count"] = "amount"
    outcome_scale: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("labels", len(self.classes) == 1 and not self.numbered, "one name", self.labels)
        kind_of(self.amount, self.outcome_scale)  # raises where it cannot be read

    @property
    def kind(self) -> Amounts:  # type: ignore[override]  # depends on options
        return kind_of(self.amount, self.outcome_scale)

    @property
    def headline(self) -> str:  # type: ignore[override]  # depends on an option
        return self.kind.headline
