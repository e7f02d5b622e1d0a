# SPDX-License-Identifier: Apache-2.0
"""Everything public in the package says what it is, in a docstring, and every exception from the types says why."""

import ast
import re
from pathlib import Path

from cases import each

PACKAGE = Path(__file__).parents[2] / "custom" / "fairflare"


def public(tree):
    """The module, and every class and function that others can name: no name with an underscore, none in a function."""
    yield tree, "module"
    waiting = [(tree, "")]
    while waiting:
        node, where = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and not child.name.startswith("_"):
                yield child, f"{where}{child.name}"
                if isinstance(child, ast.ClassDef):
                    waiting.append((child, f"{where}{child.name}."))


def overrides_a_setter(node):
    return any(ast.unparse(decorator).endswith(".setter") for decorator in getattr(node, "decorator_list", ()))


@each("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_public_names_have_docstrings(path):
    found = public(ast.parse(path.read_text()))
    lacking = [name for node, name in found if not overrides_a_setter(node) and not ast.get_docstring(node)]
    assert not lacking, f"{path.relative_to(PACKAGE)}: no docstring: {', '.join(lacking)}"
    assert path.read_text().startswith("# SPDX-License-Identifier: Apache-2.0\n")


def test_exceptions_from_the_types_say_why():
    for path in PACKAGE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "type: ignore" in line:
                assert re.search(r"# type: ignore\[[a-z-]+\]  # \w", line), f"{path.name}:{number}: {line.strip()}"
            assert not re.match(r"#\s*mypy:", line), f"{path.name}:{number}: settings of mypy belong in pyproject.toml"
