# SPDX-License-Identifier: Apache-2.0
"""The tasks: a concrete ``Task`` is found by being in a file of ``tasks/own`` or ``datasets``, or in a plugin.

Installed packages of tasks are found through entry points in the group ``fairflare.tasks``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import TypeVar

from fairflare.core import metric, plugins, registry
from fairflare.core.errors import UserError
from fairflare.core.validation import parsed, shown, unlisted
from fairflare.tasks.base import Task

T = TypeVar("T")
ROOMS = ("tasks/own", "datasets")
ALIASES = {"sites": "n_sites"}
"""Short option names, as the command line has them."""
ADDED: dict[str, type[Task]] = {}
"""Name -> a task that a script adds to those of files, for as long as its process lasts."""


def _in(module: ModuleType) -> Iterator[type[Task]]:
    own = [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == module.__name__]
    return (cls for cls in own if issubclass(cls, Task) and not inspect.isabstract(cls))


def _named(module: ModuleType) -> dict[str, type[Task]]:
    """A base class that stands beside its tasks has no name."""
    return {cls.name: cls for cls in _in(module) if hasattr(cls, "name")}


@cache
def _modules() -> tuple[ModuleType, ...]:
    """A job for a hospital's own data carries no published or simulated data sets."""
    rooms = [f"fairflare.{room.replace('/', '.')}" for room in ROOMS if (plugins.PACKAGE / room).is_dir()]
    found = ((room, pkgutil.iter_modules(importlib.import_module(room).__path__)) for room in rooms)
    names = [f"{room}.{info.name}" for room, infos in found for info in infos if not info.ispkg]
    names += [name for name, _ in plugins.package_modules(plugins.TASKS)]
    return tuple(map(importlib.import_module, names))


def every() -> dict[str, type[Task]]:
    """Task name -> its class, sorted; plugins are loaded first; UserError for a name that is none, or is taken."""
    registry.methods()
    found = {name: cls for module in _modules() for name, cls in _named(module).items()} | ADDED
    for module in plugins.modules():
        for cls in _in(module):
            name = getattr(cls, "name", None)
            if not isinstance(name, str) or not registry.ID.fullmatch(name) or found.get(name, cls) is not cls:
                expected = "expected a name of its own, of letters, digits, - and _"
                raise UserError(f"{module.__name__}: task {shown(name)}: {expected}")
            found[name] = cls
    return dict(sorted(found.items()))


def load(name: str, preset: str | None = None, **overrides: object) -> Task:
    """The task ``name`` with the options of ``preset`` and, on top, ``overrides``.

    Args:
        preset: a key of the task's ``presets``; None is the first one.
        overrides: option -> a JSON value or command-line text; ``sites`` means ``n_sites``.

    Raises:
        UserError: unknown task, preset or option (lists the known ones), or a value that the task does not take.
    """
    cls = known(name)
    chosen = _known("preset", preset if preset is not None else next(iter(cls.presets)), cls.presets)
    options = [field.name for field in dataclasses.fields(cls)]
    given = {ALIASES.get(key, key): value for key, value in overrides.items()}
    for key in given:
        _known(f"option of task {name!r}", key, dict.fromkeys(options))
    made = cls(**{key: parsed(cls, key, value) for key, value in {**chosen.options, **given}.items()})
    _check_metrics(made)
    return made


def _check_metrics(task: Task) -> None:
    """Raise UserError where a metric that the task names is none, so that no site could say it."""
    if type(task).evaluate is not Task.evaluate:
        return  # its own code computes them
    for name in task.metrics:
        if not task.metric(name).computed:
            raise UserError(f"task {task.name}: {unlisted('metric', name, sorted(metric.metrics()))}")


def known(name: str) -> type[Task]:
    """The class of the task ``name``; raises UserError that lists the known ones."""
    if name in ADDED:
        return ADDED[name]
    if home := plugins.declared_in(plugins.TASK, ROOMS, "name", name):
        found = _named(importlib.import_module(home))
        if name in found:
            return found[name]
    return _known("task", name, every())


def _known(kind: str, name: str, table: Mapping[str, T]) -> T:
    if name not in table:
        raise UserError(plugins.absent(kind, name) or unlisted(f"{kind}:", name, table))
    return table[name]
