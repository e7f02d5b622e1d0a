# SPDX-License-Identifier: Apache-2.0
"""docs/what-leaves.md says what leaves a site in every method, docs/security.md which tests hold every promise."""

import ast
import re
from functools import cache
from pathlib import Path

from leaving_tables import answer_table, leaving_table

from cases import each
from fairflare.core import registry
from fairflare.studies.describe import leaving_rows

TESTS = Path(__file__).parents[1]
DOC = TESTS.parent / "docs" / "security.md"
LEAVES = DOC.with_name("what-leaves.md")
TABLE = "Promises"
TRUSTED = ("server", "site", "lead", "job's author", "project admin", "reads the report")
ATTACKS = sorted(path.name for path in (TESTS / "attacks").glob("test_*.py"))


def section(title):
    """Text of a section, without its heading."""
    return DOC.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows():
    """(promise, what it assumes and what breaks it, test) of the tables."""
    lines = [line.strip("| \n").split(" | ") for line in section(TABLE).splitlines() if line.startswith("| ")]
    return [tuple(cells) for cells in lines if cells[0] != "promise"]


def named(cell):
    return re.findall(r"`([a-z_/]+\.py)::(\w+)`", cell)


NAMED = sorted({test for row in rows() for test in named(row[-1])})


@cache
def defined_in(path):
    file = TESTS.parent / path if path.startswith("lab/") else TESTS / path
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_the_table_is_that_of_the_registry():
    text = LEAVES.read_text()
    shown = text.partition("<!-- leaving: begin -->\n")[2].partition("\n<!-- leaving: end -->")[0]
    assert shown == leaving_table(), "make it with tests/docs/leaving_tables.py: leaving_table()"


def test_the_fields_of_an_answer_are_those_of_the_schema():
    text = LEAVES.read_text()
    shown = text.partition("<!-- answers: begin -->\n")[2].partition("\n<!-- answers: end -->")[0]
    assert shown == answer_table(), "make it with tests/docs/leaving_tables.py: answer_table()"


def test_every_method_is_named_and_every_number_has_a_range():
    text, rows = LEAVES.read_text(), leaving_rows()
    for id in registry.methods():
        assert f"`{id}`" in text
    assert {"sharpness", "similarity/<layer>", "group_count/<group>", "minus_error"} <= {r["number"] for r in rows}
    assert all(" to " in r["range"] and r["meaning"] for r in rows)


def test_the_page_is_short_and_begins_with_what_is_not_promised_and_who_is_trusted_with_what():
    text = DOC.read_text()
    first = text.partition("\n## ")[2].partition("\n## ")[0]
    assert first.startswith("What is not promised\n") and len(text.split()) <= 1500
    assert "| is trusted with |" in first
    bold = " ".join(re.findall(r"\*\*(.+?)\*\*", first, re.DOTALL)).lower()
    assert all(who in bold for who in TRUSTED)


def test_every_promise_has_a_test_and_says_what_breaks_it():
    found = rows()
    assert all(len(row) == 3 for row in found), "three cells: promise, what breaks it, test"
    assert len({promise for promise, _, _ in found}) == len(found) >= 60
    for promise, _, test in found:
        assert re.fullmatch(r"`[a-z_/]+\.py::test_\w+`", test.strip()), promise


@each("path, name", NAMED, ids=str)
def test_the_tests_exist(path, name):
    assert name in defined_in(path)


@each("file", ATTACKS)
def test_every_file_of_attacks_holds_a_promise(file):
    assert any(path == f"attacks/{file}" for path, _ in NAMED), "it lacks a row in the table"
