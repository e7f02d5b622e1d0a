# SPDX-License-Identifier: Apache-2.0
"""The International Stroke Trial table that comes with the package: origin, licence, columns are in data/README.md."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.validation import shown
from fairflare.data.readers.table_features import Feature, parsed, stacked

NUMBERS = {"RDELAY": (20.0, 12.0), "AGE": (72.0, 12.0), "RSBP": (160.0, 28.0)}
"""Columns used as numbers -> rounded mean and standard deviation of the trial's patients: hours since the stroke,
years, mmHg. They are constants of the task, so that a hospital of one patient needs no statistics."""
CATEGORIES: dict[str, tuple[str, ...]] = {
    "RCONSC": ("F", "D", "U"),
    "SEX": ("M", "F"),
    "RSLEEP": ("N", "Y"),
    "RATRIAL": ("N", "Y"),
    "RCT": ("N", "Y"),
    "RVISINF": ("N", "Y"),
    "RHEP24": ("N", "Y"),
    "RASP3": ("N", "Y"),
    **{f"RDEF{k}": ("N", "Y", "C") for k in range(1, 9)},
    "STYPE": ("TACS", "PACS", "POCS", "LACS", "OTH"),
    "RXASP": ("N", "Y"),
    "RXHEP": ("N", "L", "M"),
}
"""Columns used as categories -> their values. The first one is the reference, which is a row of zeros like a missing
value; H and M of RXHEP are one dose."""
AT_RANDOMISATION = (*NUMBERS, *CATEGORIES)
"""What was known, or allocated, when a patient was randomised; nothing else may be a feature."""
COUNTRIES = {
    "ARGE": "Argentina", "AUSL": "Australia", "AUST": "Austria", "BELG": "Belgium", "BRAS": "Brazil", "CANA": "Canada",
    "CHIL": "Chile", "CZEC": "Czech-Republic", "DENM": "Denmark", "EIRE": "Ireland", "FINL": "Finland",
    "FRAN": "France",
    "GREE": "Greece", "HONG": "Hong-Kong", "HUNG": "Hungary", "INDI": "India", "ISRA": "Israel", "ITAL": "Italy",
    "JAPA": "Japan", "NETH": "Netherlands", "NEW": "New-Zealand", "NORW": "Norway", "POLA": "Poland",
    "PORT": "Portugal",
    "ROMA": "Romania", "SING": "Singapore", "SLOK": "Slovakia", "SLOV": "Slovenia", "SOUT": "South-Africa",
    "SPAI": "Spain", "SRI": "Sri-Lanka", "SWED": "Sweden", "SWIT": "Switzerland", "TURK": "Turkey", "UK": "UK",
    "USA": "USA",
}  # fmt: skip
"""The file's codes."""


@cache
def table() -> Mapping[str, tuple[str, ...]]:
    """Column -> its 19,435 cells as text, "" where missing, in the file's order."""
    packed = resources.files("fairflare.datasets").joinpath("data/ist.csv.gz").read_bytes()
    rows = csv.reader(io.StringIO(gzip.decompress(packed).decode()))
    names = next(rows)
    return dict(zip(names, zip(*rows)))


def column(name: str) -> np.ndarray:
    """The cells of one column as an array of text."""
    return np.array(table()[name])


def outcome(label: str) -> np.ndarray:
    """int64 (N,): 1 where the outcome occurred, 0 where not, -1 where nobody knows.

    Args:
        label: "dependent-or-dead" six months after the stroke (OCCODE 1 or 2; the trial's own), or "death" at any time
            of the follow-up (DIED), which is known of everyone.
    """
    if label == "death":
        return column("DIED").astype(np.int64)
    code = column("OCCODE")
    return np.where(np.isin(code, ("1", "2")), 1, np.where(np.isin(code, ("3", "4")), 0, -1))


def check(names: Sequence[str]) -> None:
    """Raise UserError unless ``names`` are different columns that were known at randomisation."""
    for name in names:
        if name not in AT_RANDOMISATION:
            known = ", ".join(AT_RANDOMISATION)
            raise UserError(f"features: expected columns known at randomisation ({known}), got {shown(name)}")
    if len(set(names)) < len(names) or not names:
        raise UserError(f"features: expected different columns, got {shown(', '.join(names))}")


def made_of(names: Sequence[str]) -> tuple[tuple[Feature, ...], tuple[Feature, ...]]:
    """Numbers and plain features that the columns ``names`` make; raises UserError for a column that is none."""
    check(names)
    numbers = tuple(Feature(name) for name in names if name in NUMBERS)
    return numbers, tuple(flag for name in names if name in CATEGORIES for flag in _flags(name))


def features(names: Sequence[str] = AT_RANDOMISATION) -> tuple[np.ndarray, np.ndarray]:
    """The features that the columns ``names`` make: numbers float64 (N, n), and 0 or 1 as float32 (N, m).

    Raises:
        UserError: a column that was not known at randomisation: an outcome, or the trial's own prediction of one.
    """
    numbers, plain = made_of(names)
    arrays = parsed("ist.csv.gz", table(), (*numbers, *plain))
    n = len(table()["AGE"])
    return stacked(numbers, arrays, n), stacked(plain, arrays, n).astype(np.float32)


def _flags(name: str) -> list[Feature]:
    return [
        Feature(name, (value, "H") if (name, value) == ("RXHEP", "M") else (value,)) for value in CATEGORIES[name][1:]
    ]
