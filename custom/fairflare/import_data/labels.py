# SPDX-License-Identifier: Apache-2.0
"""Whether labels are classes: several findings in one cell, numbers on a scale and dates are none, and hospitals that
spell labels differently have none in common."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from fairflare.core.errors import UserError
from fairflare.core.suggest import in_order, some
from fairflare.core.validation import shown
from fairflare.import_data.proposal import Choices, Example, Reading, is_missing
from fairflare.import_data.words import WORDS, is_date

FEW_ROWS, MANY_ROWS = 3, 30
"""A label of fewer rows than this is asked about in tables of so many."""
CODES = frozenset(("-9", "-99", "-999", "-1", "99", "999", "9999"))
PAIR = 2
MOST_GRADES = 6
"""Different whole numbers that are classes without being asked about."""
BETWEEN = ("|", ";", "+", "&", "/", ",")
"""Signs that stand between findings."""


def check_outcome(name: str, cells: Iterable[str], chosen: Choices, form: str = "") -> str:
    """Look at the labels of a table's column ``name``.

    Args:
        form: what stands before the names of kinds of the data's form.

    Returns:
        "classes", or "regression" or "multilabel" where somebody was asked and said so.

    Raises:
        UserError: they are dates, or several findings in one cell or numbers, and nobody can be asked.
    """
    counts = pd.Series(list(cells), dtype=object).value_counts()
    values = [str(value) for value in counts.index]
    if not chosen.classes:
        _check_rare(name, {str(value): int(n) for value, n in counts.items()})
    if several := _several(values):
        text = f"{name}: expected one class in each cell, got several findings in one, such as {shown(several)}"
        readings = [
            Reading("they are several labels of one case", f"--kind {form}multilabel"),
            Reading("another column is the outcome", "--label another column"),
        ]
        if chosen.ask(text, readings):
            raise UserError(f"init: {text}; --label names another column")
        return "multilabel"
    if chosen.classes:
        return "classes"
    if len(values) > 2 and all(is_date(value) for value in values):
        raise UserError(
            f"init: {name}: expected classes, got dates such as {shown(values[0])}; times are not built yet"
        )
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce")
    whole = bool((numbers % 1 == 0).all())
    if numbers.isna().any() or len(values) <= 2 or (whole and len(values) <= MOST_GRADES):
        return "classes"
    got = f"{len(values)} different numbers from {numbers.min():g} to {numbers.max():g}"
    amount = Reading("they are an amount", f"--kind {form}regression")
    if not whole or len(values) > 50:
        other = Reading("another column is the outcome", "--label another column")
        if chosen.ask(f"{name}: expected classes, got {got}", [amount, other]):
            raise UserError(f"init: {name}: expected classes, got {got}; --label names another column")
        return "regression"
    names = ",".join(in_order(values))
    readings = [Reading("they are classes without an order", f"--classes {names}"), amount]
    return "regression" if chosen.ask(f"{name} holds {got}", readings) else "classes"


def _check_rare(name: str, counts: Mapping[str, int]) -> None:
    """Refuse a label of a row or two, as of a line of totals, and a number that is a code for missing."""
    total = sum(counts.values())
    rare = [value for value, n in counts.items() if n < FEW_ROWS]
    if total >= MANY_ROWS and rare and len(counts) - len(rare) > 1:
        text = f"{shown(rare[0])} has {counts[rare[0]]} of {total} rows"
        raise UserError(f"init: {name}: {text}: a mistake (--missing {rare[0]}), or a class (--classes A,B,...)")
    codes = [value for value in counts if value in CODES or bare(value) in WORDS["cell_unknown"]]
    codes += ["9"] if "9" in counts and {*counts} <= {*"01239"} else []
    if len(counts) > 2 and codes:
        text = f"{shown(codes[0])} among {some([value for value in in_order(counts) if value not in codes], 4)}"
        raise UserError(
            f"init: {name}: {text} is a code for missing (--missing {name}={codes[0]}), or a class (--classes A,B,...)"
        )


def same_numbers(labels: Sequence[str]) -> list[str]:
    """``labels`` with 1.0 as 1 where all are numbers, and with accents written in one way."""
    numbers = pd.to_numeric(pd.Series(list(labels), dtype=object), errors="coerce")
    if len(numbers) and numbers.notna().all():
        return [str(int(number)) if number == int(number) else str(number) for number in numbers]
    return [unicodedata.normalize("NFC", label) for label in labels]


def parted(cells: Sequence[str]) -> list[list[str]]:
    """The labels of each cell, by the first sign that stands between them in any; "|" counts in any case."""
    sign = next((sign for sign in BETWEEN if _several(cells, (sign,))), BETWEEN[0])
    return [[part.strip() for part in cell.split(sign) if part.strip()] for cell in cells]


def _several(values: Sequence[str], signs: Sequence[str] = BETWEEN) -> str:
    """A cell that holds several findings: its parts are labels, or parts of other labels; "" where there is none."""
    whole = set(values)
    for sign in signs:
        parts: dict[str, set[str]] = defaultdict(set)
        for value in values:
            for part in value.split(sign):
                parts[part.strip()].add(value)
        for value in values:
            own = [part.strip() for part in value.split(sign)]
            if len(own) > 1 and all(own) and any(part in whole or len(parts[part]) > 1 for part in own):
                return value
    return ""


def check_sites_agree(examples: Sequence[Example], chosen: Choices) -> None:
    """Raise UserError where hospitals share no label: they spell them differently, or hospital and class are the same.

    Names that differ by upper and lower case alone are refused, too.
    """
    labels: dict[str, set[str]] = defaultdict(set)
    for one in examples:
        labels[one.site].add(one.label)
    union: set[str] = set().union(*labels.values())
    if twins := alike(union):
        raise UserError(f"init: labels {shown(twins[0])} and {shown(twins[1])} differ by upper and lower case alone")
    if chosen.classes or len(labels) < 2:
        return
    sites = in_order(labels)
    if all(len(own) <= PAIR for own in labels.values()) and len(union) > PAIR:
        text = "; ".join(f"{site}: {some(in_order(labels[site]), 3)}" for site in sites[:3])
        raise UserError(
            f"init: every site has {PAIR} labels, together they are {len(union)} ({text}): expected the same labels, "
            "with the same meaning, at every site (--classes A,B,C accepts these)"
        )
    joined, seen = {sites[0]}, labels[sites[0]]
    while more := {site for site in sites if site not in joined and labels[site] & seen}:
        joined |= more
        seen = seen.union(*(labels[site] for site in more))
    if apart := [site for site in sites if site not in joined]:
        ours, theirs = some(in_order(labels[sites[0]]), 3), some(in_order(labels[apart[0]]), 3)
        raise UserError(
            f"init: {sites[0]} ({ours}) and {apart[0]} ({theirs}) have no label in common: expected the same labels, "
            "spelled alike, at every site (--classes A,B accepts these)"
        )


ATTRIBUTES, AGE = WORDS["column_group"], WORDS["column_age"]
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


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Two of ``names`` that differ by upper and lower case alone; None where there are none."""
    lower: dict[str, str] = {}
    found = ((lower.setdefault(name.casefold(), name), name) for name in in_order(names))
    return next((pair for pair in found if pair[0] != pair[1]), None)


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
    """Of each row the groups that it is in: name -> value, without what is missing; ages as bands."""
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
