# SPDX-License-Identifier: Apache-2.0
"""Tables as hospitals have them are read right, or refused in one short line."""

import time
import zipfile
from datetime import datetime

import openpyxl
import pandas as pd
import pyarrow.parquet
import pytest

from cases import each
from fairflare.core.errors import DataError, UserError
from fairflare.data.readers.pictures import Reader
from fairflare.data.readers.tables import read_columns, read_table

TRUTH = {"Stadt": ["München", "Köln", ""], "alter": ["61", "", "70"], "crp": ["1234.5", "3.25", "12"]}
GERMAN = 'Stadt;alter;crp\nMünchen;61;1.234,5\n"Köln";;3,25\n;70;12\n'
PLAIN = "Stadt,alter,crp\nMünchen,61,1234.5\nKöln,,3.25\n,70,12\n"


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@each(
    "content",
    [
        PLAIN.encode(),
        PLAIN.replace(",", " , ").replace("\n", "\r\n").encode("utf-8-sig"),
        PLAIN.replace(",", "\t").encode("utf-16"),
        PLAIN.replace(",", "|").encode("utf-16-le"),
        PLAIN.encode("latin-1"),
        GERMAN.encode("cp1252"),
        GERMAN.replace(";", "\t").encode(),
        GERMAN.encode("utf-8-sig"),
        ("sep=;\r\n" + GERMAN).encode("cp1252"),
        (GERMAN.replace("\n", ";\n") + "\n\n").encode(),
        PLAIN.replace("Stadt", "﻿Stadt").replace("1234.5", '"1234.5"').encode(),
    ],
)
def test_every_dialect_of_a_text_file_is_the_same_table(content, tmp_path):
    path = written(tmp_path / "t.csv", content)
    table = read_table(path)
    assert {name: list(table[name]) for name in table.columns} == TRUTH == read_columns(path)


@each(
    ("cells", "read"),
    [
        (["1,5", "2"], ["1.5", "2"]),
        (["0,812", "1,234"], ["0.812", "1.234"]),
        (["1.234.567,5", "NA"], ["1234567.5", "NA"]),
        (["1.234.567", "1.000"], ["1234567", "1000"]),
        (["1,234.5", "1,000"], ["1234.5", "1000"]),
        (["1.5", "2.25"], ["1.5", "2.25"]),
        (["1.234", "5.678"], ["1.234", "5.678"]),
        (["01.02.2020", "3,5"], ["01.02.2020", "3,5"]),
        (["1,5 mg", "3,5"], ["1,5 mg", "3,5"]),
        (["-,5", "+1,5e-3"], ["-.5", "+1.5e-3"]),
    ],
)
def test_decimal_commas_are_read_where_all_of_a_column_are_numbers(cells, read, tmp_path):
    path = written(tmp_path / "t.csv", "a;b\n" + "".join(f"{cell};x\n" for cell in cells))
    assert list(read_table(path)["a"]) == read


def test_other_columns_say_what_a_mark_of_thousands_is(tmp_path):
    commas = written(tmp_path / "c.csv", "a;b;c\n1.234;0,5;1,234\n2.000;1,5;2,000\n")
    assert read_table(commas).to_numpy().tolist() == [["1234", "0.5", "1.234"], ["2000", "1.5", "2.000"]]
    points = written(tmp_path / "p.csv", "a;b;c\n1.234;0.5;1,234\n2.000;1.5;2,000\n")
    assert read_table(points).to_numpy().tolist() == [["1.234", "0.5", "1234"], ["2.000", "1.5", "2000"]]
    own = written(tmp_path / "o.csv", "a;b;c\n1,25;0.5;1\n2,5;1.5;2\n")
    assert read_table(own).to_numpy().tolist() == [["1.25", "0.5", "1"], ["2.5", "1.5", "2"]]
    with pytest.raises(DataError, match="column 'a': mixes decimal points and commas"):
        read_table(written(tmp_path / "m.csv", "a;b\n1,5;x\n1.5;x\n"))
    for content in ("a;b\n1,234;x\n", "a;b\n1,234;1.234\n", "a;b;c\n1,234;0,5;1.5\n"):
        with pytest.raises(DataError, match=r"column 'a': 1,234 may be 1.234 or 1234"):
            read_table(written(tmp_path / "q.csv", content))


def test_points_among_whole_numbers_below_1000_may_be_marks_of_thousands(tmp_path):
    """NT-proBNP as a German export writes it was read as 1.719, 202 and 3.191, without a word."""
    rows = [["bnp", "sex"], ["1.719", "f"], ["202", "m"], ["NA", "m"], ["3.191", "f"]]
    texts = {mark: "".join(mark.join(row) + "\n" for row in rows) for mark in ",;"}
    paths = [written(tmp_path / f"{k}.csv", text) for k, text in enumerate(texts.values())]
    for name, typed in (("text.xlsx", str), ("numbers.xlsx", float)):
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append([typed(cell) if cell[0].isdigit() else cell for cell in row])
        book.active["C1"], book.active["C2"] = "crp", 0.5  # a number, which says nothing of texts
        book.save(tmp_path / name)
    for path in [*paths, tmp_path / "text.xlsx"]:
        with pytest.raises(DataError, match=f"{path.name}: column 'bnp': 1.719 may be 1.719 or 1719: expected decimal"):
            read_table(path)
    assert list(read_table(tmp_path / "numbers.xlsx")["bnp"]) == ["1.719", "202", "NA", "3.191"]
    for cells in ("0.123 1.250", "1.719 0.202 3", "1.719 3.191", "1.719 2 3.5", "1.719 1202", "1.719 P202", "202 303"):
        for mark in ",;":
            text = f"a{mark}b\n" + "".join(f"{cell}{mark}x\n" for cell in cells.split())
            assert list(read_table(written(tmp_path / "t.csv", text))["a"]) == cells.split()
    assert list(read_table(written(tmp_path / "t.csv", "a,b\n1.719,0.5\n202,1\n"))["a"]) == ["1.719", "202"]


TYPED = {
    "age": [61.0, 62.5, None],
    "ok": [True, False, True],
    "n": [1, 2, 3],
    "seen": [datetime(2020, 1, 2), datetime(2021, 3, 4, 5, 6, 7), None],
    "Stadt ": ["München", " Köln ", None],
}
AS_TEXT = {
    "age": ["61", "62.5", ""],
    "ok": ["1", "0", "1"],
    "n": ["1", "2", "3"],
    "seen": ["2020-01-02", "2021-03-04 05:06:07", ""],
    "Stadt": ["München", "Köln", ""],
}


def test_excel_and_parquet_are_what_people_see(tmp_path):
    frame = pd.DataFrame(TYPED)
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    with pd.ExcelWriter(tmp_path / "one_full.xlsx") as book:
        pd.DataFrame().to_excel(book, sheet_name="empty", index=False)
        frame.to_excel(book, sheet_name="data", index=False)
    for name in ("t.xlsx", "t.parquet", "one_full.xlsx"):
        assert read_columns(tmp_path / name) == AS_TEXT
        assert list(read_table(tmp_path / name).columns) == list(AS_TEXT)


def test_of_several_sheets_none_is_guessed(tmp_path):
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        for sheet in ("2019", "2020"):
            pd.DataFrame(TYPED).to_excel(book, sheet_name=sheet, index=False)
    with pytest.raises(DataError, match="expected one sheet with cells, got '2019', '2020'"):
        read_table(tmp_path / "t.xlsx")


@each(
    ("content", "message"),
    [
        (b"", "expected a table, got an empty file"),
        (b"\n\n", "expected a table, got an empty file"),
        (b",,\n1,2,3\n", "expected column names in the first row"),
        (b"a,b,a\n1,2,3\n", "expected every column once, got 'a' twice"),
        (b"a,b\n1,2\n3,4,5\n", "line 3: expected 2 cells, as the header has, got 3"),
        (b'a,b\n1,"2\n3,4\n', "a quotation mark is not closed"),
        (bytes(range(256)), "got a binary file"),
        (b"PK\x03\x04\x00\x00", "got an Excel file"),
        (b"a,b\n1," + b"x" * 40_000 + b"\n", "line 2: 'b': expected at most 32,768 characters in a cell, got 40,000"),
        (b"a,b\n1," + b"x" * 50_000_000 + b"\n", "line 2: expected at most 32,768 characters in a cell"),
        (b'a,b\n1,"' + b"x\n" * 25_000_000 + b'"\n', "expected at most 32,768 characters in a cell"),
        (b"a" * 40_000 + b",b\n1,2\n", "expected column names of at most 32,768 characters, got one of 40,000"),
        (",".join(f"c{k}" for k in range(100_000)).encode() + b"\n", "at most 20,000 columns, got 100,000"),
    ],
)
def test_what_is_no_table_is_refused_in_one_short_line_at_once(content, message, tmp_path):
    path, start = written(tmp_path / "t.csv", content), time.monotonic()
    with pytest.raises(DataError) as error:
        read_table(path)
    assert message in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 250
    assert time.monotonic() - start < 5


def test_files_of_another_kind_than_their_name_says_are_refused(tmp_path):
    for name in ("t.xlsx", "t.parquet", "t.xls"):
        with pytest.raises(DataError, match=f"table {name}: cannot be read as"):
            read_table(written(tmp_path / name, PLAIN))
    with pytest.raises(DataError, match="cannot be read"):
        read_table(tmp_path / "none.csv")


def test_wide_parquet_and_long_cells_are_refused(tmp_path):
    pd.DataFrame({f"c{k}": [1] for k in range(20_001)}).to_parquet(tmp_path / "wide.parquet")
    with pytest.raises(DataError, match="at most 20,000 columns, got 20,001"):
        read_table(tmp_path / "wide.parquet")
    pd.DataFrame({"a": ["x" * 40_000]}).to_parquet(tmp_path / "long.parquet")
    with pytest.raises(DataError, match="'a': expected at most 32,768 characters in a cell, got 40,000"):
        read_table(tmp_path / "long.parquet")


@each("suffix", ["sav", "zsav", "dta", "xpt", "por"])
def test_files_of_statistics_packages_are_their_labels(suffix, tmp_path):
    import pyreadstat

    frame = pd.DataFrame({"SEX": [1.0, 2.0, None], "AGE": [61.0, 62.5, None]})
    writer = {"zsav": "sav", "xpt": "xport"}.get(suffix, suffix)
    labels = {"variable_value_labels": {"SEX": {1: "female", 2: "male"}}} if suffix in ("sav", "zsav", "dta") else {}
    getattr(pyreadstat, f"write_{writer}")(frame, str(tmp_path / f"t.{suffix}"), **labels)
    sex = ["female", "male", ""] if labels else ["1", "2", ""]
    assert read_columns(tmp_path / f"t.{suffix}") == {"SEX": sex, "AGE": ["61", "62.5", ""]}
    cut = written(tmp_path / f"cut.{suffix}", (tmp_path / f"t.{suffix}").read_bytes()[:100])
    with pytest.raises(DataError, match=rf"^table cut.{suffix}: cannot be read as .{suffix}") as error:
        read_columns(cut)
    assert error.value.code == "unreadable"


def rows_without_end(path):
    """A workbook of a kilobyte whose rows each hold a cell in the last column."""
    pd.DataFrame({"a": [1]}).to_excel(path, index=False)
    rows = "".join(f'<row r="{k}"><c r="XFD{k}"><v>1</v></c></row>' for k in range(1, 900))
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    parts["xl/worksheets/sheet1.xml"] = f'<worksheet xmlns="{space}"><sheetData>{rows}</sheetData></worksheet>'.encode()
    _zipped(path, parts)


def _zipped(path, parts):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in parts.items():
            new.writestr(name, content)


def repeated(path):
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 6_000_000, pyarrow.int8()), ["x" * 30_000])
    pyarrow.parquet.write_table(pyarrow.table({"a": values}), path)


def lists(path):
    values = pyarrow.array([[0] * 60_000_000], pyarrow.list_(pyarrow.int8()))
    pyarrow.parquet.write_table(pyarrow.table({"a": values}), path)


BOMBS = {
    "rows.parquet": (repeated, "rows", 5_000_000, 6_000_000),
    "lists.parquet": (lists, "cells", 50_000_000, 60_000_000),
    "wide.xlsx": (rows_without_end, "cells", 5_000_000, 5_013_504),
    "parts.xlsx": (lambda path: _zipped(path, {"a.xml": bytes(2**28)}), "bytes", 2**27, 2**28),
}


@each("name", BOMBS)
def test_a_file_that_would_unpack_to_more_than_is_read_is_refused_before(name, tmp_path):
    write, what, most, got = BOMBS[name]
    write(tmp_path / name)
    start = time.process_time()
    with pytest.raises(DataError, match=rf"^table {name}: expected at most {most:,} {what}.*, got {got:,}$"):
        read_columns(tmp_path / name)
    assert time.process_time() - start < 30


def test_a_text_of_utf_16_that_is_cut_is_one_line(tmp_path):
    whole = PLAIN.encode("utf-16")
    for n in range(2, len(whole)):
        try:
            read_columns(written(tmp_path / "t.csv", whole[:n]))
        except DataError as error:
            assert "\n" not in str(error) and str(error).startswith("table t.csv: ")
    with pytest.raises(DataError, match="table t.csv: cannot be read as UTF-16"):
        read_columns(written(tmp_path / "t.csv", whole[:-1]))


@each("name", ["x.h5", "x.mat", "x.svs", "x.hea", "x.npy", "x.csv.gz", "x.ods", "x.BMP"])
def test_other_formats_are_refused_by_their_names_and_say_what_to_convert_to(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x89HDF\r\n")
    for read in (read_columns, Reader(16, 1).image):
        with pytest.raises(DataError, match=rf"{name}.*not read: convert it to") as error:
            read(tmp_path / name)
        assert error.value.code == "unreadable"


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    pd.DataFrame(TYPED).to_excel(tmp_path / "t.xlsx", index=False)

    def missing(*args, **kwargs):
        raise ImportError("openpyxl")

    monkeypatch.setattr(openpyxl, "load_workbook", missing)
    with pytest.raises(UserError, match=r"pip install 'fairflare\[tables\]'"):
        read_table(tmp_path / "t.xlsx")
