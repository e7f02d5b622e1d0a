# SPDX-License-Identifier: Apache-2.0
"""A table as values (rows, columns, numbers with their intervals), and as Markdown, CSV, HTML and JSON.

Names come from sites, plugins and files: every writer escapes what its form would otherwise read as markup or a
spreadsheet's formula. Where people read numbers they are rounded; CSV and JSON keep them whole. Not by
pandas' Styler, which escapes no caption, knows no groups of rows, footnotes or ``scope`` and writes no Markdown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any, Literal

from fairflare.engine.files import save_json, save_text
from fairflare.report.frames import csv_text, markdown, piped
from fairflare.report.values import MISSING, drawn, json_value, number, rendered_from, signed, text

FORMAT = 1
KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
NUMBERS = ("value", "low", "high", "spread", "n", "published", "published_spread")
CSV_COLUMNS = ("table", "group", "row", "column_group", "column", *NUMBERS, "words", "mark", "notes")
ENDINGS = ("json", "csv", "md", "html")
"""The files that ``write_tables`` writes, each with the same name."""
Better = Literal["", "higher", "lower"]
Mark = Literal["", "best"]
Notes = tuple[int, ...]


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
        return (signed if self.signed else text)(None if found is None else found * self.scale, self.digits)

    def width(self, value: float) -> str:
        """A distance (half an interval, a standard deviation) in the same decimals, without a sign."""
        return text(value * self.scale, self.digits)


@dataclass(frozen=True)
class Cell:
    """One value of a table with the ends of its interval, as far as there are any.

    Args:
        spread: what stands behind "±" (half an interval, a standard deviation: the caption says which).
        n: how many values it is of.
        published: the number that a paper prints in this place, on the same data; ``published_spread`` behind it.
        words: text in place of a number.
        mark: "best" of a column.
        notes: numbers of footnotes, from 1.
        form: how its numbers are written where that is not the column's.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    n: int | None = None
    published: float | None = None
    published_spread: float | None = None
    words: str = ""
    mark: Mark = ""
    notes: Notes = ()
    form: Form | None = None

    @classmethod
    def of(cls, found: Mapping[str, Any], *, sd: bool = True, **more: Any) -> Cell:
        """Of ``fairness.mean_ci``: "0.812 ± 0.010" with the standard deviation, else "0.812 [0.802, 0.822]"."""
        mean, low, high = (found.get(key) for key in ("mean", "low", "high"))
        return cls(mean, low, high, found.get("sd") if sd else None, found.get("n"), **more)

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
        ends = self.interval(form)
        return own.write(self.value) + (f" [{', '.join(ends)}]" if ends else "")

    def interval(self, form: Form) -> list[str]:
        """Both ends, or [] where there are none."""
        own = self.form or form
        return [] if self.low is None or self.high is None else [own.write(self.low), own.write(self.high)]

    def to_json(self) -> dict[str, Any]:
        numbers = {name: value for name in NUMBERS if (value := getattr(self, name)) is not None or name == "value"}
        words = {name: said for name in ("words", "mark", "notes") if (said := getattr(self, name))}
        return json_value(numbers | words)


@dataclass(frozen=True)
class Column:
    """A column; ``words``: it holds text, which stands at the left.

    ``group`` is a heading above it and its neighbours of the same group.
    """

    key: str
    title: str
    group: str = ""
    better: Better = ""
    form: Form = Form()
    words: bool = False


@dataclass(frozen=True)
class Row:
    """A row: column -> cell, empty where there is none, and numbers of footnotes; ``group`` as of ``Column``."""

    key: str
    title: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    group: str = ""
    notes: Notes = ()


@dataclass(frozen=True)
class Table:
    """A table, which every writer here can write.

    Args:
        key: its name in files and labels: small letters, digits, ".", "_" and "-".
        stub: the heading of the rows' headings.
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
                of = f"of {len(self.footnotes)}"
                raise ValueError(f"{self.key}: row {row.key!r} names footnotes {sorted(notes)} {of}")

    def cell(self, row: Row, column: Column) -> Cell:
        return row.cells.get(column.key, Cell())

    def groups(self) -> list[tuple[str, list[Row]]]:
        """Neighbouring rows of one group, with its name."""
        return [(group, list(rows)) for group, rows in groupby(self.rows, key=lambda row: row.group)]

    def headings(self) -> list[tuple[str, int]]:
        """(group, how many neighbouring columns it is of), in order; [] where no column has one."""
        found = [(group, len(list(columns))) for group, columns in groupby(self.columns, key=lambda one: one.group)]
        return found if any(group for group, _ in found) else []

    def to_json(self) -> dict[str, Any]:
        keys = ("key", "title", "group", "better")
        columns = [{**{key: getattr(c, key) for key in keys}, "scale": c.form.scale} for c in self.columns]
        rows = []
        for row in self.rows:
            cells = {c.key: self.cell(row, c).to_json() for c in self.columns}
            rows.append({**{key: getattr(row, key) for key in keys[:3]}, "notes": list(row.notes), "cells": cells})
        about = {key: getattr(self, key) for key in ("key", "title", "caption", "stub")}
        return {"format": FORMAT, **about, "columns": columns, "rows": rows, "footnotes": list(self.footnotes)}


def with_best(table: Table) -> Table:
    """The table with the best value of each column that says which is better marked; equal as written is equally good.

    Marks of its cells stay where they are; a column with one value gets none.
    """
    best = set()
    for column in (column for column in table.columns if column.better):
        written = {}
        for row in table.rows:
            cell, form = table.cell(row, column), table.cell(row, column).form or column.form
            if cell.value is not None and math.isfinite(cell.value):
                written[row.key] = round(cell.value * form.scale, form.digits)
        if len(written) > 1:
            top = (max if column.better == "higher" else min)(written.values())
            best |= {(key, column.key) for key, value in written.items() if value == top}

    def marked(row: Row, key: str, cell: Cell) -> Cell:
        return replace(cell, mark="best") if (row.key, key) in best and not cell.mark else cell

    rows = [replace(row, cells={key: marked(row, key, cell) for key, cell in row.cells.items()}) for row in table.rows]
    return replace(table, rows=rows)


def as_markdown(table: Table, *, heading: int | None = None) -> str:
    """A Markdown table under its caption, and a heading of this level (1 to 6, None: none), over its footnotes."""
    names = [f"{c.group}: {c.title}" if c.group else c.title for c in table.columns]
    lines = [[markdown(name) for name in (table.stub, *names)]]
    lines += [["---", *("---" if column.words else "--:" for column in table.columns)]]
    for group, rows in table.groups():
        lines += [[f"**{markdown(group)}**", *("" for _ in table.columns)]] if group else []
        for row in rows:
            cells = [_markdown_cell(table.cell(row, column), column) for column in table.columns]
            lines.append([markdown(row.title) + _raised(row.notes), *cells])
    parts = [f"{'#' * heading} {markdown(table.title)}"] if heading else []
    parts += [markdown(table.caption), piped(lines)]
    parts += ["\n".join(f"{i}. {markdown(note)}" for i, note in enumerate(table.footnotes, 1))]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_csv(*tables: Table) -> str:
    """One line per cell, numbers unrounded; text that a spreadsheet would take for a formula begins with "'"."""
    lines: list[tuple[Any, ...]] = []
    for table in tables:
        for row, column in product(table.rows, table.columns):
            cell, where = table.cell(row, column), (table.key, row.group, row.key, column.group, column.key)
            notes = " ".join(map(str, (*row.notes, *cell.notes)))
            lines.append((*where, *(getattr(cell, name) for name in NUMBERS), cell.words, cell.mark, notes))
    return csv_text(CSV_COLUMNS, lines)


def as_html(
    title: str,
    tables: Sequence[Table],
    *,
    lead: Sequence[str] = (),
    figures: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
) -> str:
    """One page that needs nothing beside it, in light, dark and print, in the style of the reports.

    Args:
        lead: sentences above the tables, each a paragraph.
        figures: SVG elements of ``report.svg``, which escapes what they hold; no other markup is let through.
        facts: name -> text, at the end: the command, versions, the machine.
    """
    pages, told = [shown(table) for table in tables], dict(facts or {})
    return rendered_from(
        Path(__file__).parent, "tables", title=title, tables=pages, lead=list(lead), figures=drawn(figures), facts=told
    )


def write_tables(
    folder: Path,
    name: str,
    title: str,
    tables: Sequence[Table],
    *,
    lead: Sequence[str] = (),
    figures: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
    with_json: bool = True,
) -> list[Path]:
    """Write NAME.json, NAME.csv, NAME.md and NAME.html to ``folder``, which exists; return their paths.

    Args:
        lead: see ``as_html``; stands in the Markdown file, too.
        with_json: False where the caller writes NAME.json in a form of its own.
    """
    told = dict(facts or {})
    if with_json:
        content = {"title": title, "lead": list(lead), "facts": told}
        save_json(folder / f"{name}.json", {**content, "tables": [table.to_json() for table in tables]})
    parts = [f"# {markdown(title)}\n", *(f"{markdown(sentence)}\n" for sentence in lead)]
    parts += [as_markdown(table, heading=2 if len(tables) > 1 else None) for table in tables]
    parts += ["\n".join(f"- {markdown(name)}: {markdown(text)}" for name, text in told.items()) + "\n"] if told else []
    texts = {"csv": as_csv(*tables), "md": "\n".join(parts)}
    texts["html"] = as_html(title, tables, lead=lead, figures=figures, facts=told)
    for ending, content_of in texts.items():
        save_text(folder / f"{name}.{ending}", content_of)
    return [folder / f"{name}.{ending}" for ending in ENDINGS if with_json or ending != "json"]


def shown(table: Table) -> dict[str, Any]:
    """What the macro ``one_table`` of the templates takes."""

    def told(cell: Cell, column: Column) -> dict[str, Any]:
        form = cell.form or column.form
        below = " to ".join(cell.interval(column.form)) if cell.spread is None else ""
        said = form.write(cell.value) if below and not cell.words else cell.written(column.form)
        words = column.words or len(cell.words) > 24
        return {"text": said, "below": below, "published": _published(cell, form), "cell": cell, "words": words}

    def row_of(row: Row) -> dict[str, Any]:
        return {"row": row, "cells": [told(table.cell(row, column), column) for column in table.columns]}

    heads = [[table.stub], *([column.title] if column.words else column.title for column in table.columns)]
    parts = [{"group": group, "rows": [row_of(row) for row in rows]} for group, rows in table.groups()]
    return {"table": table, "heads": heads, "over": table.headings(), "parts": parts}


def _markdown_cell(cell: Cell, column: Column) -> str:
    around = "**" if cell.mark == "best" else ""
    said = markdown(cell.words) if cell.words else cell.written(column.form)
    published = _published(cell, cell.form or column.form)
    paper = f" (paper {published})" if published else ""
    return f"{around}{said}{around}{paper}{_raised(cell.notes)}"


def _published(cell: Cell, form: Form) -> str:
    return Cell(cell.published, spread=cell.published_spread).written(form) if cell.published is not None else ""


def _raised(notes: Notes) -> str:
    return f" <sup>{','.join(map(str, notes))}</sup>" if notes else ""
