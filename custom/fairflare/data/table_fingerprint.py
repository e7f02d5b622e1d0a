# SPDX-License-Identifier: Apache-2.0
"""What of a site's table may leave it before a run, so that the sites agree on levels and scaling.

Of each number that is a feature how many training rows have one, mean and spread; of each category the levels of at
least ``min_count`` training rows, without their counts. The mean and spread over all sites follow exactly from these.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from fairflare.core.errors import UserError
from fairflare.core.types import MOST_EXAMPLES
from fairflare.core.validation import CONTROL, in_order, shown, some
from fairflare.data.inputs import Scaling
from fairflare.data.readers.table_features import (
    DATES,
    LONGEST_VALUE,
    READ,
    Columns,
    date_forms,
    gaps_of,
    iso_date,
    parsed,
    parts,
    plain,
    stacked,
)
from fairflare.data.table_columns import (
    MOST_LEVELS,
    Column,
    Known,
    as_scaling,
    as_text,
    coded,
    features_of,
    read_columns,
)

DIGITS = 9
"""Significant ones of means and spreads."""
SILENT = 1e30
"""The spread of a number that does not count, since it does not vary or no site may tell its mean: it becomes 0."""
STILL = 1e-9
"""A spread of less than this share of the mean is rounding."""


@dataclass(frozen=True)
class TableFingerprint:
    """One site's table.

    Attributes:
        features: the columns that are features.
        columns: how they are read, without levels.
        numbers: feature -> (training rows that have one, mean, spread) of those with at least ``min_count`` rows.
        levels: category -> its levels of at least ``min_count`` training rows, the most frequent ``MOST_LEVELS``.
        dates: column of dates -> how they may be written, keys of ``DATES`` with | between, and the years between which
            four in five of at least ``min_count`` lie; 0 and 0 of fewer.
    """

    features: tuple[str, ...]
    columns: Known = field(default_factory=dict)
    numbers: Mapping[str, tuple[int, float, float]] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, tuple[str, int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What leaves the site."""
        return {
            **({"dates": {name: list(one) for name, one in self.dates.items()}} if self.dates else {}),
            "features": list(self.features),
            "columns": {name: one.to_json() for name, one in self.columns.items()},
            "numbers": {name: list(one) for name, one in self.numbers.items()},
            "levels": {name: list(one) for name, one in self.levels.items()},
        }

    @classmethod
    def from_json(cls, content: Any, site: str) -> TableFingerprint:
        """Read ``to_json`` back from whoever sends it; UserError for a key or value that it cannot have."""
        what = f"fingerprint of {site}: table"
        keys = {one.name for one in fields(cls)}
        if not isinstance(content, Mapping) or set(content) | {"dates"} != keys:
            raise UserError(f"{what}: expected the keys {', '.join(sorted(keys))}")
        features = _nonempty_texts(f"{what}: features", content["features"])
        try:
            columns = read_columns(json.dumps(content["columns"]), features)
        except UserError as error:
            raise UserError(f"{what}: {error}") from None
        numbers, levels = content["numbers"], content["levels"]
        if not isinstance(numbers, Mapping) or not isinstance(levels, Mapping):
            raise UserError(f"{what}: expected numbers and levels of columns")
        for name, one in numbers.items():
            if not (name in features and isinstance(one, list) and len(one) == 3 and _proper(*one)):
                raise UserError(f"{what}: {shown(name)}: expected rows, mean and spread, got {shown(one)}")
        if not isinstance(dates := content.get("dates", {}), Mapping):
            raise UserError(f"{what}: expected dates of columns")
        for name, one in dates.items():
            if not (name in {*features, *(own.since for own in columns.values())} and _dated(one)):
                raise UserError(
                    f"{what}: {shown(name)}: expected how dates are written and two years, got {shown(one)}"
                )
        for name, one in levels.items():
            if name not in features or len(_nonempty_texts(f"{what}: {shown(name)}", one)) > MOST_LEVELS:
                raise UserError(f"{what}: {shown(name)}: expected a feature with at most {MOST_LEVELS} levels")
        return cls(
            features,
            without_levels(columns),
            {name: (int(n), float(mean), float(std)) for name, (n, mean, std) in numbers.items()},
            {name: tuple(one) for name, one in levels.items()},
            {name: (text, low, high) for name, (text, low, high) in dates.items()},
        )


def _nonempty_texts(key: str, found: Any) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise UserError(f"{key}: expected a list of texts, got {shown(found)}")
    return tuple(found)


def _dated(one: Any) -> bool:
    if not (isinstance(one, list) and [*map(type, one)] == [str, int, int]):
        return False
    return {*one[0].split("|")} <= {*DATES} and 0 <= one[1] <= one[2] < 10_000


def _proper(n: Any, mean: Any, std: Any) -> bool:
    numbers = all(type(one) in (int, float) and math.isfinite(one) and abs(one) <= SILENT for one in (mean, std))
    return type(n) is int and 0 < n <= MOST_EXAMPLES and numbers and std >= 0


def without_levels(columns: Known) -> dict[str, Column]:
    """The kinds alone: what is to be known before levels are agreed."""
    return {name: replace(one, levels=None) for name, one in columns.items()}


def filled(given: str, agreed: str, names: Sequence[str]) -> str:
    """``given`` with the levels of ``agreed`` where it has none."""
    own, others = read_columns(given, names), read_columns(agreed, names)
    open_ones = [name for name, one in own.items() if one.kind == "category" and one.levels is None]
    return as_text(own | {name: others[name] for name in open_ones if name in others}) if open_ones else given


def table_fingerprint(
    file: str,
    cells: Columns,
    features: Sequence[str],
    columns: Known,
    gaps: Sequence[str],
    min_count: int,
    *,
    sums_only: bool = False,
    said: Collection[str] = (),
) -> TableFingerprint:
    """What of the training rows ``cells`` may leave; ``min_count`` is the fewest rows that a number or level may be of.

    ``gaps`` are words that stand for a missing value. With ``sums_only`` the site hands out numbers of its own in
    secure sums alone, so none of columns leave here. ``said``: columns of which its file says how dates are written,
    as they now are. DataError where a cell is not what its column's kind asks for.
    """
    kinds, gaps = without_levels(columns), (*gaps, *coded(columns))
    scaled, _ = features_of(features, kinds)
    n = len(cells[features[0]]) if features else 0
    dates: dict[str, tuple[str, int, int]] = {}
    for name in dict.fromkeys(name for one in scaled if one.since for name in one.columns):
        empty = gaps_of(name, gaps)
        filled = [cell for cell in cells[name] if cell and cell not in empty and plain(cell) not in empty]
        if forms := date_forms(filled)[: 1 if name in said else None]:
            years = sorted(int(iso_date(cell, forms[0])[:4]) for cell in filled)
            shown_years = len(years) >= max(min_count, 1) and not sums_only
            ends = (years[len(years) // 10], years[-1 - len(years) // 10]) if shown_years else (0, 0)
            dates[name] = ("|".join(forms), *ends)
    # What is written otherwise than dates are read has no mean before the site's file says how.
    odd = {name for name, (text, _, _) in dates.items() if text.partition("|")[0] not in READ}
    scaled = tuple(one for one in scaled if not (one.since and odd & {*one.columns}))
    values = stacked(scaled, parsed(file, cells, scaled, gaps), n)
    numbers = {}
    for one, column in zip(scaled, values.T):
        found = column[~np.isnan(column)]
        if len(found) >= max(min_count, 1) and not sums_only:
            # Fewer gaps than min_count are not told: the column counts as full.
            rows = n if 0 < n - len(found) < min_count else len(found)
            numbers[one.column] = (rows, _rounded(float(found.mean())), _rounded(float(found.std())))
    levels = {}
    for name in features:
        if kinds.get(name, Column()).kind == "category":
            own, sign = gaps_of(name, gaps), kinds[name].separator
            known = (cell for cell in cells[name] if cell not in own and plain(cell) not in own)
            counts = Counter(part for cell in known for part in parts(cell, sign))
            often = [level for level, count in counts.most_common(MOST_LEVELS) if count >= min_count]
            short = (level for level in often if len(level) <= LONGEST_VALUE and not CONTROL.search(level))
            levels[name] = tuple(in_order(short))
    return TableFingerprint(tuple(features), kinds, numbers, levels, dates)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def inputs(tables: Mapping[str, TableFingerprint]) -> int:
    """How many numbers the network gets of a row, with the levels of all sites; of at least one site."""
    one = next(iter(tables.values()))
    return sum(map(len, features_of(one.features, _with_levels(one.columns, tables))))


def _with_levels(columns: Known, tables: Mapping[str, TableFingerprint]) -> dict[str, Column]:
    levels = {name: _levels(name, tables) for name, one in columns.items() if one.kind == "category"}
    return {name: replace(one, levels=levels.get(name)) for name, one in columns.items()}


def agreed(tables: Mapping[str, TableFingerprint]) -> list[tuple[str, str, str]]:
    """(setting, value, reason): the levels of all sites, and mean and spread over all their training rows.

    A missing number counts as the mean. A number that varies nowhere, or of which no site may tell anything, becomes 0.
    UserError where the sites' features differ, or how they are read.
    """
    if not tables:
        return []
    first = next(iter(tables))
    one = tables[first]
    for site, other in tables.items():
        if other.features != one.features or dict(other.columns) != dict(one.columns):
            odd = sorted(set(other.features) ^ set(one.features)) or ["their order, or how columns are read"]
            raise UserError(f"plan: expected the same features at {first} and {site}; they differ in {some(odd, 3)}")
    found, sites = [], _count(len(tables), "site", "sites")
    if n := sum(column.kind == "category" for column in one.columns.values()):
        reason = f"the levels of {_count(n, 'category', 'categories')} at {sites}"
        found.append(("task.columns", as_text(_with_levels(one.columns, tables)), reason))
    scaled, _ = features_of(one.features, one.columns)
    if scaled:
        means, stds = zip(*(_pooled(feature.column, tables) for feature in scaled))
        centre, spread = (torch.tensor(values, dtype=torch.float64) for values in (means, stds))
        reason = f"mean and spread of {_count(len(scaled), 'number', 'numbers')} over the training rows of {sites}"
        found.append(("task.scaling", as_scaling(Scaling(centre, centre, spread)), reason))
    return found


def _levels(name: str, tables: Mapping[str, TableFingerprint]) -> tuple[str, ...]:
    every = in_order(level for table in tables.values() for level in table.levels.get(name, ()))
    return tuple(every[:MOST_LEVELS])


def _pooled(name: str, tables: Mapping[str, TableFingerprint]) -> tuple[float, float]:
    parts = [tables[site].numbers[name] for site in in_order(tables) if name in tables[site].numbers]
    total = sum(n for n, _, _ in parts)
    if not total:
        return 0.0, SILENT
    mean = math.fsum(n * m for n, m, _ in parts) / total
    std = math.sqrt(math.fsum(n * (s**2 + (m - mean) ** 2) for n, m, s in parts) / total)
    return _rounded(mean), SILENT if std <= STILL * abs(mean) or std == 0 else _rounded(min(std, SILENT))


def _count(n: int, one: str, several: str) -> str:
    return f"{n} {one if n == 1 else several}"
