# SPDX-License-Identifier: Apache-2.0
"""Every module and public class says what it is, in a docstring, and every exception from the types says why."""

import ast
import re
from pathlib import Path

from cases import each

PACKAGE = Path(__file__).parents[2] / "custom" / "fairflare"


def public(tree):
    """The module, and every class that others can name; lint asks no more of functions, whose names may say it all."""
    yield tree, "module"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node, node.name


@each("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_public_names_have_docstrings(path):
    lacking = [name for node, name in public(ast.parse(path.read_text())) if not ast.get_docstring(node)]
    assert not lacking, f"{path.relative_to(PACKAGE)}: no docstring: {', '.join(lacking)}"
    assert path.read_text().startswith("# SPDX-License-Identifier: Apache-2.0\n")


def test_exceptions_from_the_types_say_why():
    for path in PACKAGE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "type: ignore" in line:
                assert re.search(r"# type: ignore\[[a-z,-]+\]  # \w", line), f"{path.name}:{number}: {line.strip()}"
            assert not re.match(r"#\s*mypy:", line), f"{path.name}:{number}: settings of mypy belong in pyproject.toml"
