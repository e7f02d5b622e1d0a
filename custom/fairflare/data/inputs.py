# SPDX-License-Identifier: Apache-2.0
"""How a file of a user's becomes what a task's network takes: the same functions that prepare training examples."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import shown

if TYPE_CHECKING:  # a run on tables reads no images
    from fairflare.data.readers.pictures import Reader
    from fairflare.data.readers.volumes import VolumeReader

Features = tuple[np.ndarray, np.ndarray]
"""Numbers float64 (N, n), nan where missing, which a site scales; plain float32 (N, m), taken as they are."""
LONGEST = 100_000
"""Features of a table."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """How a site prepares numbers: gaps become ``fill``, then (x - mean) / std; a spread of 0 is only centred.

    Attributes:
        fill: float64 (n,).
        mean: float64 (n,).
        std: float64 (n,), >= 0.
    """

    fill: Tensor
    mean: Tensor
    std: Tensor

    def __call__(self, rows: np.ndarray) -> Tensor:
        """Float64 (N, n) with nan -> float32 (N, n)."""
        if not rows.shape[1]:
            return torch.empty(rows.shape)
        filled = torch.from_numpy(np.where(np.isnan(rows), self.fill.numpy(), rows))
        spread = torch.where(self.std > 0, self.std, torch.ones_like(self.std))
        return ((filled - self.mean) / spread).float()

    def distance(self, rows: np.ndarray) -> np.ndarray:
        """(N, n): how many standard deviations each number is from the mean; 0 where missing or without a spread."""
        spread = self.std.numpy()
        far = np.abs(rows - self.mean.numpy()) / np.where(spread > 0, spread, np.inf)
        return np.asarray(np.where(np.isnan(rows), 0.0, far))

    def to_json(self) -> dict[str, list[float]]:
        """The three as lists; ``from_json`` reads back the same bits."""
        return {"fill": self.fill.tolist(), "mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_json(cls, content: Any, n: int) -> Scaling:
        """Read ``to_json`` back, from whoever it comes; raises UserError unless it is of ``n`` finite numbers each."""
        found = []
        for key in ("fill", "mean", "std"):
            values: Any = content.get(key) if isinstance(content, dict) else None
            fits = isinstance(values, list) and len(values) == n <= LONGEST
            if not fits or not all(type(v) in (int, float) and math.isfinite(v) for v in values):
                raise UserError(f"scaling: expected {n} finite numbers as {key!r}")
            found.append(torch.tensor(values, dtype=torch.float64))
        if n and float(found[2].min()) < 0:
            raise UserError("scaling: expected standard deviations of at least 0")
        return cls(*found)

    @classmethod
    def of(cls, train: np.ndarray) -> Scaling:
        """Median, mean and spread (population) of the rows; a column without a single value counts as all zeros.

        Args:
            train: float64 (n, features), nan where missing.
        """
        if not train.shape[1]:
            return cls(*(torch.empty(0, dtype=torch.float64) for _ in range(3)))
        empty = np.isnan(train).all(0)
        medians = np.nanmedian(np.where(empty, 0.0, train), axis=0)
        filled = torch.from_numpy(np.where(np.isnan(train), medians, train))
        return cls(torch.from_numpy(medians), filled.mean(0), filled.std(0, correction=0))


@dataclass(frozen=True)
class TableInputs:
    """How the rows of a table become features.

    Attributes:
        numbers: features that a site scales.
        plain: features that are taken as they are.
        known: column -> the values that it may have; empty cells are always allowed.
        gaps: words that stand for a missing number.
        attributes: columns -> sensitive attribute -> N values, "" where unknown.
        fixed: constants that every site scales by; None: each by its own training rows.
    """

    numbers: tuple[Feature, ...]
    plain: tuple[Feature, ...] = ()
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    attributes: Callable[[Columns], Mapping[str, Sequence[str]]] = lambda columns: {}
    fixed: Scaling | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in (*self.numbers, *self.plain) for name in one.columns))

    def features(self, file: str, columns: Columns) -> Features:
        """Numbers and plain features of a table's cells; raises DataError."""
        arrays = parsed(file, columns, (*self.numbers, *self.plain), self.gaps)
        return self.of(arrays)

    def of(self, arrays: Arrays) -> Features:
        """The same of parsed cells."""
        n = len(next(iter(arrays.values())))
        return stacked(self.numbers, arrays, n), stacked(self.plain, arrays, n).astype(np.float32)


@dataclass(frozen=True)
class ImageInputs:
    """How an image file becomes what the network takes.

    Attributes:
        reader: from a file to uint8 (channels, size, size), or (1, X, Y, Z) of volumes.
        mean: per channel on [0, 1]; as many as the network has channels.
        std: likewise, > 0.
        volumes: whether a file is one volume.
    """

    reader: Reader | VolumeReader
    mean: tuple[float, ...]
    std: tuple[float, ...]
    volumes: bool = False


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


@dataclass(frozen=True)
class Feature:
    """One feature that a column makes.

    Attributes:
        column: its name.
        values: 1 where the cell is one of these, else 0; numbers or texts. Empty: the number itself.
        missing: 1 where the cell is missing, else 0.
        zero_is_missing: a number of 0 stands for a missing value.
        other: 1 where the cell is none of ``values`` and not missing, else 0.
        no: words, in small letters, that stand for 0 as ``values`` do for 1; any other word is refused.
        since: the cell is a date, and so is this column's: the days from that one to it.
    """

    column: str
    values: tuple[float | str, ...] = ()
    missing: bool = False
    zero_is_missing: bool = False
    other: bool = False
    no: tuple[str, ...] = ()
    since: str = ""

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
        if self.other:
            return (~np.isin(cells, self.values) & (cells != "")).astype(np.float64)
        if self.values:
            return np.isin(cells, self.values).astype(np.float64)
        if cells.dtype.kind == "U":
            return (cells == "").astype(np.float64)
        if self.since:
            cells = cells - arrays[self.since]
        if self.zero_is_missing:
            cells = np.where(cells == 0, np.nan, cells)
        return np.isnan(cells).astype(np.float64) if self.missing else cells


def stacked(features: Sequence[Feature], arrays: Arrays, n: int) -> np.ndarray:
    """float64 (N, len(features))."""
    return np.stack([one.of(arrays) for one in features], axis=1) if features else np.empty((n, 0))


def parsed(file: str, columns: Columns, features: Sequence[Feature], gaps: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns that ``features`` are made of; DataError on a cell that is no number where one is needed."""
    text = {one.column for one in features if one.is_text}
    words = {one.column: {*one.values, *one.no} for one in features if one.no}
    levels = {one.column: set(one.values) for one in features if one.other}
    dates = {name for one in features if one.since for name in one.columns}
    found = {}
    for name in dict.fromkeys(name for one in features for name in one.columns):
        cells = columns[name]
        if name in words:
            found[name] = as_words(file, name, ["" if cell in gaps else cell.lower() for cell in cells], words[name])
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


def plain(cell: str) -> str:
    """ "1.0" as "1", as codes are written."""
    return cell[:-2] if WHOLE.fullmatch(cell) else cell


def as_words(file: str, name: str, cells: Sequence[str], known: Collection[float | str]) -> np.ndarray:
    """Text (N,), "" where a cell is empty; DataError names the first cell that is none of ``known``."""
    found = [plain(cell) for cell in cells]
    for i, cell in enumerate(found):
        if cell and cell not in known:
            some = ", ".join(sorted(map(str, known))[:8])
            raise DataError("number", f"table {file}: row {i}: {name}: expected one of {some}, got {shown(cell)}")
    return np.array(found, "U")


def as_days(file: str, name: str, cells: Sequence[str]) -> np.ndarray:
    """float64 (N,), days since the year 1, nan where a cell is empty; DataError names the first that is no date."""
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell:
            try:
                found[i] = _days(cell)
            except ValueError:
                text = f"table {file}: row {i}: {name}: expected a date as YYYY-MM-DD, got {shown(cell)}"
                raise DataError("number", text) from None
    return found


def _days(cell: str) -> float:
    if at := GERMAN.fullmatch(cell):
        day, month, year = map(int, at.groups())
        return float(datetime.date(year, month, day).toordinal())
    time = datetime.datetime.fromisoformat(cell)
    return time.toordinal() + (time.hour * 3600 + time.minute * 60 + time.second) / 86400


def as_numbers(file: str, name: str, cells: Sequence[str]) -> np.ndarray:
    """float64 (N,), nan where a cell is empty; DataError names the first that is no number below ``LARGEST``."""
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell:
            try:
                found[i] = float(cell if "_" not in cell else "no number")
            except ValueError:
                text = f"table {file}: row {i}: {name}: expected a number, got {shown(cell)}"
                raise DataError("number", text) from None
            if not math.isfinite(found[i]):
                raise DataError("number", f"table {file}: row {i}: {name}: expected a finite number, got {shown(cell)}")
            if abs(found[i]) >= LARGEST:
                text = f"table {file}: row {i}: {name}: expected a number below 1e30 in size, got {shown(cell)}"
                raise DataError("number", text)
    return found
