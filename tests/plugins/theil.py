# SPDX-License-Identifier: Apache-2.0
"""Theil's index over sites as a further number of the report, in one file: page, comparison, files and TensorBoard."""

from __future__ import annotations

import math

from fairflare.report.section import Quantity, Values


def theil(values: Values, higher_is_better: bool) -> float | None:
    """Mean of x / m * log(x / m) over sites, m their mean (Theil, 1967): 0 where all are equal, at most log K."""
    known = [value for value in values.values() if value is not None]
    mean = math.fsum(known) / len(known) if known else 0.0
    if mean <= 0 or min(known) < 0:
        return None
    return math.fsum(x / mean * math.log(x / mean) for x in known if x) / len(known)


THEIL = Quantity(
    "theil", "Theil's index over sites", better="lower", within=(0.0, math.inf), column="Theil's index", over=theil
)
