# SPDX-License-Identifier: Apache-2.0
"""What the options ``features``, ``columns`` and ``scaling`` of a table say, read from text and written as text."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fairflare.core.errors import UserError
from fairflare.core.validation import check_plain, expected, shown, unlisted
from fairflare.data.inputs import Scaling
from fairflare.data.readers.table_features import (
    LARGEST,
    LONGEST_VALUE,
    Feature,
    plain,
)
from fairflare.data.readers.tables import LAYOUT

KEYS: Mapping[str, tuple[str, ...]] = {
    "number": ("range",),
    "category": ("levels", "separator"),
    "yes_no": ("yes", "no"),
    "days": ("since", "range"),
}
"""Kind of column -> its keys beside "kind", "missing" and "codes"."""
MOST_LEVELS = 1000
SEPARATORS = (";", ",", "|", "/", "+", "&")
SITE = "site"
"""Of the option ``scaling``: each site scales by its own training rows."""


@dataclass(frozen=True)
class Column:
    """How a column is read.

    Attributes:
        kind: "number", "category", "yes_no" or "days".
        levels: of a category, each of which makes a feature; None: not agreed yet.
        separator: of a category: one of ``SEPARATORS`` between the codes of a cell, each of which counts. Empty: none.
        yes: words in small letters that count as 1.
        no: as 0.
        since: the date column that days are counted from.
        range: lowest and highest number, from a data dictionary and not from the data: one beyond counts as the nearer.
            Empty: not known.
        missing: whether a further feature says that the cell is empty.
        codes: cells that count as empty, such as 999.
    """

    kind: str = "number"
    levels: tuple[str, ...] | None = None
    yes: tuple[str, ...] = ()
    no: tuple[str, ...] = ()
    since: str = ""
    range: tuple[float, ...] = ()
    missing: bool = False
    codes: tuple[str, ...] = ()
    separator: str = ""

    def to_json(self) -> dict[str, Any]:
        values = {key: getattr(self, key) for key in KEYS[self.kind]}
        known = {key: one if isinstance(one, str) else list(one) for key, one in values.items() if one is not None}
        known = {key: one for key, one in known.items() if one or key not in ("range", "separator")}
        more = {"missing": self.missing, "codes": list(self.codes)}
        return {"kind": self.kind, **known, **{key: one for key, one in more.items() if one}}


Known = Mapping[str, Column]


def names_of(text: str, key: str = "features") -> list[str]:
    """The names of the option ``key``; one with a comma stands in double quotes."""
    try:
        rows = list(csv.reader([text], skipinitialspace=True, strict=True)) if text.strip() else [[]]
    except csv.Error:
        raise UserError(f"{key}: expected names separated by commas, got {shown(text)}") from None
    names = [name.strip() for name in rows[0] if name.strip()]
    twice = next((name for k, name in enumerate(names) if name in names[:k]), None) if len(names) < 1000 else None
    expected(key, twice is None and len(set(names)) == len(names), "different names", twice or "the same twice")
    return names


def renamed_of(text: str, key: str = "renamed") -> dict[str, str]:
    """The option ``renamed``: column of some tables -> its name in the others; UserError for anything else."""
    pairs = [one.partition("=") for one in names_of(text, key)]
    odd = next(("".join(pair) for pair in pairs if not (pair[0] and pair[2])), None)
    expected(key, odd is None, "THEIRS=OURS", odd)
    return {theirs: ours for theirs, _, ours in pairs}


READING = ("events", "none", "time", "since", "until", "separator", "missing", "patient", *LAYOUT)
"""Keys of the option ``reading``: cells of events, what ``init`` was told of times, lists, gaps, patient, layout."""


def reading_of(text: str) -> dict[str, tuple[str, ...]]:
    """The option ``reading``: each of ``READING`` -> its texts; UserError for anything else."""
    try:
        content = json.loads(text or '{"outcome": {}}')
        found = {key: _texts(f"reading: {key}", one) for key, one in content["outcome"].items()}
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise UserError(f'reading: expected JSON as {{"outcome": {{"events": ["dead"]}}}}, got {shown(text)}') from None
    if lost := [key for key in found if key not in READING]:
        raise UserError(f"reading: {unlisted('key', lost[0], READING)}")
    return found


def read_columns(text: str, names: Sequence[str]) -> dict[str, Column]:
    """The option ``columns``; UserError for what it cannot say, or a column that is not among ``names``."""
    if not text.strip():
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"columns: expected JSON, got {shown(text)}") from None
    check_plain("columns", content)
    expected("columns", isinstance(content, dict), "a JSON object: column -> how it is read", content)
    known = set(names)
    for name in content:
        expected("columns", name in known, "names that are among the features", name)
    return {name: _column(f"columns: {shown(name)}", one) for name, one in content.items()}


def _column(key: str, content: Any) -> Column:
    expected(key, isinstance(content, dict), "a JSON object", content)
    kind = content.get("kind")
    expected(f"{key}: kind", kind in KEYS, f"one of {', '.join(KEYS)}", kind)
    allowed = ("kind", "missing", "codes", *KEYS[kind])
    if lost := [one for one in content if one not in allowed]:
        raise UserError(f"{key}: {unlisted('key', lost[0], allowed)}")
    missing = content.get("missing", False)
    expected(f"{key}: missing", isinstance(missing, bool), "true or false", missing)
    levels = _texts(f"{key}: levels", content["levels"]) if "levels" in content else None
    levels = None if levels is None else tuple(dict.fromkeys(map(plain, levels)))
    yes, no = (tuple(plain(word.lower()) for word in _texts(f"{key}: {k}", content.get(k, []))) for k in ("yes", "no"))
    since = content.get("since", "")
    if kind == "yes_no":
        expected(key, bool(yes) and bool(no) and not set(yes) & set(no), "different words for yes and no", content)
    if kind == "days":
        expected(f"{key}: since", isinstance(since, str) and bool(since.strip()), "a date column's name", since)
    codes = tuple(map(plain, _texts(f"{key}: codes", content.get("codes", []))))
    separator = content.get("separator", "")
    signs = f"one of {' '.join(SEPARATORS)}"
    expected(f"{key}: separator", separator == "" or separator in SEPARATORS, signs, separator)
    limits = _range(f"{key}: range", content.get("range"))
    return Column(kind, levels, yes, no, since, limits, missing, codes, separator)


def _range(key: str, found: Any) -> tuple[float, ...]:
    if found is None:
        return ()
    fits = isinstance(found, list) and len(found) == 2 and all(type(one) in (int, float) for one in found)
    expected(key, fits and -LARGEST < found[0] < found[1] < LARGEST, "[lowest, highest], two finite numbers", found)
    return tuple(map(float, found))


def _texts(key: str, found: Any) -> tuple[str, ...]:
    fits = isinstance(found, list) and all(isinstance(one, str) and 0 < len(one) <= LONGEST_VALUE for one in found)
    expected(key, fits, f"a list of texts of at most {LONGEST_VALUE} characters", found)
    expected(key, len(set(found)) == len(found) <= MOST_LEVELS, f"at most {MOST_LEVELS} different ones", len(found))
    return tuple(found)


def as_text(columns: Known) -> str:
    return json.dumps({name: one.to_json() for name, one in columns.items()}, ensure_ascii=False) if columns else ""


def coded(columns: Known) -> tuple[str, ...]:
    """Cells that count as empty in one column, as "sex=9"."""
    return tuple(f"{name}={code}" for name, one in columns.items() for code in one.codes)


def features_of(names: Sequence[str], columns: Known) -> tuple[tuple[Feature, ...], tuple[Feature, ...]]:
    """The features that are scaled, and those of 0 and 1; a category whose levels are not agreed makes none."""
    numbers: list[Feature] = []
    marks: list[Feature] = []
    for name in names:
        one = columns.get(name, Column())
        if one.kind == "category":
            if one.levels is not None:
                marks += [Feature(name, (level,), separator=one.separator) for level in one.levels]
                marks.append(Feature(name, one.levels, other=True, separator=one.separator))
        elif one.kind == "yes_no":
            marks.append(Feature(name, one.yes, no=one.no))
        else:
            numbers.append(Feature(name, since=one.since, limits=one.range))
        if one.missing:
            marks.append(Feature(name, missing=True, since=one.since))
    return tuple(numbers), tuple(marks)


def open_levels(columns: Known) -> str:
    """A category whose levels are not agreed; "" where there is none."""
    return next((name for name, one in columns.items() if one.kind == "category" and one.levels is None), "")


def as_scaling(scaling: Scaling) -> str:
    """The option ``scaling``; not in a single pair of braces, which FLARE takes for the name of a variable."""
    return json.dumps({**scaling.to_json(), "of": {"numbers": len(scaling.mean)}})


def read_scaling(text: str, n: int) -> Scaling | None:
    """The option ``scaling`` of ``n`` numbers; None where each site scales by its own rows; UserError for any other."""
    if not n:
        return Scaling.of(np.empty((0, 0)))
    if text.strip() in ("", SITE):
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"scaling: expected {SITE} or JSON, got {shown(text)}") from None
    return Scaling.from_json(content, n)


WIDTHS = 4
"""Spreads that a range is wide: a number is scaled to lie between -2 and 2."""


def by_range(numbers: Sequence[Feature]) -> Scaling | None:
    """The scaling by the ranges of ``numbers`` alone, whose middle becomes 0 and fills gaps; None: one has no range."""
    if not all(one.limits for one in numbers):
        return None
    low, high = (torch.tensor([one.limits[end] for one in numbers], dtype=torch.float64) for end in (0, 1))
    middle = (low + high) / 2
    return Scaling(middle, middle, (high - low) / WIDTHS)
