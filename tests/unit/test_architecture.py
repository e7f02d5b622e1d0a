# SPDX-License-Identifier: Apache-2.0
"""The walls between the rooms (docs/architecture.md): who may import whom. Every module has a rule."""

import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import mutations
from cases import each
from fairflare.core.imports import imports as read_imports
from fairflare.core.imports import module_files, module_of

PACKAGE = Path(__file__).parents[2] / "custom" / "fairflare"
PARTS = {"participation", "trainers", "probes", "aggregators", "server_optimizers"}
RUN = {"core", "functional", "privacy", "data", "networks", "tasks", "engine"}
DESK = {*RUN, "datasets", "report", "flare", "inference"}
BELOW = {
    "core": set(),
    "functional": {"core"},
    "trainers": {"core", "functional", "privacy"},
    "probes": {"core", "functional", "privacy"},
    "aggregators": {"core", "functional"},
    "participation": {"core"},
    "server_optimizers": {"core"},
    "privacy": {"core", "functional"},
    "data": {"core", "functional", "privacy"},
    "networks": {"core", "data"},
    "tasks": {"core", "functional", "privacy", "data", "networks"},
    "engine": {"core", "functional", "privacy", "data", "networks", "tasks", "decision", *PARTS},
    "datasets": {"core", "functional", "data", "networks", "tasks"},
    "report": {"core", "functional", "engine"},
    "flare": {"core", "functional", "privacy", "data", "networks", "tasks", "engine", "report", "aggregators"},
    "inference": {"core", "functional", "data", "networks", "tasks", "engine", "report", "trainers", "import_data"},
    "testing": {"core", "functional", "privacy", "data", "networks", "tasks", "engine", *PARTS},
    "import_data": {"core", "functional", "data", "networks", "tasks", "engine"},
    "decision": {"core", "functional", "data", "tasks"},
    "studies": {*DESK, "decision"},
    "cli": {*DESK, "testing", "decision", "studies", "import_data"},
}
"""Room -> the rooms below it, which it may import."""
ALONE = {"flare/simulate.py": {"datasets"}}
"""File -> what it alone of its room may import too: a job lacks the room ``datasets``, or most of it."""
TOP = {
    "__init__": {"api", "estimators", "studies"},
    "__main__": {"cli"},
    "client": {"flare", "probes"},
    "api": {"core", "decision", "engine", "report", "studies", "cli", "tasks", "inference", "data", "import_data"},
    "estimators": {"api", "core", "data", "functional", "import_data"},
}
"""What stands at the package's top level."""
RELATIVE = re.compile(r"^\s*from\s*\.", re.M)
FILES = sorted(PACKAGE.rglob("*.py"))


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = module_files(PACKAGE)


@cache
def imports(path):
    return list(read_imports(path))


def test_every_module_has_a_rule():
    rooms = {room(path) for path in FILES}
    assert rooms == set(BELOW) | set(TOP), sorted(rooms ^ (set(BELOW) | set(TOP)))
    assert len(list(PACKAGE.glob("*.py"))) <= 6


def test_the_rooms_have_an_order():
    """No room lies below itself, over whatever way."""
    seen, below = set(), {name: set(rooms) for name, rooms in BELOW.items()}
    while free := {name for name in below if below[name] <= seen} - seen:
        seen |= free
    assert seen == set(BELOW), sorted(set(BELOW) - seen)


@each("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_respect_the_walls(path):
    here = room(path)
    allowed = TOP[here] if here in TOP else BELOW[here] | {here}
    allowed = allowed | ALONE.get(path.relative_to(PACKAGE).as_posix(), set())
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in ("torchvision", "timm"), f"{path.name} imports {top}"
        if here != "flare":
            assert top != "nvflare", f"{path.name} imports nvflare outside the flare room"
        if top == "fairflare" and rest and (target := module_of(name, MODULES)) != "fairflare":
            assert target.split(".")[1] in allowed, f"{here}/{path.name} imports {name}"


def test_the_round_knows_no_configuration_and_no_data():
    """``engine`` without its ``setup`` runs on what it is given: no reader, network, task or configuration file."""
    above = {"data", "networks", "tasks"}
    for path in (PACKAGE / "engine").rglob("*.py"):
        if "setup" not in path.relative_to(PACKAGE).parts:
            found = {module_of(name, MODULES) or "" for name in imports(path)}
            assert not {m for m in found if m.split(".")[1:2] and m.split(".")[1] in above}, path.name
            assert not any(m.startswith("fairflare.engine.setup") for m in found), path.name


def test_studies_need_no_command_line():
    """A study from Python is the command's, without options and prompts."""
    for path in (PACKAGE / "studies").glob("*.py"):
        assert "click" not in imports(path), path.name


def test_modules_import_each_other_in_no_circle():
    graph = {
        name: {m for n in imports(path) if (m := module_of(n, MODULES)) and m != name} for name, path in MODULES.items()
    }
    done = set()

    def visit(name, way):
        assert name not in way, " -> ".join([*way[way.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, [*way, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])


@each("path", sorted((PACKAGE / "aggregators").glob("*.py")), ids=lambda p: p.name)
def test_aggregators_touch_no_data_device_or_file(path):
    for name in imports(path):
        assert name.split(".")[0] not in ("pathlib", "os", "io", "socket", "subprocess"), f"{path.name} imports {name}"
    assert ".cuda" not in path.read_text() and "open(" not in path.read_text()


@each("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_house_does_not_import_the_research_distribution(path):
    assert not [name for name in imports(path) if name.partition(".")[0] == "fairflare_lab"], path.name


def test_imports_are_absolute():
    relative = [str(path.relative_to(PACKAGE)) for path in FILES if RELATIVE.search(path.read_text())]
    assert not relative


def test_the_drawing_is_current():
    """docs/architecture.md shows the imports as they are, which its script draws."""
    command = [sys.executable, str(PACKAGE.parents[1] / "docs" / "draw_architecture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_drawing_leaves_out_what_follows():
    draw = runpy.run_path(str(PACKAGE.parents[1] / "docs" / "draw_architecture.py"))
    assert draw["reduced"]({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {"a": {"b"}, "b": {"c"}, "c": set()}
    with pytest.raises(ValueError, match="imports itself"):
        draw["reduced"]({"a": {"b"}, "b": {"a"}})
    rooms = draw["rooms"](PACKAGE)
    assert set(rooms) == set(BELOW)
    assert all(rooms[name] <= BELOW[name] | {"datasets"} for name in rooms)


def test_every_planted_defect_of_make_mutations_still_applies():
    times = {one.name: (PACKAGE / one.file).read_text().count(one.right) for one in mutations.DEFECTS}
    assert times == dict.fromkeys(times, 1)
