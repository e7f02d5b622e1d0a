# SPDX-License-Identifier: Apache-2.0
"""How the columns of a table become features, as plain data: the same for training, prediction and exported models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairflare.core.errors import DataError

Columns = Mapping[str, Sequence[str]]
"""Column -> its cells as text, "" where empty."""
Arrays = Mapping[str, np.ndarray]
"""Column -> float64 (N,) with nan where empty, or text (N,)."""


@dataclass(frozen=True)
class Feature:
    """One feature that a column makes.

    Attributes:
        column: its name.
        values: 1 where the cell is one of these, else 0; numbers or texts. Empty: the number itself.
        missing: 1 where the cell is missing, else 0.
        zero_is_missing: a number of 0 stands for a missing value.
    """

    column: str
    values: tuple[float | str, ...] = ()
    missing: bool = False
    zero_is_missing: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the column is compared as text."""
        return any(isinstance(value, str) for value in self.values)

    @property
    def name(self) -> str:
        """In words, e.g. "cp=2"."""
        if self.missing:
            return f"{self.column} missing"
        return f"{self.column}={'|'.join(map(str, self.values))}" if self.values else self.column

    def of(self, arrays: Arrays) -> np.ndarray:
        """float64 (N,), nan where a number is missing."""
        cells = arrays[self.column]
        if self.values:
            return np.isin(cells, self.values).astype(np.float64)
        if self.zero_is_missing:
            cells = np.where(cells == 0, np.nan, cells)
        return np.isnan(cells).astype(np.float64) if self.missing else cells


def stacked(features: Sequence[Feature], arrays: Arrays, n: int) -> np.ndarray:
    """float64 (N, len(features))."""
    return np.stack([one.of(arrays) for one in features], axis=1) if features else np.empty((n, 0))


def parsed(file: str, columns: Columns, features: Sequence[Feature], gaps: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The columns that ``features`` are made of; DataError on a cell that is no number where one is needed.

    Args:
        file: the table's name, for the message.
        columns: all cells.
        features: what is made of them.
        gaps: words that stand for a missing number.
    """
    text = {one.column for one in features if one.is_text}
    found = {}
    for name in dict.fromkeys(one.column for one in features):
        cells = ["" if cell in gaps else cell for cell in columns[name]]
        found[name] = np.array(cells) if name in text else as_numbers(file, name, cells)
    return found


def as_numbers(file: str, name: str, cells: Sequence[str]) -> np.ndarray:
    """float64 (N,), nan where a cell is empty; DataError names the first cell that is no finite number."""
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell:
            try:
                found[i] = float(cell)
            except ValueError:
                text = f"table {file}: row {i}: {name}: expected a number, got {cell!r}"
                raise DataError("number", text) from None
            if not math.isfinite(found[i]):
                raise DataError("number", f"table {file}: row {i}: {name}: expected a finite number, got {cell!r}")
    return found
