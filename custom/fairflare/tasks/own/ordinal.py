# SPDX-License-Identifier: Apache-2.0
"""Classes in an order on a user's own table."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.core.validation import Names
from fairflare.tasks.kinds.grades import GRADES
from fairflare.tasks.own.tabular import Tabular


@dataclass(frozen=True)
class Ordinal(Tabular):
    """One table per site, as ``Tabular`` describes it, whose classes have an order.

    Args:
        labels: the classes' names from the lowest to the highest, at least three; or their number.
    """

    name = "ordinal"
    title = "Classes in an order on your own table"
    kind = GRADES
    headline = GRADES.headline
    fewest = 3

    labels: Names = "3"
