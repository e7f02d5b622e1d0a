# SPDX-License-Identifier: Apache-2.0
"""Classes in an order on a user's own table."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.tasks.kinds.grades import OwnGrades
from fairflare.tasks.own.tabular import Tabular


@dataclass(frozen=True)
class Ordinal(OwnGrades, Tabular):
    """One table per site, as ``Tabular`` describes it, whose classes have an order."""

    name = "ordinal"
    title = "Classes in an order on your own table"
