# SPDX-License-Identifier: Apache-2.0
"""By which patients are grouped: columns and DICOM headers with usual names, ages as bands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from fairflare.app.intake.found import is_missing
from fairflare.core.errors import UserError
from fairflare.core.order import in_order, some

GROUPS = """sex gender race ethnicity agegroup ageband insurance scanner manufacturer vendor device modality
    fieldstrength"""
ATTRIBUTES = frozenset(GROUPS.split())
"""Names, in lower case without signs, of columns by which patients are grouped, where they hold a few values."""
AGE = frozenset(["age", "ageyears", "ageatscan", "patientage", "alter"])
BANDS = ((40, "under 40"), (60, "40 to 59"), (80, "60 to 79"), (1000, "80 and over"))
BAND = "age_band"
MOST_VALUES = 8
HEADERS: Mapping[str, str] = {
    "sex": "PatientSex",
    "age": "PatientAge",
    "manufacturer": "Manufacturer",
    "model": "ManufacturerModelName",
    "station": "StationName",
}
"""What a group may be called -> the DICOM header that says it."""
DICOM_AGE = re.compile(r"(\d{1,3})([YMWD])")
YEARS = {"Y": 1.0, "M": 12.0, "W": 52.18, "D": 365.25}


def bare(name: str) -> str:
    """``name`` in lower case, letters and digits alone."""
    return "".join(sign for sign in name.lower() if sign.isalnum())


def years(cells: pd.Series) -> pd.Series:
    """Ages as numbers; DICOM writes 045Y or 018M. NaN where a cell is no age."""
    found = cells.map(lambda cell: float(m[1]) / YEARS[m[2]] if (m := DICOM_AGE.fullmatch(cell)) else cell)
    return pd.to_numeric(found, errors="coerce")


def group_columns(table: pd.DataFrame, taken: Sequence[str], asked: Sequence[str]) -> list[str]:
    """The columns of ``table`` by which patients are grouped: those with usual names, and those that are ``asked`` for.

    Raises:
        UserError: one that is asked for is not there, or has too many values for groups.
    """
    found = []
    for name in table.columns:
        plain, cells = bare(name), table[name]
        if name in taken and name not in asked:
            continue
        values = {cell for cell in cells.unique() if not is_missing(cell)}
        is_age = plain in AGE and bool(values) and years(pd.Series(sorted(values))).notna().all()
        few = 2 <= len(values) <= MOST_VALUES and not any(sign in value for value in values for sign in "|;=+")
        if is_age or (few and (plain in ATTRIBUTES or name in asked)):
            found.append(name)
        elif name in asked and len(values) > 1:
            text = f"2 to {MOST_VALUES} values without the signs | ; = +, got {some(in_order(values))}"
            raise UserError(f"--groups: {name}: expected {text}")
    if lost := [name for name in asked if name not in table.columns]:
        raise UserError(
            f"--groups: expected columns, levels or headers among {some(list(table.columns), 12)}, got {lost[0]!r}"
        )
    return found


def grouped_by(table: pd.DataFrame, names: Sequence[str]) -> list[dict[str, str]]:
    """Of each row the groups that it is in: name -> value, without what is missing; ages as bands.

    Args:
        table: text cells.
        names: its columns by which patients are grouped.
    """
    about: list[dict[str, str]] = [{} for _ in range(len(table))]
    for name in names:
        if bare(name) in AGE:
            ages = years(table[name])
            cells = [next((word for most, word in BANDS if age < most), "") for age in ages]
            key = BAND
        else:
            cells, key = ["" if is_missing(cell) else cell for cell in table[name]], name
        for row, cell in zip(about, cells, strict=True):
            if cell:
                row[key] = cell
    return about
