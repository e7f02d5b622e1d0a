# SPDX-License-Identifier: Apache-2.0
"""The tables of FedISM's data folders: which images there are, of which class, and at which site."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import DataError
from fairflare.datasets.readers.digit_files import Arrays

SMALLEST_SITE = 24
"""Images that every site has at least."""


@dataclass(frozen=True)
class Table:
    """What ``train.csv`` or ``test.csv`` lists, row by row.

    Attributes:
        ids: N names of images without suffix.
        labels: int64 (N,).
        attributes: of each image, as text.
        groups: int64 (N,): images with the same number show the same lesion and stay in one split.
    """

    ids: Sequence[str]
    labels: np.ndarray
    attributes: Sequence[dict[str, str]]
    groups: np.ndarray


def read_table(path: Path, n_classes: int) -> tuple[list[str], np.ndarray]:
    """Names and classes of the images that a CSV file with the columns ``id`` and ``class`` lists.

    Raises:
        DataError: "unreadable", "column", "entry" (a name is no plain file name, or there twice), "label" or
            "few_examples".
    """
    rows = read_rows(path, ("id", "class"))
    seen: set[str] = set()
    for line, row in enumerate(rows, start=2):
        name, label, where = row["id"], row["class"], f"{path.name}: line {line}"
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise DataError("entry", f"{where}: id: expected the name of an image, got {name!r}")
        if name in seen:
            raise DataError("entry", f"{where}: id: expected each image once, got {name!r} again")
        seen.add(name)
        if not (label.isascii() and label.isdigit() and int(label) < n_classes):
            raise DataError(
                "label", f"{where}: class: expected a whole number from 0 to {n_classes - 1}, got {label!r}"
            )
    if not rows:
        raise DataError("few_examples", f"{path.name}: expected rows, found none")
    return [row["id"] for row in rows], np.array([int(row["class"]) for row in rows], dtype=np.int64)


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file that has ``columns``, cells as stripped text; DataError where it is none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError("unreadable", f"{path.name}: cannot be read as a table ({type(error).__name__})") from None
    header = [cell.strip() for cell in lines[0]] if lines else []
    for column in columns:
        if column not in header:
            raise DataError("column", f"{path.name}: expected a column {column!r}, got {', '.join(header) or 'none'}")
    rows = [line for line in lines[1:] if line]
    for row in rows:
        if len(row) != len(header):
            raise DataError("entry", f"{path.name}: expected {len(header)} cells in a row, got {','.join(row)!r}")
    return [dict(zip(header, map(str.strip, row))) for row in rows]


def read_partition(path: Path, n_sites: int, n_rows: int) -> list[np.ndarray]:
    """Each site's rows from a dictionary {0..K-1: row numbers} that NumPy has pickled; nothing else in it is made.

    Raises:
        DataError: it is no such dictionary, does not hold every row once, or leaves a site too few.
    """
    try:
        found = _pickled(path)
        parts = [np.array(list(found[k]), dtype=np.int64) for k in range(n_sites)]
    except Exception as error:  # unpickling raises whatever the file makes it
        expected = f"expected a dictionary of the rows of {n_sites} sites"
        raise DataError("entry", f"{path.name}: {expected} ({type(error).__name__})") from None
    if len(found) != n_sites or not np.array_equal(np.sort(np.concatenate(parts)), np.arange(n_rows)):
        raise DataError("entry", f"{path.name}: expected each of {n_rows} rows once, at {n_sites} sites")
    fewest = min(map(len, parts))
    if fewest < SMALLEST_SITE:
        raise DataError("few_examples", f"{path.name}: expected at least {SMALLEST_SITE} rows a site, got {fewest}")
    return parts


def _pickled(path: Path) -> dict[int, Any]:
    """What ``np.save`` made of a dictionary; only sets, arrays and numbers are looked up: a job may ask for it."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(file)
        if shape != () or not dtype.hasobject:
            raise ValueError("no dictionary")
        return _Rows(file).load().item()


class _Rows(Arrays):
    """Sets of numbers, in the one object array that holds the dictionary."""

    FUNCTIONS: tuple[str, ...] = (*Arrays.FUNCTIONS, "multiarray.scalar")

    def find_class(self, module: str, name: str) -> Any:
        """As for an array of numbers, and sets, ranges and the type of objects, of which the dictionary is one."""
        plain = {"set": set, "range": range, "xrange": range}
        if module in ("builtins", "__builtin__") and name in plain:
            return plain[name]
        return np.dtype if (module, name) == ("numpy", "dtype") else super().find_class(module, name)
