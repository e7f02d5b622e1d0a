# SPDX-License-Identifier: Apache-2.0
"""No file but ``flare/compat.py`` uses a private name of FLARE's: the next release may do without it."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import fairflare.flare
from fairflare.flare import compat

PACKAGE = Path(fairflare.__file__).parent
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
OTHERS = {path: tree for path, tree in TREES.items() if path != Path(compat.__file__)}
USERS = {path: tree for path, tree in OTHERS.items() if path.parent.name == "flare"}
NOT_FLARE_S = {"_exit", "_HOMES", "_getframe"}
"""Of Python and of this package."""


def is_private(name):
    return name == "private" or (name.startswith("_") and not name.startswith("__"))


def own_names():
    """What the package itself calls with an underscore."""
    for tree in OTHERS.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                yield node.attr


def _is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def flare_s_private_names(tree, own):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            module = getattr(node, "module", None) or ""
            for one in node.names:
                parts = f"{module}.{one.name}".strip(".").split(".")
                if parts[0] == "nvflare" and any(map(is_private, parts)):
                    yield ".".join(parts)
        elif isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.attr
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("nvflare.private")
        ):
            yield node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr"):
            name = getattr(node.args[1], "value", "")
            if isinstance(name, str) and is_private(name) and name not in own:
                yield name


def test_no_other_file_uses_a_private_name():
    own = set(own_names()) | NOT_FLARE_S
    found = {path.name: names for path, tree in USERS.items() if (names := [*flare_s_private_names(tree, own)])}
    assert not found


def test_no_other_class_overrides_a_private_name():
    for module in pkgutil.iter_modules(fairflare.flare.__path__, "fairflare.flare."):
        for cls in vars(importlib.import_module(module.name)).values():
            if not inspect.isclass(cls) or cls.__module__ != module.name or module.name == compat.__name__:
                continue
            bases = [base for base in cls.__mro__ if base.__module__.startswith("nvflare.")]
            taken = {name for base in bases for name in vars(base) if is_private(name)}
            assert not (taken - {"_abc_impl"}).intersection(vars(cls)), cls


def test_the_compatibility_module_says_why():
    """Every private name stands in a function whose docstring, or beside a comment that, gives the reason."""
    source = Path(compat.__file__).read_text(encoding="utf-8")
    for node in TREES[Path(compat.__file__)].body:
        if [*flare_s_private_names(ast.Module([node], []), set())]:
            text = (
                ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else ast.get_source_segment(source, node)
            )
            assert "rivate" in (text or ""), node.lineno
