# SPDX-License-Identifier: Apache-2.0
"""What the options ``features``, ``columns`` and ``scaling`` of a table say, read from text and written as text."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.suggest import unlisted
from fairflare.core.validation import check_plain, expected, shown
from fairflare.data.inputs import Scaling
from fairflare.data.readers.table_features import LONGEST_VALUE, Feature, plain

KEYS: Mapping[str, tuple[str, ...]] = {
    "number": (),
    "category": ("levels",),
    "yes_no": ("yes", "no"),
    "days": ("since",),
}
"""Kind of column -> its keys beside "kind" and "missing"."""
MOST_LEVELS = 1000
SITE = "site"
"""Of the option ``scaling``: each site scales by its own training rows."""


@dataclass(frozen=True)
class Column:
    """How a column is read.

    Attributes:
        kind: "number", "category", "yes_no" or "days".
        levels: of a category, each of which makes a feature; None: not agreed yet.
        yes: words in small letters that count as 1.
        no: as 0.
        since: the date column that days are counted from.
        missing: whether a further feature says that the cell is empty.
    """

    kind: str = "number"
    levels: tuple[str, ...] | None = None
    yes: tuple[str, ...] = ()
    no: tuple[str, ...] = ()
    since: str = ""
    missing: bool = False

    def to_json(self) -> dict[str, Any]:
        """As it stands in the option."""
        content: dict[str, Any] = {"kind": self.kind}
        for key in KEYS[self.kind]:
            value = getattr(self, key)
            if value is not None:
                content[key] = value if isinstance(value, str) else list(value)
        return content | ({"missing": True} if self.missing else {})


Known = Mapping[str, Column]


def names_of(features: str) -> list[str]:
    """The columns of the option ``features``; a name with a comma stands in double quotes."""
    try:
        rows = list(csv.reader([features], skipinitialspace=True, strict=True)) if features.strip() else [[]]
    except csv.Error:
        raise UserError(f"features: expected names separated by commas, got {shown(features)}") from None
    names = [name.strip() for name in rows[0] if name.strip()]
    twice = next((name for k, name in enumerate(names) if name in names[:k]), None) if len(names) < 1000 else None
    expected("features", twice is None and len(set(names)) == len(names), "different names", twice or "the same twice")
    return names


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
    allowed = ("kind", "missing", *KEYS[kind])
    for one in content:
        if one not in allowed:
            raise UserError(f"{key}: {unlisted('key', one, allowed)}")
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
    return Column(kind, levels, yes, no, since, missing)


def _texts(key: str, found: Any) -> tuple[str, ...]:
    fits = isinstance(found, list) and all(isinstance(one, str) and 0 < len(one) <= LONGEST_VALUE for one in found)
    expected(key, fits, f"a list of texts of at most {LONGEST_VALUE} characters", found)
    expected(key, len(set(found)) == len(found) <= MOST_LEVELS, f"at most {MOST_LEVELS} different ones", len(found))
    return tuple(found)


def as_text(columns: Known) -> str:
    """The option ``columns``, as ``read_columns`` reads it."""
    return json.dumps({name: one.to_json() for name, one in columns.items()}, ensure_ascii=False) if columns else ""


def without_levels(columns: Known) -> dict[str, Column]:
    """The kinds alone: what is to be known before levels are agreed."""
    return {name: Column(one.kind, None, one.yes, one.no, one.since, one.missing) for name, one in columns.items()}


def filled(given: str, agreed: str, names: Sequence[str]) -> str:
    """``given`` with the levels of ``agreed`` where it has none."""
    own, others = read_columns(given, names), read_columns(agreed, names)
    open_ones = [name for name, one in own.items() if one.kind == "category" and one.levels is None]
    return as_text(own | {name: others[name] for name in open_ones if name in others}) if open_ones else given


def features_of(names: Sequence[str], columns: Known) -> tuple[tuple[Feature, ...], tuple[Feature, ...]]:
    """The features that are scaled, and those of 0 and 1; a category whose levels are not agreed makes none."""
    numbers: list[Feature] = []
    marks: list[Feature] = []
    for name in names:
        one = columns.get(name, Column())
        if one.kind == "category":
            if one.levels is not None:
                marks += [Feature(name, (level,)) for level in one.levels]
                marks.append(Feature(name, one.levels, other=True))
        elif one.kind == "yes_no":
            marks.append(Feature(name, one.yes, no=one.no))
        else:
            numbers.append(Feature(name, since=one.since))
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
