# SPDX-License-Identifier: Apache-2.0
"""Imports the files that declare parts, methods, metrics and tasks: the package's own and plugins.

A file in one of ``ROOMS`` is found by being there, and imported when what it declares is asked for. Files from
outside the package are found through ``FAIRFLARE_PLUGINS`` (paths of ``.py`` files, separated as in ``PATH``), those of
installed distributions through entry points in the group ``fairflare.plugins``. Each entry point names a module to
import, or a package whose files are found as those in ``ROOMS`` are; jobs carry what a run needs of such a package.
Packages of tasks have the group ``fairflare.tasks``, click commands ``fairflare.commands``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from fairflare.core.errors import UserError

VARIABLE = "FAIRFLARE_PLUGINS"
GROUP, TASKS, COMMANDS = "fairflare.plugins", "fairflare.tasks", "fairflare.commands"
SECURE_SUMS = "fairflare.secure_sums"
"""Schemes that hide a site's numbers: each entry point names the module of one."""
ROOMS = ("participation", "trainers", "probes", "aggregators", "server_optimizers")
Tables = Sequence[dict[str, Any]]
PACKAGE = Path(__file__).parents[1]
PART = re.compile(r'^@?(selector|trainer|probe|rule|server_optimizer|method)\(\s*"([^"]+)"', re.MULTILINE)
TASK = re.compile(r'^    (name)(?:: [^=]+)? = "([^"]+)"', re.MULTILINE)
"""How files of the package declare a part or method, and a task: (what, id)."""


_done: set[tuple[str, str]] = set()
"""Plugins that have been imported without an error."""
_in_rooms: list[ModuleType] = []
"""The rooms' modules, once they have been imported."""


def load(tables: Tables, complete: Callable[[], None]) -> list[str]:
    """Import everything that has not been imported yet; returns the names of the plugins among it, for messages.

    Args:
        tables: what registering fills; a plugin that fails leaves nothing in them.
        complete: called after each plugin; raises UserError where it has left something half declared.

    Raises:
        UserError: names the plugin and what went wrong in it.
    """
    _import_rooms()
    complete()
    names = []
    for path in files():
        spec = _spec(path)
        _once(("file", str(path)), partial(_import_file, spec), f"{VARIABLE}: {path}", tables, complete)
        names.append(VARIABLE)
    for point in in_group():
        if not _search_path(point.module):
            _once(("entry point", point.value), point.load, f"entry point {point.name} of {GROUP}", tables, complete)
            names.append(GROUP)
    for module, _ in package_modules():
        _once(("entry point", module), partial(importlib.import_module, module), f"{GROUP}: {module}", tables, complete)
    return names


def in_job() -> bool:
    """Whether this is the copy of the package that a job carries."""
    return not (PACKAGE / "cli").is_dir()


def absent(kind: str, name: object) -> str:
    """How to get what the research distribution would bring, in one line, else ""; jobs have no such line."""
    return "" if in_job() else str(importlib.import_module("fairflare.core.lab").absent(kind, name))


def declared_in(pattern: re.Pattern[str], rooms: Sequence[str], what: str, id: str) -> str | None:
    """The module in ``rooms`` or an installed package whose text declares ``id``, so that only it has to be imported.

    None where no text does, and where plugins of one module are there or this is the copy in a job, which may carry
    some: then everything is imported, and what is declared twice is found.
    """
    return None if in_job() or files() or installed_modules() else _declarations(pattern, tuple(rooms)).get((what, id))


@cache
def _declarations(pattern: re.Pattern[str], rooms: tuple[str, ...]) -> dict[tuple[str, str], str]:
    """(what, id) -> the module that declares it."""
    homes = {}
    for room in rooms:
        for file in (*PACKAGE.glob(f"{room}.py"), *(PACKAGE / room).glob("*.py")):
            homes[file] = ".".join(("fairflare", *file.relative_to(PACKAGE).with_suffix("").parts))
    homes |= {file: name for group in (GROUP, TASKS) for name, file in package_modules(group)}
    declared = ((pattern.findall(file.read_text(encoding="utf-8")), home) for file, home in homes.items())
    return {key: home for keys, home in declared for key in keys}


def files() -> tuple[Path, ...]:
    return tuple(Path(p) for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p)


def installed_modules() -> tuple[str, ...]:
    """The modules that entry points name, without the packages among them."""
    return tuple(point.module for point in in_group() if not _search_path(point.module))


def installed_packages(group: str = GROUP) -> tuple[EntryPoint, ...]:
    """The entry points that name a package."""
    return tuple(point for point in in_group(group) if _folders(point.module))


def modules_by_name(group: str) -> dict[str, str]:
    """Name -> module of each entry point in ``group``."""
    return {point.name: point.module for point in in_group(group)}


def top_packages() -> set[str]:
    """The top-level packages that hold installed packages of plugins."""
    return {point.module.partition(".")[0] for group in (GROUP, TASKS) for point in installed_packages(group)}


def package_modules(group: str = GROUP) -> Iterator[tuple[str, Path]]:
    """Dotted name and file of every module in a package that an entry point names."""
    for point in installed_packages(group):
        for folder in _folders(point.module):
            for file in sorted(Path(folder).glob("*.py")):
                if file.stem != "__init__":
                    yield f"{point.module}.{file.stem}", file


def _folders(module: str) -> list[str]:
    """The folders of a package; none of a module.

    In a job only a package that the job carries counts: an installed one may need what the job's copy lacks.
    """
    folders = _search_path(module)
    return [one for one in folders if not in_job() or PACKAGE.parent in Path(one).parents]


@cache
def _search_path(module: str) -> tuple[str, ...]:
    """The folders of a package, wherever it lies; none of a module, nor of a name that cannot be found."""
    spec = _spec_of(module)
    return tuple(spec.submodule_search_locations or ()) if spec else ()


def _spec_of(module: str) -> ModuleSpec | None:
    """None of a name that cannot be found: loading it complains, and names the entry point."""
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None


def _once(
    key: tuple[str, str], run: Callable[[], Any], name: str, tables: Tables, complete: Callable[[], None]
) -> None:
    """Call ``run`` unless it has succeeded before; where it fails ``tables`` are as they were."""
    if key in _done:
        return
    before = [dict(table) for table in tables]
    try:
        run()
        complete()
    except (Exception, SystemExit) as error:  # whatever a plugin does while it is imported
        for table, content in zip(tables, before):
            table.clear()
            table.update(content)
        raise UserError(f"{name}: {type(error).__name__}: {error}") from error
    _done.add(key)


@cache
def _import_rooms() -> None:
    for room in ROOMS:
        package = importlib.import_module(f"fairflare.{room}")
        for info in pkgutil.iter_modules(getattr(package, "__path__", [])):  # one is a module
            _in_rooms.append(importlib.import_module(f"{package.__name__}.{info.name}"))


@cache
def _points() -> Any:
    """Those of all groups: looking for one group's reads as many files."""
    return entry_points()


@cache
def in_group(group: str = GROUP) -> tuple[EntryPoint, ...]:
    """The entry points of installed distributions in ``group``, sorted.

    In a job, those alone whose module can be found: what a machine has installed beside it may be out of its reach.
    """
    points = sorted(_points().select(group=group), key=lambda point: (point.name, point.value))
    return tuple(point for point in points if not in_job() or _spec_of(point.module) is not None)


def _name(path: Path) -> str:
    return f"fairflare_plugin_{path.stem}"


def _spec(path: Path) -> ModuleSpec:
    spec = importlib.util.spec_from_file_location(_name(path), path)
    if not path.is_file() or spec is None or spec.loader is None:
        several = f" (expected {os.pathsep!r} between files)" if "," in str(path) else ""
        raise UserError(f"{VARIABLE}: no such Python file: {path}{several}")
    return spec


def _import_file(spec: ModuleSpec) -> None:
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        assert spec.loader is not None  # _spec has looked
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise


def modules() -> list[ModuleType]:
    """The plugins that are loaded, and the rooms' modules, among which a job carries its plugins."""
    names = [_name(path) for path in files() if ("file", str(path)) in _done]
    names += [place.partition(":")[0] for what, place in sorted(_done) if what == "entry point"]
    return [*_in_rooms, *(sys.modules[name] for name in names if name in sys.modules)]
