# SPDX-License-Identifier: Apache-2.0
"""Reading a hospital's table, whatever wrote it: CSV of any dialect, Excel, Parquet; every cell comes out as text."""

from __future__ import annotations

import codecs
import csv
import datetime
import math
import numbers
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import shown

if TYPE_CHECKING:
    import pandas as pd

EXCEL = (".xlsx", ".xlsm", ".xls")
PARQUET = (".parquet",)
SUFFIXES = (".csv", ".tsv", ".txt", *EXCEL, *PARQUET)
"""Of files that may be tables; every one that is neither Excel's nor Parquet is read as text with delimiters."""
LONGEST_CELL = 32_768
"""Characters of a cell, about what Excel takes."""
MOST_COLUMNS = 20_000
LARGEST_EXCEL = 2**30
"""Bytes of an Excel file's parts, unpacked."""
LONGEST_LINE = 2**24
"""Characters of a line of a text file."""
DELIMITERS = ",;\t|"
SAID = re.compile(r"sep=([,;|\t])")
"""What Excel writes into the first line where it says the delimiter."""
SAMPLE = 2**16
"""Bytes that show how a file is written."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-", ".", "#n/a", "#nv"})
"""What stands for a missing number, in small letters."""
ROWS_LOOKED_AT = 50
"""Lines that show what delimits the cells."""

ENGLISH = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
GERMAN = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
"""Whole numbers of at least 1000 with marks of thousands; those with one mark may be decimals."""
COMMA = re.compile(r"[+-]?(\d*|[1-9]\d{0,2}(\.\d{3})+),\d+([eE][+-]?\d+)?|[+-]?[1-9]\d{0,2}(\.\d{3}){2,}")
POINT = re.compile(r"[+-]?(\d*|[1-9]\d{0,2}(,\d{3})+)\.\d+([eE][+-]?\d+)?|[+-]?[1-9]\d{0,2}(,\d{3}){2,}")
"""Numbers whose decimals begin with a comma, or a point."""
IN_COMMAS, IN_POINTS = (COMMA, ENGLISH), (POINT, GERMAN)
NUMBER = re.compile(rf"[+-]?\d+([eE][+-]?\d+)?|{ENGLISH.pattern}|{GERMAN.pattern}|{COMMA.pattern}|{POINT.pattern}")


def read_table(path: Path) -> pd.DataFrame:
    """A table with every cell as text without spaces around it, "" where it is empty.

    A text file's delimiter is one of comma, semicolon, tab and bar, its encoding UTF-8, UTF-16 or Windows-1252. Where
    the comma does not delimit, numbers with decimal commas get decimal points. An Excel file's table is that of its
    only sheet with cells. Dates are YYYY-MM-DD, whole numbers have no point, true is 1.

    Raises:
        DataError: the file is no table, is empty, names a column twice, has rows with more cells than columns, more
            than ``MOST_COLUMNS`` columns or a cell of more than ``LONGEST_CELL`` characters.
        UserError: a package is missing that reads this kind of file.
    """
    import pandas as pd

    if path.suffix.lower() in PARQUET:
        return _parquet(path)
    names, rows = _cells(path)
    return pd.DataFrame(rows, columns=names, dtype=object)


def read_columns(path: Path) -> dict[str, list[str]]:
    """Column -> its cells, as ``read_table`` reads them; of a text file without pandas."""
    if path.suffix.lower() in PARQUET:
        table = read_table(path)
        return {name: list(table[name]) for name in table.columns}
    names, rows = _cells(path)
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        if not path.stat().st_size:
            raise _refused(path, "unreadable", "expected a table, got an empty file")
        return _table(path, _excel_rows(path) if path.suffix.lower() in EXCEL else _text_rows(path))
    except OSError as error:
        raise _refused(path, "unreadable", f"cannot be read ({error.strerror})") from None


def as_cell(value: object) -> str:
    """A typed cell as a text file would have it: 1.0 and true as 1, a date as YYYY-MM-DD, a missing one as ""."""
    if value is None:
        return ""
    if type(value).__name__ in ("bool", "bool_"):
        return str(int(bool(value)))
    if isinstance(value, datetime.datetime):  # pandas' times among them
        if value != value:  # its missing time
            return ""
        return value.isoformat(" ").removesuffix(" 00:00:00")
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        number = float(value)
        if math.isnan(number):
            return ""
        return str(int(number)) if number.is_integer() and abs(number) < 1e16 else str(number)
    text = str(value)
    return "" if text in ("<NA>", "NaT") else text.strip()


def _refused(path: Path, check: str, text: str) -> DataError:
    return DataError(check, f"table {path.name}: {text}")


def _table(path: Path, rows: Iterable[tuple[str, list[str]]]) -> tuple[list[str], list[list[str]]]:
    """Column names and cells of the rows ("line 1", cells), every row as long as the header."""
    names: list[str] = []
    found: list[list[str]] = []
    for place, cells in rows:
        if not names:
            names = _names(path, cells)
            continue
        row = [cell.strip() for cell in cells]
        if len(row) > len(names) and any(row[len(names) :]):
            text = f"expected {len(names)} cells, as the header has, got {len(row)}: nothing may stand above it"
            raise _refused(path, "unreadable", f"{place}: {text}")
        longest = max(map(len, row), default=0)
        if longest > LONGEST_CELL:
            at = next(k for k, cell in enumerate(row) if len(cell) == longest)
            text = f"{place}: {shown(names[at])}: expected a cell of at most {LONGEST_CELL:,} characters"
            raise _refused(path, "unreadable", f"{text}, got {longest:,}")
        if any(row):
            found.append((row + [""] * (len(names) - len(row)))[: len(names)])
    if not names:
        raise _refused(path, "unreadable", "expected a table, got an empty file")
    kept = [k for k, name in enumerate(names) if name or any(row[k] for row in found)]
    if len(kept) < len(names):
        found = [[row[k] for k in kept] for row in found]
    return [names[k] or f"Unnamed: {k}" for k in kept], found


def _names(path: Path, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    while names and not names[-1]:
        names.pop()
    _check_names(path, names)
    return names


def _check_names(path: Path, names: Sequence[str]) -> None:
    if len(names) > MOST_COLUMNS:
        raise _refused(path, "column", f"expected at most {MOST_COLUMNS:,} columns, got {len(names):,}")
    if not any(names):
        raise _refused(path, "unreadable", "expected column names in the first row, got none")
    if long := [len(name) for name in names if len(name) > LONGEST_CELL]:
        text = f"expected column names of at most {LONGEST_CELL:,} characters, got one of {long[0]:,}"
        raise _refused(path, "unreadable", text)
    if twice := [name for name, n in Counter(names).items() if name and n > 1]:
        raise _refused(path, "column", f"expected every column once, got {shown(twice[0])} twice")


def _text_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The rows of a text file; where the comma is not the delimiter, with decimal points for decimal commas."""
    encoding = _encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        head = list(islice(_lines(path, file), ROWS_LOOKED_AT))
    said = SAID.fullmatch(head[0].strip()) if head else None
    delimiter = said[1] if said else _delimiter(head)
    with path.open(encoding=encoding, newline="") as file:
        if said:
            file.readline()
        reader = csv.reader(_lines(path, file), delimiter=delimiter, skipinitialspace=delimiter != "\t", strict=True)
        rows = _parsed(path, reader)
        yield from rows if delimiter == "," else _with_points(path, rows)


def _parsed(path: Path, reader: Any) -> Iterator[tuple[str, list[str]]]:
    try:
        for cells in reader:
            if cells:
                yield f"line {reader.line_num}", cells
    except csv.Error as error:
        if "field limit" in str(error):
            text = f"line {reader.line_num}: expected cells of at most {LONGEST_CELL:,} characters, got a longer one"
            raise _refused(path, "unreadable", text) from None
        text = f"line {reader.line_num}: cannot be read as CSV: a quotation mark is not closed, or text follows one"
        raise _refused(path, "unreadable", text) from None


def _lines(path: Path, file: Any) -> Iterator[str]:
    """The lines, none of which is read in full when it is too long for a table."""
    for n in range(1, 2**62):
        line = file.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) == LONGEST_LINE:
            text = f"line {n}: expected cells of at most {LONGEST_CELL:,} characters, got a line of over {len(line):,}"
            raise _refused(path, "unreadable", text)
        yield line


def _encoding(path: Path) -> str:
    """How the file's characters are written; DataError where they are none."""
    with path.open("rb") as file:
        head = file.read(SAMPLE)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        if head.count(b"\0", 1) * 3 > len(head):
            return "utf-16-le" if head[1:2] == b"\0" else "utf-16-be"
        strange = sum(byte < 32 and byte not in b"\t\n\r\f\x1a" for byte in head)
        if strange:
            other = "an Excel file" if head.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")) else "a binary file"
            raise _refused(path, "unreadable", f"expected text with delimited cells (CSV), got {other}")
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while head:
                decoder.decode(head)
                head = file.read(2**20)
            decoder.decode(b"", final=True)
            return "utf-8-sig"
        except UnicodeDecodeError:
            pass
        file.seek(0)
        undefined = bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D])
        chunks = iter(lambda: file.read(2**20), b"")
        return "latin-1" if any(set(undefined) & set(chunk) for chunk in chunks) else "cp1252"


def _delimiter(lines: Sequence[str]) -> str:
    """What delimits the cells: what gives every line as many as the header has, then the Sniffer's, then the most."""
    counts: dict[str, list[int]] = {}
    for mark in DELIMITERS:
        try:
            counts[mark] = [len(cells) for cells in csv.reader(lines, delimiter=mark, skipinitialspace=True) if cells]
        except csv.Error:
            continue
    several = {mark: found for mark, found in counts.items() if found and found[0] > 1}
    even = [mark for mark, found in several.items() if len(set(found)) == 1]
    if len(even) == 1:
        return even[0]
    candidates = even or list(several)
    if not candidates:
        return ","
    try:
        sniffed = csv.Sniffer().sniff("".join(lines), "".join(candidates)).delimiter
    except csv.Error:
        sniffed = ""
    return sniffed if sniffed in candidates else max(candidates, key=lambda mark: several[mark][0])


def _with_points(path: Path, rows: Iterable[tuple[str, list[str]]]) -> Iterator[tuple[str, list[str]]]:
    """The rows with decimal points, and no marks of thousands, in columns of numbers with decimal commas.

    1,234 and 1.234 are what the file's other numbers say: DataError where these say nothing, and 1.234 may be 1234.
    """
    found = list(rows)
    columns: dict[int, list[str]] = {}
    for k in range(max((len(cells) for _, cells in found), default=0)):
        cells = [row[k].strip() for _, row in found[1:] if k < len(row)]
        columns[k] = [cell for cell in cells if ("," in cell or "." in cell) and cell.lower() not in MISSING]
        if not all(NUMBER.fullmatch(cell) for cell in cells if cell.lower() not in MISSING):
            columns[k] = []
    commas, points = ({k for k, cells in columns.items() if _says(cells, *of)} for of in (IN_COMMAS, IN_POINTS))
    for k, cells in columns.items():
        if k in commas and k in points:
            raise _refused(path, "number", f"column {shown(found[0][1][k].strip())}: mixes decimal points and commas")
        doubtful = k not in commas and k not in points and any("," in cell or commas for cell in cells)
        if doubtful and bool(commas) == bool(points):
            text = f"column {shown(found[0][1][k].strip())}: {cells[0]} may be {cells[0].replace(',', '.')}"
            either = f"{text} or {cells[0].replace(',', '').replace('.', '')}"
            raise _refused(path, "number", f"{either}: expected decimal points throughout, and no marks of thousands")
        if k in commas or (doubtful and commas):
            _replace(found, k, ".", ",")
        elif doubtful or any("," in cell for cell in cells):
            _replace(found, k, ",", ".")
    yield from found


def _says(cells: Sequence[str], decimal: re.Pattern[str], thousands: re.Pattern[str]) -> bool:
    return any(decimal.fullmatch(cell) and not thousands.fullmatch(cell) for cell in cells)


def _replace(rows: list[tuple[str, list[str]]], k: int, thousands: str, decimal: str) -> None:
    """Decimal points, and no marks of thousands, in column ``k``."""
    for _, row in rows[1:]:
        if k < len(row) and row[k].strip().lower() not in MISSING:
            row[k] = row[k].replace(thousands, "").replace(decimal, ".")


def _excel_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    import pandas as pd

    try:
        if zipfile.is_zipfile(path) and sum(one.file_size for one in zipfile.ZipFile(path).infolist()) > LARGEST_EXCEL:
            most = f"expected an Excel file of at most {LARGEST_EXCEL // 2**20} MB unpacked"
            raise _refused(path, "unreadable", most)
        with pd.ExcelFile(path) as book:
            as_is: dict[str, Any] = {"header": None, "dtype": object, "na_filter": False}
            sheets = {str(name): pd.read_excel(book, sheet_name=name, **as_is) for name in book.sheet_names}
    except ImportError:
        raise UserError(f"table {path.name}: Excel files need a package: pip install 'fairflare[tables]'") from None
    except DataError:
        raise
    except Exception as error:  # the packages raise their own errors
        raise _refused(path, "unreadable", f"cannot be read as Excel ({type(error).__name__})") from None
    full = [name for name, sheet in sheets.items() if sheet.size]
    if len(full) > 1:
        text = f"expected one sheet with cells, got {', '.join(map(shown, full))}: save the one that counts alone"
        raise _refused(path, "unreadable", text)
    for name in full:
        for row, cells in enumerate(sheets[name].itertuples(index=False, name=None), 1):
            yield f"row {row}", [as_cell(cell) for cell in cells]


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            _check_names(path, [str(name).strip() for name in file.schema_arrow.names])
        table = pd.read_parquet(path)
    except ImportError:
        raise UserError(f"table {path.name}: Parquet needs pyarrow: pip install 'fairflare[tables]'") from None
    except DataError:
        raise
    except Exception as error:  # pyarrow raises its own errors
        raise _refused(path, "unreadable", f"cannot be read as Parquet ({type(error).__name__})") from None
    table = table.reset_index(drop=True).astype(object).map(as_cell)
    table.columns = [str(name).strip() for name in table.columns]
    for name in table.columns:
        longest = table[name].str.len().max() if len(table) else 0
        if longest > LONGEST_CELL:
            text = f"{shown(name)}: expected cells of at most {LONGEST_CELL:,} characters, got one of {longest:,}"
            raise _refused(path, "unreadable", text)
    return table
