# SPDX-License-Identifier: Apache-2.0
"""Methods, parts and tasks as rows, without importing them where nothing has changed since they were written down.

``catalogue.json`` holds what ``app.describe`` says of the package's own methods, parts and tasks, and the hash of every
file that declares one (``python docs/write_catalogue.py``). It is read only while these files are as they were and
there is no plugin; in any other case the registry is asked, which imports PyTorch and takes seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fairflare.core import plugins

PACKAGE = Path(__file__).parents[1]
FILE = PACKAGE / "app" / "catalogue.json"
ROOMS = (*plugins.ROOMS, "tasks/kinds", "tasks/own", "datasets")
"""Folders whose files declare methods, parts and tasks, those below them included."""
SOURCES = "sources"
Rows = list[dict[str, Any]]


def method_rows() -> Rows:
    """One row per method, sorted by id; see ``describe.method_rows``."""
    return _rows("methods")


def part_rows() -> Rows:
    """One row per part; see ``describe.part_rows``."""
    return _rows("parts")


def task_rows() -> Rows:
    """One row per task, each with its presets; see ``describe.task_rows``."""
    return _rows("tasks")


def described() -> dict[str, Rows]:
    """The same of the registry, which imports everything."""
    return {name: _described(name) for name in ("methods", "parts", "tasks")}


def content() -> str:
    """What ``catalogue.json`` has to hold: a row, or the hash of a file, per line."""
    kinds = [f'"{name}": [\n{_lines(map(json.dumps, rows))}\n]' for name, rows in described().items()]
    hashes = (f"{json.dumps(name)}: {json.dumps(digest)}" for name, digest in sources(PACKAGE).items())
    return "{\n" + ",\n".join([*kinds, f'"{SOURCES}": {{\n{_lines(hashes)}\n}}']) + "\n}\n"


def sources(package: Path) -> dict[str, str]:
    """File that may declare a method, a part or a task -> the begin of its SHA-256, sorted."""
    files = sorted({file for room in ROOMS for file in (package / room).rglob("*.py")})
    return {file.relative_to(package).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def is_current(package: Path, known: dict[str, Any]) -> bool:
    """Whether ``known``, a catalogue's content, was made from the files in ``package``, and no plugin adds to them."""
    return not plugins.are_there() and known.get(SOURCES) == sources(package)


def _rows(name: str) -> Rows:
    known = _known()
    rows: Rows = known[name] if known else _described(name)
    return rows


def _described(name: str) -> Rows:
    from fairflare.app import describe

    make = {"methods": describe.method_rows, "parts": describe.part_rows, "tasks": describe.task_rows}
    return make[name]()


def _known() -> dict[str, Any]:
    """The catalogue, {} where it is not current."""
    known = _read()
    return known if is_current(PACKAGE, known) else {}


@cache
def _read() -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(FILE.read_bytes())
    except (OSError, ValueError):  # a copy of the package without it
        return {}
    return found


def _lines(texts: Iterator[str]) -> str:
    return ",\n".join(texts)
