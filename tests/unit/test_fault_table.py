# SPDX-License-Identifier: Apache-2.0
"""docs/faults.md promises a behaviour per fault: every one of the twenty is there, and so are the tests it names."""

import ast
import re
from pathlib import Path

from cases import each

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / "docs" / "faults.md").read_text()
ROWS = re.findall(r"^\| (\d+) \|(.*)\|$", TABLE, re.MULTILINE)
NAMED = sorted(set(re.findall(r"`([a-z_/]+\.py)::(\w+)`", TABLE)))
SOURCE = TESTS.parent / "custom" / "fairflare"
CODE = re.compile(r'(?:Refused\(|Rejection\(\s*[\w.]+,)\s*"([a-z_]+)"')
DEPLOYED = ("13", "15", "16", "20")


def test_every_case_is_there_with_a_test():
    assert [number for number, _ in ROWS] == [str(n) for n in range(1, 21)]
    assert all("::test_" in row for _, row in ROWS)
    assert all("test_deploy_" in row for number, row in ROWS if number in DEPLOYED)


@each("path, name", NAMED, ids=str)
def test_the_tests_exist(path, name):
    tree = ast.parse((TESTS / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_code_of_a_rejection_is_explained():
    text = "".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")))
    codes = set(CODE.findall(text))
    _, _, explained = TABLE.partition("## What a code says")
    assert {"norm", "malformed", "absent", "no_answer"} <= codes
    assert codes <= set(re.findall(r"`([a-z_]+)`", explained)), codes - set(re.findall(r"`([a-z_]+)`", explained))
