# SPDX-License-Identifier: Apache-2.0
"""Published tables as they are downloaded, CSV or Excel; each mistake in one line with file, column and row."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairflare.core.errors import DataError, UserError

if TYPE_CHECKING:
    import pandas as pd

ENGINES = {".xls": "xlrd", ".xlsx": "openpyxl"}
HEADER = 2
"""Number of the first row below the names, as a spreadsheet counts."""


def read(path: Path, sheet: str | int = 0) -> pd.DataFrame:
    """The table in a CSV file or in one sheet of an Excel file; the first row holds the names.

    Raises:
        UserError: a package is missing.
        DataError: "unreadable".
    """
    import pandas as pd

    engine = ENGINES.get(path.suffix.lower())
    try:
        if engine is None:
            found = pd.read_csv(path, encoding="utf-8-sig", low_memory=False)
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The xlrd engine is deprecated")
                found = pd.read_excel(path, sheet_name=sheet, engine=engine)
    except ImportError:
        raise UserError(f"{path.name}: needs {engine}: pip install 'fairflare[tables]'") from None
    except Exception as error:  # pandas raises its own and its parsers' errors
        kind = "a CSV table" if engine is None else f"an Excel file with sheet {sheet!r}"
        raise DataError("unreadable", f"{path.name}: expected {kind} ({type(error).__name__})") from None
    found.columns = [str(name).strip() for name in found.columns]
    return found


def need(frame: pd.DataFrame, file: str, names: Sequence[str]) -> None:
    """Raise DataError "column", with the columns that there are, unless ``frame`` has all of ``names``."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        known = ", ".join(frame.columns)
        raise DataError("column", f"{file}: expected columns {', '.join(map(repr, missing))}; it has: {known}")


def texts(frame: pd.DataFrame, name: str) -> list[str]:
    """The cells of a column without blanks around them, "" where empty; 3.0 is "3", as in a column without gaps."""
    return ["" if missing else _text(cell) for cell, missing in zip(frame[name], frame[name].isna())]


def numbers(frame: pd.DataFrame, file: str, names: Sequence[str], gaps: bool = False) -> np.ndarray:
    """float64 (N, len(names)); nan where a cell is empty.

    Raises:
        DataError: "number": a cell that is no finite number, or an empty one unless ``gaps``.
    """
    import pandas as pd

    found = np.empty((len(frame), len(names)))
    for k, name in enumerate(names):
        found[:, k] = pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        wrong = ~np.isfinite(found[:, k]) & ~(gaps & frame[name].isna().to_numpy())
        if wrong.any():
            _refuse(frame, file, name, int(np.flatnonzero(wrong)[0]), "number", "a number")
    return found


def codes(frame: pd.DataFrame, file: str, name: str, values: Sequence[str | int], gaps: bool = False) -> np.ndarray:
    """int64 (N,): the place of each cell among ``values``; -1 where a cell is empty.

    Raises:
        DataError: "label": a cell that is none of them, or an empty one unless ``gaps``.
    """
    if isinstance(values[0], int):
        cells = list(numbers(frame, file, [name], gaps)[:, 0])
        empty = np.isnan(cells)
    else:
        cells = texts(frame, name)
        empty = np.array([not cell for cell in cells], dtype=bool)
    place = {value: k for k, value in enumerate(values)}
    found = np.array([place.get(cell, -1) for cell in cells], dtype=np.int64)
    wrong = (found < 0) & ~(gaps & empty)
    if wrong.any():
        _refuse(frame, file, name, int(np.flatnonzero(wrong)[0]), "label", ", ".join(map(str, values)))
    return found


def one_hot(places: np.ndarray, n: int) -> np.ndarray:
    """float32 (N, n); a place of -1 is a row of zeros."""
    return (places[:, None] == np.arange(n)).astype(np.float32)


def named(places: np.ndarray, names: Sequence[str]) -> list[str]:
    """The name at each place; "" for -1."""
    return ["" if place < 0 else names[place] for place in places]


def _text(cell: object) -> str:
    return str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell).strip()


def _refuse(frame: pd.DataFrame, file: str, name: str, i: int, code: str, expected: str) -> None:
    cell = frame[name].iloc[i]
    got = "nothing" if frame[name].isna().iloc[i] else repr(str(cell))
    raise DataError(code, f"{file}: {name}, row {frame.index[i] + HEADER}: expected {expected}, got {got}")
