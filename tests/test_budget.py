# SPDX-License-Identifier: Apache-2.0
"""Lines of each package, and lines of statements in all, each under a ceiling.

A change that lowers a figure lowers its ceiling in the same commit. ``pytest tests/test_budget.py -s`` prints the
table. A line of statements is one that is neither blank nor a comment, a docstring, an import or a signature.
"""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "custom" / "fairflare"
PACKAGES = {
    "__init__": 70,
    "__main__": 10,
    "aggregators": 1_980,
    "api": 870,
    "cli": 3_150,
    "client": 70,
    "core": 4_220,
    "data": 4_550,
    "datasets": 1_020,
    "decision": 2_270,
    "engine": 12_100,
    "estimators": 300,
    "flare": 4_590,
    "functional": 2_740,
    "import_data": 6_260,
    "inference": 3_200,
    "networks": 890,
    "participation": 140,
    "privacy": 2_370,
    "probes": 870,
    "report": 6_710,
    "server_optimizers": 200,
    "studies": 4_570,
    "tasks": 6_040,
    "testing": 1_230,
    "trainers": 1_900,
}
"""Package or module of ``custom/fairflare`` -> the most lines that its Python files may have."""
FOLDERS = {
    "custom": (72_210, 36_010),
    "tests": (63_820, None),
    "lab/fairflare_lab": (14_300, None),
    "lab/tests": (11_210, None),
}
"""Folder -> the most lines, and the most lines of statements, of its Python files."""


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def statements_of(path):
    text = path.read_text(encoding="utf-8")
    other = {number for number, line in enumerate(text.splitlines(), 1) if not line.strip() or line.strip()[0] == "#"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            other.update(range(node.lineno, max(node.lineno + 1, node.body[0].lineno)))
        elif isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node):
            other.update(range(node.lineno, node.end_lineno + 1))
    return len(text.splitlines()) - len(other)


def _is_text(node):
    """A docstring, of a class's or module's value too."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_no_package_outgrows_its_ceiling():
    lines = Counter()
    for path in PACKAGE.rglob("*.py"):
        lines[path.relative_to(PACKAGE).parts[0].removesuffix(".py")] += lines_of(path)
    table = [(name, count, PACKAGES.get(name, 0)) for name, count in sorted(lines.items())]
    print("", *(f"{name:20} {count:7,} of {ceiling:7,} lines" for name, count, ceiling in table), sep="\n")
    assert not [row for row in table if row[1] > row[2]]


def test_no_folder_outgrows_its_ceiling():
    for folder, (most_lines, most_statements) in FOLDERS.items():
        files = list((ROOT / folder).rglob("*.py"))
        lines = sum(map(lines_of, files))
        print(f"{folder:20} {lines:7,} of {most_lines:7,} lines")
        assert lines <= most_lines, folder
        if most_statements:
            statements = sum(map(statements_of, files))
            print(f"{folder:20} {statements:7,} of {most_statements:7,} lines of statements")
            assert statements <= most_statements, folder


def test_a_ceiling_is_near_its_figure():
    """A ceiling far above what is there holds nothing."""
    for name, ceiling in PACKAGES.items():
        count = sum(map(lines_of, (PACKAGE / name).rglob("*.py"))) or lines_of(PACKAGE / f"{name}.py")
        assert ceiling <= 1.03 * count + 30, (name, count, ceiling)
