# SPDX-License-Identifier: Apache-2.0
"""A table as values: rows, columns, numbers with their intervals, caption and footnotes; ``table_files`` writes it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fairflare.report.values import MISSING, json_value, number, signed, text

FORMAT = 1
KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NUMBERS = ("value", "low", "high", "spread", "n", "published")
Better = Literal["", "higher", "lower"]
Mark = Literal["", "best", "dominated"]


@dataclass(frozen=True)
class Form:
    """How the numbers of a column or a cell are written.

    Args:
        digits: decimals, 0 to 12.
        signed: a difference, with its sign.
        scale: what a value is multiplied by where people read it (100 for per cent); CSV and JSON keep the value.
    """

    digits: int = 3
    signed: bool = False
    scale: float = 1.0

    def write(self, value: Any) -> str:
        found = number(value)
        scaled = None if found is None else found * self.scale
        return (signed if self.signed else text)(scaled, self.digits)

    def width(self, value: float) -> str:
        """A distance (half an interval, a standard deviation) in the same decimals, without a sign."""
        return text(value * self.scale, self.digits)


PLAIN = Form()


@dataclass(frozen=True)
class Cell:
    """One value of a table.

    Args:
        spread: what stands behind "±" (half an interval, a standard deviation: the caption says which).
        published: the number that a paper prints in this place, on the same data.
        words: text in place of a number.
        mark: "best" of a column, "dominated" (another row is at least as good in every compared column).
        notes: numbers of footnotes, from 1.
        form: how its numbers are written where that is not the column's.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    n: int | None = None
    published: float | None = None
    words: str = ""
    mark: Mark = ""
    notes: tuple[int, ...] = ()
    form: Form | None = None

    @classmethod
    def of(cls, found: Mapping[str, Any], *, half: bool = True, **more: Any) -> Cell:
        """A mean with its interval ({"mean", "low", "high", "n"}, see ``fairness.mean_ci``).

        Args:
            half: write "0.812 ± 0.010" and not "0.812 [0.802, 0.822]".
        """
        mean, low, high = (found.get(key) for key in ("mean", "low", "high"))
        spread = None if high is None or mean is None or not half else high - mean
        return cls(mean, low, high, spread, found.get("n"), **more)

    @classmethod
    def text(cls, words: Any, **more: Any) -> Cell:
        return cls(words=str(words), **more)

    def written(self, form: Form) -> str:
        """What people read: "0.812 ± 0.010", "0.812 [0.802, 0.822]", "0.812", words, or an en dash."""
        own = self.form or form
        if self.words:
            return self.words
        if number(self.value) is None:
            return MISSING
        if self.spread is not None and math.isfinite(self.spread):
            return f"{own.write(self.value)} \N{PLUS-MINUS SIGN} {own.width(self.spread)}"
        return own.write(self.value) + self.interval(form)

    def interval(self, form: Form) -> str:
        own = self.form or form
        return "" if self.low is None or self.high is None else f" [{own.write(self.low)}, {own.write(self.high)}]"

    def to_json(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in NUMBERS}
        kept = {name: value for name, value in numbers.items() if name == "value" or value is not None}
        kept |= {name: getattr(self, name) for name in ("words", "mark", "notes") if getattr(self, name)}
        return json_value(kept)


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        group: a heading above it and its neighbours of the same group.
        better: which values are better, "" where neither are.
        form: how its numbers are written.
        words: it holds text, which stands at the left.
    """

    key: str
    title: str
    group: str = ""
    better: Better = ""
    form: Form = PLAIN
    words: bool = False


@dataclass(frozen=True)
class Row:
    """A row.

    Args:
        cells: column -> value; one that is not there is empty.
        group: a heading above it and its neighbours of the same group.
        notes: numbers of footnotes.
    """

    key: str
    title: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    group: str = ""
    notes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table that every writer of ``table_files`` can write.

    Args:
        key: its name in files and labels: small letters, digits, ".", "_" and "-".
        caption: what the numbers are, what "±" is, which data they are of.
        footnotes: sentences; cells and rows name them by number, from 1.

    Raises:
        ValueError: a key is no file name, is there twice, or a cell names a column or footnote that is not there.
    """

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    stub: str = "Method"
    caption: str = ""
    footnotes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not KEY.fullmatch(self.key):
            raise ValueError(f"key: expected small letters, digits, '.', '_' and '-', got {self.key!r}")
        names = [column.key for column in self.columns]
        for what, found in (("column", names), ("row", [row.key for row in self.rows])):
            if twice := {key for key in found if found.count(key) > 1}:
                raise ValueError(f"{self.key}: expected every {what} once, got {sorted(twice)} again")
        for row in self.rows:
            if strange := set(row.cells) - set(names):
                raise ValueError(f"{self.key}: row {row.key!r} has no column {sorted(strange)}")
            notes = {*row.notes, *(note for cell in row.cells.values() for note in cell.notes)}
            if notes - set(range(1, len(self.footnotes) + 1)):
                raise ValueError(
                    f"{self.key}: row {row.key!r} names footnotes {sorted(notes)} of {len(self.footnotes)}"
                )

    def cell(self, row: Row, column: Column) -> Cell:
        return row.cells.get(column.key, Cell())

    def to_json(self) -> dict[str, Any]:
        columns = [
            {"key": c.key, "title": c.title, "group": c.group, "better": c.better, "scale": c.form.scale}
            for c in self.columns
        ]
        rows = [
            {
                "key": row.key,
                "title": row.title,
                "group": row.group,
                "notes": list(row.notes),
                "cells": {c.key: self.cell(row, c).to_json() for c in self.columns},
            }
            for row in self.rows
        ]
        about = {key: getattr(self, key) for key in ("key", "title", "caption", "stub")}
        return {"format": FORMAT, **about, "columns": columns, "rows": rows, "footnotes": list(self.footnotes)}


def with_best(table: Table) -> Table:
    """The table with the best value of each column that says which is better marked; equal as written is equally good.

    Marks of its cells stay where they are; a column with one value gets none.
    """
    best = {(key, column.key) for column in table.columns for key in _best(table, column)}
    rows = [
        replace(row, cells={key: _marked(cell, (row.key, key) in best) for key, cell in row.cells.items()})
        for row in table.rows
    ]
    return replace(table, rows=rows)


def headings(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """(group, how many neighbouring columns it is of), in order; [] where no column has one."""
    found: list[tuple[str, int]] = []
    for column in columns:
        if found and found[-1][0] == column.group:
            found[-1] = (column.group, found[-1][1] + 1)
        else:
            found.append((column.group, 1))
    return found if any(column.group for column in columns) else []


def _best(table: Table, column: Column) -> list[str]:
    written = {
        row.key: round(cell.value * form.scale, form.digits)
        for row in table.rows
        if (cell := table.cell(row, column)).value is not None and math.isfinite(cell.value)
        if (form := cell.form or column.form)
    }
    if not column.better or len(written) < 2:
        return []
    top = (max if column.better == "higher" else min)(written.values())
    return [key for key, value in written.items() if value == top]


def _marked(cell: Cell, best: bool) -> Cell:
    return replace(cell, mark="best") if best and not cell.mark else cell
