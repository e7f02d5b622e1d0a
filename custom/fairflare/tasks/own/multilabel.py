# SPDX-License-Identifier: Apache-2.0
"""Several labels at once on a user's own table."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fairflare.core.validation import Names
from fairflare.tasks.base import expect
from fairflare.tasks.kinds.labels import Labels, kind_of
from fairflare.tasks.own.tabular import Tabular


@dataclass(frozen=True)
class MultiLabel(Tabular):
    """One table per site, as ``Tabular`` describes it, whose rows have any number of labels.

    Args:
        labels: their names.
        label: a column whose cells list labels, as edema|effusion; empty: each label has a column of its own of 1 and
            0, or yes and no. What is not in a list is not there; an empty cell says nothing and counts nowhere.
        nothing: a word in the column that stands for none of the labels.
        thresholds: "LABEL=NUMBER; ...": the probability from which on ``fairflare predict`` says that a label is
            there; 0.5 of others.
    """

    name = "multilabel"
    title = "Several labels at once on your own table"
    headline = Labels.headline
    fewest = 1

    labels: Names = "finding"
    label: str = ""
    nothing: str = ""
    thresholds: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("labels", not self.numbered, "the labels' names", self.labels)
        dict(self.kind.thresholds)  # raises where options cannot be read

    @property
    def kind(self) -> Labels:  # type: ignore[override]  # depends on options
        return kind_of(self.classes, self.nothing, self.thresholds)

    @property
    def outcome_columns(self) -> tuple[str, ...]:
        return (self.label,) if self.label else self.classes

    def _targets(self, file: str, columns: dict[str, list[str]]) -> Tensor:
        return self.kind.of_cells(file, columns, self.outcome_columns, self.classes)
