# SPDX-License-Identifier: Apache-2.0
"""The walls between the rooms (docs/architecture.md): who may import whom."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "custom" / "fairflare"
LEAVES = {
    "contracts",
    "errors",
    "execution",
    "findings",
    "layers",
    "objectives",
    "perturbation",
    "registry",
    "seeds",
    "similarity",
    "site_config",
    "user_code",
    "versions",
    "__init__",
}
ALLOWED = {
    "rules": {"rules"},
    "trainers": {"trainers"},
    "probes": {"probes", "privacy"},
    "privacy": {"privacy"},
    "clinic": {"clinic"},
    "federation": {"federation", "rules", "trainers", "probes", "privacy"},
    "report": {"report", "federation", "clinic", "assembly", "config"},
    "flare": {"flare", "report", "federation", "rules", "privacy", "clinic", "assembly", "config"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path):
    """Absolute dotted names that the file imports at run time, function bodies included."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_respect_the_walls(path):
    here = room(path)
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in ("torchvision", "timm"), f"{path.name} imports {top}"
        if here != "flare":
            assert top != "nvflare", f"{path.name} imports nvflare outside the flare room"
        if top != "fairflare" or here not in ALLOWED:
            continue
        target = rest[0] if rest else "__init__"
        known = target in LEAVES or (PACKAGE / target).is_dir() or (PACKAGE / f"{target}.py").exists()
        if known:
            assert target in LEAVES | ALLOWED[here], f"{here}/{path.name} imports {name}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "rules").glob("*.py")), ids=lambda p: p.name)
def test_rules_touch_no_data_device_or_file(path):
    for name in imports(path):
        assert name.split(".")[0] not in ("pathlib", "os", "io", "socket", "subprocess"), f"{path.name} imports {name}"
    assert ".cuda" not in path.read_text() and "open(" not in path.read_text()


def test_leaves_import_leaves_only():
    """The registry alone looks into the rooms, by name, to find what registers itself there."""
    for leaf in LEAVES - {"__init__"}:
        for name in imports(PACKAGE / f"{leaf}.py"):
            if name.startswith("fairflare.") and name != "fairflare.__version__":
                assert name.split(".")[1] in LEAVES, f"{leaf}.py imports {name}"


def test_the_drawing_shows_every_room():
    text = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text()
    for name in ALLOWED:
        assert f"{name}/" in text, f"docs/architecture.md does not show {name}/"
