# SPDX-License-Identifier: Apache-2.0
"""Several labels at once on a user's own table."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.tasks.kinds.labels import OwnLabels
from fairflare.tasks.own.tabular import Tabular


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
