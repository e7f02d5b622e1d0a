# SPDX-License-Identifier: Apache-2.0
"""Tables as people lay them out: one of several sheets, names below a title or in two rows, merged and hidden cells."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pandas as pd

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import flag, shown, some
from fairflare.data.readers.limits import check
from fairflare.data.readers.tables import EXCEL, Rows, read_columns
from fairflare.import_data.proposal import Choices, Reading

HEADER = re.compile(r"([1-9]\d{0,2})(?:-([1-9]\d{0,2}))?")
HIDDEN_ROW = re.compile(rb'<(?:\w+:)?row\b(?=[^>]*\bhidden="(?:1|true)")[^>]*\br="(\d+)"')
HIDDEN_COLUMN = re.compile(rb'<(?:\w+:)?col\b(?=[^>]*\bhidden="(?:1|true)")[^>]*>')
ENDS = re.compile(rb'\b(min|max)="(\d+)"')
MERGED = re.compile(rb'<(?:\w+:)?mergeCell\b[^>]*\bref="([A-Z]{1,3})(\d{1,7}):([A-Z]{1,3})(\d{1,7})"')
MOST_MERGED, LAST_COLUMN, FIRST_ROWS = 100_000, 16_384, 20


@dataclass(frozen=True)
class Layout:
    """What a sheet says beside its cells; rows count from 1, columns from 0.

    Attributes:
        merged: first row -> (last row, first column, last column) of cells that are one.
        rows: those that are hidden.
        columns: those that are hidden.
    """

    merged: dict[int, list[tuple[int, int, int]]]
    rows: frozenset[int]
    columns: frozenset[int]


NOTHING = Layout({}, frozenset(), frozenset())


def read_laid_out(path: Path, chosen: Choices) -> tuple[dict[str, list[str]], list[str]]:
    """Column -> cells as ``read_columns``, and notes on what was filled or hidden.

    Raises:
        DataError: as of ``read_columns``, with the flags that help.
        UserError: a flag does not fit, or hidden or units' rows may count or not, and nobody can be asked.
    """
    match = HEADER.fullmatch(chosen.header or "1")
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise UserError(f"--header: expected a row's number, or rows such as 1-2, got {shown(chosen.header)}")
    first, last = int(match[1]), int(match[2] or match[1])
    excel = path.suffix.lower() in EXCEL
    if chosen.sheet and not excel:
        raise UserError(f"--sheet: expected an Excel file, got {path.name}")
    layout = _layout(path, chosen.sheet) if excel and zipfile.is_zipfile(path) else NOTHING
    notes: list[str] = []
    skips = _skips(path, layout, chosen, notes)

    def arranged(rows: Rows) -> Rows:
        head: list[list[str]] = []
        for place, cells in _filled(rows, layout, last):
            row = int(place.split()[-1])
            if row < first or (skips and row in layout.rows):
                continue
            if row < last:  # names of groups of columns, each over all of its columns
                names = pd.Series(cells, dtype=object).str.strip()
                cells = list(names.where(names != "").ffill().fillna(""))
            cells = [cell for k, cell in enumerate(cells) if not (skips and k in layout.columns)]
            if row > last and not head:
                raise DataError("unreadable", f"table {path.name}: expected names in row {first}, got an empty one")
            if row <= last:
                head.append(cells)
            if row == last:
                yield place, _joined(head)
            elif row > last:
                yield place, cells

    plain = not chosen.header and layout == NOTHING
    try:
        columns = read_columns(path, chosen.sheet, (lambda rows: rows) if plain else arranged)
    except DataError as error:
        raise DataError(error.code, f"{error}{_remedy(path, str(error), chosen)}") from None
    if layout.merged:
        notes.append(f"{path.name}: merged cells: each of their rows has their value")
    return columns, notes


def _skips(path: Path, layout: Layout, chosen: Choices, notes: list[str]) -> bool:
    """Whether hidden rows and columns are left out: asks."""
    if not (layout.rows or layout.columns):
        return False
    from openpyxl.utils import get_column_letter

    names = [get_column_letter(k + 1) for k in sorted(layout.columns)]
    parts = [f"{len(layout.rows)} rows"] * bool(layout.rows) + [f"columns {some(names, 6)}"] * bool(names)
    what = f"{path.name}: {' and '.join(parts)} are hidden"
    ways = [Reading("they count", "--hidden read"), Reading("they do not", "--hidden skip")]
    skips = bool(chosen.ask(what, ways)) if not chosen.hidden else chosen.hidden == "skip"
    notes.append(f"{what} and {'left out' if skips else 'read'}")
    return skips


def _layout(path: Path, name: str) -> Layout:
    """Of the sheet ``name``, or the only one with cells, whose part is searched as text: the reader unpacks it, too."""
    from openpyxl import load_workbook
    from openpyxl.utils import column_index_from_string as place

    try:
        with zipfile.ZipFile(path) as parts:
            check(f"table {path.name}", workbook=sum(one.file_size for one in parts.infolist()))
            book = load_workbook(path, read_only=True, keep_links=False)
            sheets = {sheet.title: sheet for sheet in book.worksheets}
            full = [
                one for one in sheets.values() if any(map(any, islice(one.iter_rows(values_only=True), MOST_MERGED)))
            ]
            full = [sheets[name]] if name else full
            text = parts.read(full[0]._worksheet_path) if len(full) == 1 else b""
            book.close()
    except DataError:
        raise
    except Exception:  # no such sheet, or what reads the cells says what is wrong
        return NOTHING
    merged: dict[int, list[tuple[int, int, int]]] = {}
    for k, (left, top, right, bottom) in enumerate(MERGED.findall(text)):
        if k >= MOST_MERGED:
            raise DataError("unreadable", f"table {path.name}: expected at most {MOST_MERGED:,} merged cells, got more")
        merged.setdefault(int(top), []).append((int(bottom), *(place(end.decode()) - 1 for end in (left, right))))
    columns: set[int] = set()
    for one in HIDDEN_COLUMN.findall(text):
        ends = {key: int(value) for key, value in ENDS.findall(one)}
        columns |= {*range(ends.get(b"min", 1) - 1, min(ends.get(b"max", 0), LAST_COLUMN))}
    columns = columns if max(columns, default=0) < LAST_COLUMN - 1 else set()  # all to the right of the table
    return Layout(merged, frozenset(map(int, HIDDEN_ROW.findall(text))), frozenset(columns))


def _filled(rows: Rows, layout: Layout, head: int) -> Iterator[tuple[str, list[str]]]:
    """``rows`` with the value of merged cells in each of them; in the last row of names, and above, it stands once."""
    open_now: list[tuple[int, int, int, str]] = []
    for place, cells in rows:
        row = int(place.split()[-1])
        open_now = [one for one in open_now if one[0] >= row]
        for bottom, left, right in layout.merged.get(row, ()) if row > head else ():
            open_now.append((bottom, left, right, cells[left] if left < len(cells) else ""))
        if open_now:
            cells = [*cells]
            for _, left, right, value in open_now:
                for k in range(left, min(right + 1, len(cells))):
                    cells[k] = cells[k] or value
        yield place, cells


def _joined(head: list[list[str]]) -> list[str]:
    """The names of columns whose parts stand in several rows."""
    n = max(map(len, head))
    parts = [[row[k].strip() if k < len(row) else "" for row in head] for k in range(n)]
    return [" ".join(dict.fromkeys(filter(None, own))) if own[-1] or n == 1 else own[0] for own in parts]


def _remedy(path: Path, text: str, chosen: Choices) -> str:
    """The flags that help against an error of the reader; raises UserError where the sheet is not there."""
    if "expected one sheet with cells" in text or (chosen.sheet and "got an empty file" in text):
        with pd.ExcelFile(path) as book:  # of files of before 2007, too
            names = [*map(str, book.sheet_names)]
        if chosen.sheet and chosen.sheet not in names:
            raise UserError(f"--sheet: expected one of {some([*map(shown, names)], 12)}, got {shown(chosen.sheet)}")
        whole = "; where each is a hospital's: save each as a file of its own in one folder"
        if not chosen.sheet:
            return f"; or {some([flag('sheet', name) for name in names], 12)}{whole}"
    if not re.search("nothing may stand above|column names in the first row", text) or chosen.header:
        return ""
    widths: dict[int, int] = {}

    def watched(rows: Rows) -> Rows:
        for _, (place, cells) in zip(range(FIRST_ROWS), rows):
            widths[int(place.split()[-1])] = sum(map(bool, map(str.strip, cells)))
        yield "row 1", ["a"]

    # --header is of every table of the folder.
    if any(one.suffix.lower() in (".csv", ".tsv") for one in path.parent.glob("*")):
        return "; or take the rows above the names out of this file"
    read_columns(path, chosen.sheet, watched)
    row = max(widths, key=lambda row: widths[row])
    return f"; or --header {row} takes the names from row {row}"
