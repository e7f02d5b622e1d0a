# SPDX-License-Identifier: Apache-2.0
"""What a Python file imports, read from its source: nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path


def imports(path: Path) -> tuple[str, ...]:
    """Absolute dotted names that the file imports at run time, function bodies included; SyntaxError for no Python.

    ``from a import b`` gives "a.b". Imports under ``if TYPE_CHECKING`` and relative ones are left out.
    """
    return _imports(path.read_bytes())


@cache  # an export asks twice for every file of the package, and parsing them takes seconds
def _imports(source: bytes) -> tuple[str, ...]:
    return tuple(_imported(ast.parse(source)))


def _imported(block: ast.AST) -> Iterator[str]:
    """Goes from statement to statement, since most of a tree is expressions."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from () if node.level else (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from _imported(ast.Module(node.orelse, []))
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _imported(node)


def module_files(package: Path) -> dict[str, Path]:
    """Dotted name -> file of every module of the package in the folder ``package``, the package itself included."""
    found = {path: (package.name, *path.relative_to(package).with_suffix("").parts) for path in package.rglob("*.py")}
    return {".".join(found[path]).removesuffix(".__init__"): path for path in sorted(found)}


def module_of(name: str, modules: Iterable[str]) -> str | None:
    """The module among ``modules`` that an imported name is or lies in; None for names from elsewhere."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def reached(names: Iterable[str], modules: Mapping[str, Path]) -> set[str]:
    """The modules among ``modules`` that an import of ``names`` would run, over whatever way, parents included."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        module = module_of(waiting.pop(), modules)
        if module is not None and module not in found:
            found.add(module)
            waiting += [*imports(modules[module]), module.rpartition(".")[0]]
    return found
