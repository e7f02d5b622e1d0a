# SPDX-License-Identifier: Apache-2.0
"""Reading a hospital's table, whatever wrote it; every cell comes out as text.

CSV of any dialect, Excel, Parquet, SPSS, Stata and SAS. Each is held to ``LIMITS`` before it is unpacked.
"""

from __future__ import annotations

import codecs
import csv
import datetime
import math
import numbers
import re
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import shown
from fairflare.data.readers.formats import unread
from fairflare.data.readers.limits import LIMITS, check

if TYPE_CHECKING:
    import pandas as pd

EXCEL = (".xlsx", ".xlsm", ".xls")
PARQUET = (".parquet",)
STATISTICS = {".sav": "sav", ".zsav": "sav", ".por": "por", ".dta": "dta", ".sas7bdat": "sas7bdat", ".xpt": "xport"}
"""Ending of a file of SPSS, Stata or SAS -> what reads it in pyreadstat."""
SUFFIXES = (".csv", ".tsv", ".txt", *EXCEL, *PARQUET, *STATISTICS)
"""Of files that may be tables; every one that has none of the other formats' endings is text with delimiters."""
LAYOUT = ("sheet", "header", "hidden")
"""What ``init`` may be told of how a table lies in its file."""
DELIMITERS = ",;\t|"
SAID = re.compile(r"sep=([,;|\t])(\.?)")
"""What Excel writes into the first line where it says the delimiter."""
SAMPLE = 2**16
"""Bytes that show how a file is written."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-", ".", "#n/a", "#nv"})
"""What stands for a missing number, in small letters."""
ROWS_LOOKED_AT = 50
"""Lines that show what delimits the cells."""
Rows = Iterable[tuple[str, list[str]]]

ENGLISH = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
GERMAN = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
"""Whole numbers of at least 1000 with marks of thousands; those with one mark may be decimals."""
COMMA = re.compile(r"[+-]?(\d*|[1-9]\d{0,2}(\.\d{3})+),\d+([eE][+-]?\d+)?|[+-]?[1-9]\d{0,2}(\.\d{3}){2,}")
POINT = re.compile(r"[+-]?(\d*|[1-9]\d{0,2}(,\d{3})+)\.\d+([eE][+-]?\d+)?|[+-]?[1-9]\d{0,2}(,\d{3}){2,}")
"""Numbers whose decimals begin with a comma, or a point."""
BELOW_1000 = re.compile(r"[+-]?\d{1,3}")
IN_COMMAS, IN_POINTS = (COMMA, ENGLISH), (POINT, GERMAN)
NUMBER = re.compile(rf"[+-]?\d+([eE][+-]?\d+)?|{ENGLISH.pattern}|{GERMAN.pattern}|{COMMA.pattern}|{POINT.pattern}")


def read_table(path: Path) -> pd.DataFrame:
    """A table with every cell as text without spaces around it, "" where it is empty.

    A text file's delimiter is one of comma, semicolon, tab and bar, its encoding UTF-8, UTF-16 or Windows-1252. Where
    the comma does not delimit, numbers with decimal commas get decimal points. An Excel file's table is that of its
    only sheet with cells. SPSS's, Stata's and SAS's values are their labels, where they have some. Dates are
    YYYY-MM-DD, whole numbers have no point, true is 1.

    Raises:
        DataError: the file is no table, is empty, names a column twice, has rows with more cells than columns, or more
            of anything than ``LIMITS``.
        UserError: a package is missing that reads this kind of file.
    """
    import pandas as pd

    return pd.DataFrame(read_columns(path), dtype=object)


def read_columns(path: Path, sheet: str = "", arranged: Callable[[Rows], Rows] = iter) -> dict[str, list[str]]:
    """Column -> its cells, as ``read_table`` reads them; ``arranged`` gives the names, then the rows below them."""
    suffix, until = path.suffix.lower(), time.monotonic() + LIMITS.seconds
    if what := unread(path.name):
        raise _refused(path, "unreadable", f"is {what}")
    try:
        if not path.stat().st_size:
            raise _refused(path, "unreadable", "expected a table, got an empty file")
        if suffix in PARQUET or suffix in STATISTICS:
            return (_parquet if suffix in PARQUET else _statistics)(path, until)
        check(f"table {path.name}", bytes=path.stat().st_size)
        if suffix in EXCEL:
            texts: set[str] = set()
            names, columns = _table(path, arranged(_excel_rows(path, until, sheet, texts)), until)
            _check_thousands(path, names, columns, texts)
        else:
            names, columns, delimiter = _text(path, until, arranged)
            if delimiter:
                (_check_thousands if delimiter == "," else _with_points)(path, names, columns)
    except OSError as error:
        raise _refused(path, "unreadable", f"cannot be read ({error.strerror or type(error).__name__})") from None
    except UnicodeError:  # UTF-8 was tried in full
        raise _refused(path, "unreadable", "cannot be read as UTF-16: it is cut or damaged") from None
    return dict(zip(names, columns, strict=True))


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


CHUNK = 4096
"""Rows that are turned into columns together."""
MOST_KNOWN = 2**20
"""Different cells that are kept once each, of columns that repeat them: these take little memory."""


def _table(path: Path, rows: Rows, until: float) -> tuple[list[str], list[list[str]]]:
    """Column names, and each column's cells, of the rows ("line 1", cells) of which the first is the header."""
    names: list[str] = []
    columns: list[list[str]] = []
    chunk: list[list[str]] = []
    places: list[str] = []
    known: dict[str, str] = {}
    repeats: dict[str, bool] = {}

    def flush() -> None:
        n = len(columns[0]) + len(chunk) if columns else 0
        check(f"table {path.name}", rows=n, cells=n * len(names))
        check_time(path, until)
        for name, column, part in zip(names, columns, zip(*chunk)):
            cells = "\n".join(part).split("\n")  # a column's cells lie together in memory: later looks are faster
            cells = list(map(str.strip, cells if len(cells) == len(part) else part))
            if (longest := max(map(len, cells))) > LIMITS.characters:
                place = places[next(k for k, cell in enumerate(cells) if len(cell) == longest)]
                check(f"table {path.name}: {place}: {shown(name)}", characters=longest)
            if name not in repeats:
                repeats[name] = 2 * len({*cells}) < len(cells)
            column.extend(map(known.setdefault, cells, cells) if repeats[name] else cells)
            if len(known) > MOST_KNOWN:
                known.clear()
        chunk.clear()
        places.clear()

    for place, cells in rows:
        if not names:
            names = _names(path, cells)
            columns = [[] for _ in names]
            continue
        n = len(names)
        if len(cells) > n and any(map(str.strip, cells[n:])):
            flush()
            text = f"expected {n} cells, as the header has, got {len(cells)}: nothing may stand above it"
            raise _refused(path, "unreadable", f"{place}: {text}")
        if any(map(str.strip, cells)):
            chunk.append(cells if len(cells) == n else (cells + [""] * (n - len(cells)))[:n])
            places.append(place)
        if len(chunk) * n >= CHUNK * 100 or len(chunk) == CHUNK:
            flush()
    if not names:
        raise _refused(path, "unreadable", "expected a table, got an empty file")
    flush()
    kept = [k for k, name in enumerate(names) if name or any(columns[k])]
    return [names[k] or f"Unnamed: {k}" for k in kept], [columns[k] for k in kept]


def check_time(path: Path, until: float) -> None:
    """Raise DataError where reading has taken longer than it may."""
    if time.monotonic() > until:
        check(f"table {path.name}", seconds=LIMITS.seconds + 1)


def _names(path: Path, cells: Sequence[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    while names and not names[-1]:
        names.pop()
    _check_names(path, names)
    return names


def _check_names(path: Path, names: Sequence[str]) -> None:
    check(f"table {path.name}", "column", columns=len(names))
    if not any(names):
        raise _refused(path, "unreadable", "expected column names in the first row, got none")
    if long := [len(name) for name in names if len(name) > LIMITS.characters]:
        text = f"expected column names of at most {LIMITS.characters:,} characters, got one of {long[0]:,}"
        raise _refused(path, "unreadable", text)
    if twice := [name for name, n in Counter(names).items() if name and n > 1]:
        raise _refused(path, "column", f"expected every column once, got {shown(twice[0])} twice")


def _text(path: Path, until: float, arranged: Callable[[Rows], Rows]) -> tuple[list[str], list[list[str]], str]:
    """Names, columns and the delimiter of a text file; "" for one whose points are said to be decimal."""
    encoding = _encoding(path)
    with path.open(encoding=encoding, newline="") as file:
        head = list(islice(_lines(path, file), ROWS_LOOKED_AT))
    said = SAID.fullmatch(head[0].strip()) if head else None
    delimiter = said[1] if said else _delimiter(head)
    with path.open(encoding=encoding, newline="") as file:
        if said:
            file.readline()
        reader = csv.reader(_lines(path, file), delimiter=delimiter, skipinitialspace=delimiter != "\t", strict=True)
        return *_table(path, arranged(_parsed(path, reader)), until), "" if said and said[2] else delimiter


def _parsed(path: Path, reader: Any) -> Iterator[tuple[str, list[str]]]:
    try:
        for cells in reader:
            if cells:
                yield f"line {reader.line_num}", cells
    except csv.Error as error:
        what = "cannot be read as CSV: a quotation mark is not closed, or text follows one"
        if "field limit" in str(error):
            what = f"expected at most {LIMITS.characters:,} characters in a cell, got more"
        raise _refused(path, "unreadable", f"line {reader.line_num}: {what}") from None


def _lines(path: Path, file: Any) -> Iterator[str]:
    """The lines, none of which is read in full when it is too long for a table."""
    for n in range(1, 2**62):
        line = file.readline(LIMITS.line)
        if not line:
            return
        if len(line) == LIMITS.line:
            most = f"line {n}: expected at most {LIMITS.characters:,} characters in a cell, got a line of {len(line):,}"
            raise _refused(path, "unreadable", most)
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
        sniffed = csv.Sniffer().sniff("".join(lines)[:SAMPLE], "".join(candidates)).delimiter
    except csv.Error:
        sniffed = ""
    return sniffed if sniffed in candidates else max(candidates, key=lambda mark: several[mark][0])


def _with_points(path: Path, names: Sequence[str], columns: Sequence[list[str]]) -> None:
    """Give ``columns`` of numbers with decimal commas decimal points, and no marks of thousands.

    1,234 and 1.234 are what the file's other numbers say: DataError where these say nothing, and 1.234 may be 1234.
    """
    marked: dict[int, list[str]] = {}
    for k, column in enumerate(columns):
        cells = [cell for cell in dict.fromkeys(column) if cell.lower() not in MISSING]
        if all(NUMBER.fullmatch(cell) for cell in cells):
            marked[k] = [cell for cell in cells if "," in cell or "." in cell]
    unclear = {k for k in marked if may_be_thousands(columns[k])}
    commas, points = ({k for k, cells in marked.items() if _says(cells, *of)} for of in (IN_COMMAS, IN_POINTS))
    for k, cells in marked.items():
        if k in commas and k in points:
            raise _refused(path, "number", f"column {shown(names[k])}: mixes decimal points and commas")
        doubtful = k not in commas and k not in points and any("," in cell or commas for cell in cells)
        if (doubtful or k in unclear) and bool(commas) == bool(points):
            raise _ambiguous(path, names[k], cells[0])
        thousands, decimal = (".", ",") if k in commas or (doubtful and commas) else (",", ".")
        if decimal == "," or doubtful or any("," in cell for cell in cells):
            plain = {cell: cell.replace(thousands, "").replace(decimal, ".") for cell in cells}
            columns[k][:] = [plain.get(cell, cell) for cell in columns[k]]


def _says(cells: Iterable[str], decimal: re.Pattern[str], thousands: re.Pattern[str]) -> bool:
    return any(decimal.fullmatch(cell) and not thousands.fullmatch(cell) for cell in cells)


def _ambiguous(path: Path, name: str, cell: str) -> DataError:
    either = f"{cell} may be {cell.replace(',', '.')} or {cell.replace(',', '').replace('.', '')}"
    text = f"column {shown(name)}: {either}: expected decimal points throughout, and no marks of thousands"
    return _refused(path, "number", text)


def may_be_thousands(cells: Sequence[str]) -> bool:
    """Whether numbers such as 1.234 stand beside whole numbers below 1000 alone, as where points mark thousands."""
    if "." not in "".join(cells) or any("." in cell[1:] and not GERMAN.fullmatch(cell) for cell in cells):
        return False
    whole = {cell for cell in cells if not GERMAN.fullmatch(cell) and cell.lower() not in MISSING}
    return 0 < len(whole) < len({*cells}) and all(map(BELOW_1000.fullmatch, whole))


def _check_thousands(
    path: Path, names: Sequence[str], columns: Sequence[list[str]], texts: Collection[str] | None = None
) -> None:
    """Raise DataError where 1.234 may be 1234 and no decimal point says otherwise; commas are left as they are.

    ``texts``: those cells of a workbook with points that are text, not numbers already.
    """
    unclear = [k for k, column in enumerate(columns) if may_be_thousands(column)]
    if not unclear or any(_says(column if texts is None else {*column} & {*texts}, *IN_POINTS) for column in columns):
        return
    for k in unclear:
        marked = (cell for cell in columns[k] if GERMAN.fullmatch(cell) and (texts is None or cell in texts))
        if first := next(marked, ""):
            raise _ambiguous(path, names[k], first)


def _excel_rows(path: Path, until: float, sheet: str, texts: set[str]) -> Iterator[tuple[str, list[str]]]:
    """The rows; cells that hold numbers with points as text join ``texts``."""

    def of(value: object) -> str:
        text = as_cell(value)
        if isinstance(value, str) and "." in text and NUMBER.fullmatch(text):
            texts.add(text)
        return text

    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as parts:
                check(f"table {path.name}", workbook=sum(one.file_size for one in parts.infolist()))
            yield from _only(path, _workbook(path, until, of), sheet)
        else:
            yield from _only(path, _old_workbook(path, of), sheet)
    except ImportError:
        raise UserError(f"table {path.name}: Excel files need a package: pip install 'fairflare[tables]'") from None
    except DataError:
        raise
    except Exception as error:  # the packages raise their own errors
        raise _refused(path, "unreadable", f"cannot be read as Excel ({type(error).__name__})") from None


Sheets = dict[str, Callable[[], Iterable[list[str]]]]
"""Sheet -> what reads its rows, from the first."""


def _only(path: Path, sheets: Sheets, sheet: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of ``sheet``, or of the only sheet with cells."""
    full = [name for name, rows in sheets.items() if (name == sheet if sheet else any(map(any, rows())))]
    if len(full) > 1:
        text = f"expected one sheet with cells, got {', '.join(map(shown, full))}: save the one that counts alone"
        raise _refused(path, "unreadable", text)
    for name in full:
        for number, cells in enumerate(sheets[name](), 1):
            yield f"row {number}", cells


def _workbook(path: Path, until: float, of: Callable[[object], str]) -> Sheets:
    """The sheets of an Excel file since 2007, streamed: a few bytes can claim a row or a cell at any place."""
    from openpyxl import load_workbook

    def rows(sheet: Any) -> Iterator[list[str]]:
        sheet.reset_dimensions()
        cells = 0
        for number, row in enumerate(sheet.iter_rows()):
            cells += len(row)
            check(f"table {path.name}", rows=number, sheet=cells)
            check_time(path, until)
            yield ["" if one.value is None or one.data_type == "e" else of(one.value) for one in row]

    book = load_workbook(path, read_only=True, data_only=True, keep_links=False)
    return {sheet.title: partial(rows, sheet) for sheet in book.worksheets}


def _old_workbook(path: Path, of: Callable[[object], str]) -> Sheets:
    """The sheets of an Excel file of before 2007, none of which has more than 65,536 rows of 256 cells."""
    import pandas as pd

    check(f"table {path.name}", workbook=path.stat().st_size)
    with pd.ExcelFile(path) as book:
        as_is: dict[str, Any] = {"header": None, "dtype": object, "na_filter": False}
        sheets = {str(name): pd.read_excel(book, sheet_name=name, **as_is).map(of) for name in book.sheet_names}
    return {name: sheet.to_numpy().tolist for name, sheet in sheets.items()}


def _parquet(path: Path, until: float) -> dict[str, list[str]]:
    """The columns of a Parquet file, whose footer says before how many values there are in how many bytes."""
    try:
        from pyarrow import types
        from pyarrow.parquet import ParquetFile

        with ParquetFile(path) as file:
            names, about, schema = file.schema_arrow.names, file.metadata, file.schema_arrow
            _check_names(path, [str(name).strip() for name in names])
            groups = [about.row_group(k) for k in range(about.num_row_groups)]
            values = sum(group.column(k).num_values for group in groups for k in range(group.num_columns))
            size = sum(group.column(k).total_uncompressed_size for group in groups for k in range(group.num_columns))
            cells = max(values, about.num_rows * len(names))
            check(f"table {path.name}", rows=about.num_rows, cells=cells, bytes=size)
        # As a dictionary a text takes memory once, however many rows hold it.
        texts = [one.name for one in schema if types.is_string(one.type) or types.is_large_string(one.type)]
        with ParquetFile(path, read_dictionary=texts) as file:
            table = file.read().to_pandas()
    except ImportError:
        raise UserError(f"table {path.name}: Parquet needs pyarrow: pip install 'fairflare[tables]'") from None
    except DataError:
        raise
    except Exception as error:  # pyarrow raises its own errors
        raise _refused(path, "unreadable", f"cannot be read as Parquet ({type(error).__name__})") from None
    return _as_text(path, table, until)


def _statistics(path: Path, until: float) -> dict[str, list[str]]:
    """The columns of a file of SPSS, Stata or SAS, values as their labels; its header says before how large it is."""
    try:
        import pyreadstat

        read = getattr(pyreadstat, f"read_{STATISTICS[path.suffix.lower()]}")
        _, about = read(str(path), metadataonly=True)
        _check_names(path, [name.strip() for name in about.column_names])
        n, widths = about.number_rows, sum(map(int, about.variable_storage_width.values()))
        if n is not None:
            check(f"table {path.name}", rows=n, cells=n * len(about.column_names), bytes=n * widths)
        labels = path.with_suffix(".sas7bcat")
        more: dict[str, Any] = (
            {"catalog_file": str(labels)} if path.suffix.lower() == ".sas7bdat" and labels.is_file() else {}
        )
        most = min(LIMITS.rows + 1, LIMITS.bytes // max(widths, 1) + 1)
        more |= {"row_limit": most} if n is None else {}
        more |= {"apply_value_formats": True, "formats_as_category": False} if path.suffix.lower() != ".xpt" else {}
        table, _ = read(str(path), **more)
    except ImportError:
        text = "SPSS, Stata and SAS files need a package: pip install 'fairflare[tables]'"
        raise UserError(f"table {path.name}: {text}") from None
    except DataError:
        raise
    except Exception as error:  # pyreadstat raises its own errors
        text = f"cannot be read as {path.suffix.lower()} ({type(error).__name__}); save it as CSV"
        raise _refused(path, "unreadable", text) from None
    check(f"table {path.name}", rows=len(table), cells=table.size)
    return _as_text(path, table, until)


def _as_text(path: Path, table: pd.DataFrame, until: float) -> dict[str, list[str]]:
    """The columns of ``table``, whose index says nothing, as text; a value is turned into text once."""
    import pandas as pd

    found = {}
    for k, name in enumerate(table.columns):
        column = table.iloc[:, k]
        if column.dtype == object:  # may hold what cannot be compared
            cells = [as_cell(cell) for cell in column]
        else:
            codes, values = pd.factorize(column)
            texts = np.array([*map(as_cell, values.astype(object)), ""], dtype=object)
            cells = texts[codes].tolist()
        longest = max(map(len, cells), default=0)
        check(f"table {path.name}: {shown(str(name).strip())}", characters=longest)
        check_time(path, until)
        found[str(name).strip()] = cells
    return found
