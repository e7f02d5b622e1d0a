# SPDX-License-Identifier: Apache-2.0
"""Dates as hospitals write them, as YYYY-MM-DD."""

from __future__ import annotations

import re
from datetime import date

import pandas as pd

YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})([ T].*)?")
YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})([ T,].*)?")


def of_sites(cells: pd.Series, sites: pd.Series) -> pd.Series | None:
    """``as_iso`` for each site by itself, as one may write days first and another months; None where one is unclear."""
    found = [as_iso(own) for _, own in cells.groupby(sites.to_numpy())]
    known = [own for own in found if own is not None]
    return pd.concat(known).reindex(cells.index) if len(known) == len(found) else None


def is_date(cell: str) -> bool:
    """Whether a cell looks like a day of a calendar."""
    return bool(YEAR_FIRST.fullmatch(cell) or YEAR_LAST.fullmatch(cell))


def as_iso(cells: pd.Series) -> pd.Series | None:
    """``cells`` as YYYY-MM-DD, "" where empty or no day; None where nothing says if day or month comes first."""
    last = [match for cell in cells if (match := YEAR_LAST.fullmatch(cell))]
    if len({match[2] for match in last}) > 1:
        return None
    first, second = ([int(match[k]) for match in last] for k in (1, 3))
    points = any(match[2] == "." for match in last)
    day_first = points or max(first, default=0) > 12
    month_first = max(second, default=0) > 12
    if last and day_first == month_first:
        return None

    def iso(cell: str) -> str:
        if match := YEAR_FIRST.fullmatch(cell):
            year, month, day = int(match[1]), int(match[2]), int(match[3])
        elif match := YEAR_LAST.fullmatch(cell):
            one, two, year = int(match[1]), int(match[3]), int(match[4])
            day, month = (one, two) if day_first else (two, one)
        else:
            return ""
        try:
            return date(year, month, day).isoformat() if 1800 <= year <= 2200 else ""
        except ValueError:
            return ""

    return cells.map(iso)
