# SPDX-License-Identifier: Apache-2.0
"""How the columns of a table become features, as plain data: the same for training, prediction and exported models."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairflare.core.errors import DataError
from fairflare.core.validation import shown
from fairflare.data.readers.cases import DATES as DATES
from fairflare.data.readers.cases import EXCEL as EXCEL
from fairflare.data.readers.cases import ISO as ISO
from fairflare.data.readers.cases import SWAPPED as SWAPPED

Columns = Mapping[str, Sequence[str]]
"""Column -> its cells as text, "" where empty."""
Arrays = Mapping[str, np.ndarray]
"""Column -> float64 (N,) with nan where empty, dates as days; or text (N,)."""
LARGEST = 1e30
"""Size that a number stays below: a float32 holds it, its products with weights, and their sums."""
LONGEST_VALUE = 200
"""Characters of a category's level."""
WHOLE = re.compile(r"-?[0-9]+\.0")
GERMAN = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
"""A date as 31.12.2020, day first."""
CLOCK = re.compile(r"(?<=\d)[T ,].*")
TIME = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?[\d.]*\s*([ap]\.?m)?", re.IGNORECASE)
READ = (ISO, "DD.MM.YYYY")
FEW_DATES, FEW_DAYS = 30, 6
"""Dates, and different days of the month, from which on it is odd that none lies after the 12th."""


@dataclass(frozen=True)
class Feature:
    """One feature that a column makes.

    Attributes:
        values: 1 where the cell is one of these, else 0; numbers or texts. Empty: the number itself.
        missing: 1 where the cell is missing, else 0.
        zero_is_missing: a number of 0 stands for a missing value.
        other: 1 where the cell is none of ``values`` and not missing, else 0.
        no: words, in small letters, that stand for 0 as ``values`` do for 1; any other word is refused.
        since: the cell is a date, and so is this column's: the days from that one to it.
        limits: lowest and highest number; one beyond them counts as the nearer. Empty: there are none.
        separator: what stands between the codes of a cell, of which any may be one of ``values``. Empty: a cell is one.
    """

    column: str
    values: tuple[float | str, ...] = ()
    missing: bool = False
    zero_is_missing: bool = False
    other: bool = False
    no: tuple[str, ...] = ()
    since: str = ""
    limits: tuple[float, ...] = ()
    separator: str = ""

    @property
    def words(self) -> str:
        """Its name for a reader: "stage = II", "days from admission to surgery", "weight missing"."""
        if self.since:
            return f"days from {self.since} to {self.column}"
        if self.missing or self.other:
            return f"{self.column} {'missing' if self.missing else 'otherwise'}"
        return f"{self.column} = {' or '.join(map(str, self.values))}" if self.values else self.column

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, self.since) if self.since else (self.column,)

    @property
    def is_text(self) -> bool:
        return self.other or any(isinstance(value, str) for value in self.values)

    @property
    def name(self) -> str:
        """In words, e.g. "cp=2"."""
        if self.missing or self.other or self.since:
            what = "missing" if self.missing else "other" if self.other else f"days since {self.since}"
            return f"{self.column} {what}"
        return f"{self.column}={'|'.join(map(str, self.values))}" if self.values else self.column

    def of(self, arrays: Arrays) -> np.ndarray:
        """float64 (N,), nan where a number is missing."""
        cells = arrays[self.column]
        if self.separator:
            return self._of_lists(cells)
        if self.other:
            return (~np.isin(cells, self.values) & (cells != "")).astype(np.float64)
        if self.values:
            return np.isin(cells, self.values).astype(np.float64)
        if cells.dtype.kind in "UO":
            return (cells == "").astype(np.float64)
        if self.since:
            cells = cells - arrays[self.since]
        if self.zero_is_missing:
            cells = np.where(cells == 0, np.nan, cells)
        if self.limits:
            cells = cells.clip(self.limits[0], self.limits[1])
        return np.isnan(cells).astype(np.float64) if self.missing else cells

    def _of_lists(self, cells: np.ndarray) -> np.ndarray:
        """1 where one of a cell's codes is among ``values``, or with ``other`` where one is not."""
        place = {text: k for k, text in enumerate(dict.fromkeys(cells))}
        lists, values = [{*parts(text, self.separator)} for text in place], {*self.values}
        hits = np.array([bool(one - values if self.other else one & values) for one in lists], dtype=np.float64)
        return hits[[place[text] for text in cells]]


def stacked(features: Sequence[Feature], arrays: Arrays, n: int) -> np.ndarray:
    """float64 (N, len(features))."""
    return np.stack([one.of(arrays) for one in features], axis=1) if features else np.empty((n, 0))


def parsed(file: str, columns: Columns, features: Sequence[Feature], gaps: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns that ``features`` are made of, without ``gaps`` ("NA", and "sex=9" of a column); raises DataError."""
    text = {one.column for one in features if one.is_text}
    words = {one.column: {*one.values, *one.no} for one in features if one.no}
    levels = {one.column: set(one.values) for one in features if one.other}
    lists = {one.column for one in features if one.separator}
    dates = {name for one in features if one.since for name in one.columns}
    found = {}
    for name in dict.fromkeys(name for one in features for name in one.columns):
        if isinstance(columns[name], np.ndarray):  # an encoder's features
            found[name] = np.asarray(columns[name])
            continue
        codes = gaps_of(name, gaps) - {*gaps}
        cells = ["" if codes and plain(cell) in codes else cell for cell in columns[name]]
        if name in words:
            found[name] = as_words(file, name, ["" if cell in gaps else cell.lower() for cell in cells], words[name])
        elif name in lists:
            found[name] = np.array(["" if cell in gaps else cell for cell in cells], dtype=object)
        elif name in levels:
            cells = [plain(cell)[: LONGEST_VALUE + 1] for cell in cells]
            found[name] = np.array(["" if cell in gaps and cell not in levels[name] else cell for cell in cells], "U")
        else:
            cells = ["" if cell in gaps else cell for cell in cells]
            if name in text:
                found[name] = np.array(cells)
            else:
                found[name] = (as_days if name in dates else as_numbers)(file, name, cells)
    return found


def check_cells(
    file: str, name: str, fits: Sequence[bool] | np.ndarray, expected: str, columns: Columns, code: str = "label"
) -> None:
    """Raise DataError that names the first cell of a column that does not fit."""
    if not all(fits):
        row = int(np.argmin(fits))
        text = f"table {file}: row {row + 1}: {name}: expected {expected}, got {shown(columns[name][row])}"
        raise DataError(code, text)


def gaps_of(name: str, gaps: Collection[str]) -> set[str]:
    """What stands for a missing value in the column ``name``: of ``gaps`` "NA", and "9" of "sex=9" in sex."""
    return {*gaps, *(one.removeprefix(f"{name}=") for one in gaps)}


def plain(cell: str) -> str:
    """ "1.0" as "1", as codes are written."""
    return cell[:-2] if WHOLE.fullmatch(cell) else cell


def parts(cell: str, separator: str) -> list[str]:
    """The different codes of a cell, in its order; without a ``separator`` the cell itself. No empty ones."""
    found = (plain(one.strip())[: LONGEST_VALUE + 1] for one in (cell.split(separator) if separator else [cell]))
    return list(dict.fromkeys(filter(None, found)))


def as_words(file: str, name: str, cells: Sequence[str], known: Collection[float | str]) -> np.ndarray:
    """Text (N,), "" where a cell is empty; DataError names the first cell that is none of ``known``."""
    found = [plain(cell) for cell in cells]
    for i, cell in enumerate(found):
        if cell and cell not in known:
            some = ", ".join(sorted(map(str, known))[:8])
            raise DataError("number", f"table {file}: row {i + 1}: {name}: expected one of {some}, got {shown(cell)}")
    return np.array(found, "U")


def as_days(file: str, name: str, cells: Sequence[str]) -> np.ndarray:
    """float64 (N,), days since the year 1, nan where a cell is empty; DataError names the first that is no date."""
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell:
            try:
                found[i] = _days(cell)
            except ValueError:
                text = f"table {file}: row {i + 1}: {name}: expected a date as YYYY-MM-DD, got {shown(cell)}"
                lines = [f"dates: {json.dumps({name: form})}" for form in date_forms(cells)]
                text += f"; a line of the site's file says how it is read: {' or '.join(lines)}" if lines else ""
                raise DataError("number", text) from None
    return found


def _days(cell: str) -> float:
    if at := GERMAN.fullmatch(cell):
        day, month, year = map(int, at.groups())
        return float(datetime.date(year, month, day).toordinal())
    time = datetime.datetime.fromisoformat(cell)
    return time.toordinal() + (time.hour * 3600 + time.minute * 60 + time.second) / 86400


def iso_date(cell: str, form: str) -> str:
    """A ``cell`` that is written as ``form``, a key of ``DATES``, as YYYY-MM-DD, with Thh:mm:ss if known; else ""."""
    day = CLOCK.sub("", cell)
    with contextlib.suppress(ValueError):
        if form == EXCEL:
            seconds = datetime.timedelta(seconds=round(86400 * float(day)))
            found = datetime.datetime(1899, 12, 30) + seconds if 1 <= seconds.days < 80_000 else None
        else:
            found = datetime.datetime.strptime(day, DATES[form]) if form != "YYYYMMDD" or len(day) == 8 else None
            found = found and found + _clock(cell[len(day) :])
        return found.isoformat().removesuffix("T00:00:00") if found else ""
    return ""


def _clock(text: str) -> datetime.timedelta:
    """The time of day in what stands behind a date; 0 where there is none."""
    if not (at := TIME.search(text)):
        return datetime.timedelta()
    hours = int(at[1]) % 12 + 12 * at[4].lower().startswith("p") if at[4] else int(at[1])
    return datetime.timedelta(hours=hours, minutes=int(at[2]), seconds=int(at[3] or 0))


def date_forms(cells: Sequence[str]) -> list[str]:
    """Those of ``DATES`` that every filled cell has; day and month of ISO's change places only where no day is late."""
    filled = [cell for cell in cells if cell]
    texts = {*filled}
    found = [form for form in DATES if texts and all(iso_date(text, form) for text in texts)]
    if ISO in found and SWAPPED in found:
        days = {iso_date(text, ISO)[8:10] for text in texts}
        found = [form for form in found if form != SWAPPED or (len(filled) >= FEW_DATES and len(days) > FEW_DAYS)]
    return found


def as_numbers(file: str, name: str, cells: Sequence[str]) -> np.ndarray:
    """float64 (N,), nan where a cell is empty; DataError names the first that is no number below ``LARGEST``."""
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell:
            try:
                found[i] = float(cell if "_" not in cell else "no number")
            except ValueError:
                text = f"table {file}: row {i + 1}: {name}: expected a number, got {shown(cell)}"
                raise DataError("number", text) from None
            if not math.isfinite(found[i]):
                raise DataError(
                    "number", f"table {file}: row {i + 1}: {name}: expected a finite number, got {shown(cell)}"
                )
            if abs(found[i]) >= LARGEST:
                text = f"table {file}: row {i + 1}: {name}: expected a number below 1e30 in size, got {shown(cell)}"
                raise DataError("number", text)
    return found
