# SPDX-License-Identifier: Apache-2.0
"""The tasks: a file here that defines a concrete ``Task`` is found by being here."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil

from fairflare.clinic.base import Task
from fairflare.errors import UserError
from fairflare.registry import checked

ALIASES = {"sites": "n_sites"}
"""Short option names, as the command line has them."""


def _discover() -> dict[str, type[Task]]:
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__ and issubclass(cls, Task) and not inspect.isabstract(cls):
                found[cls.name] = cls
    return dict(sorted(found.items()))


TASKS: dict[str, type[Task]] = _discover()
"""Task name -> its class, sorted."""


def load(name: str, preset: str | None = None, **overrides: object) -> Task:
    """The task ``name`` with the options of ``preset`` and, on top, ``overrides``.

    Args:
        name: a key of ``TASKS``.
        preset: a key of the task's ``presets``; None is the first one.
        overrides: option -> a JSON value or command-line text; ``sites`` means ``n_sites``.

    Raises:
        UserError: unknown task, preset or option (lists the known ones), or a value that the task does not take.
    """
    cls = _known("task", name, TASKS)
    chosen = _known("preset", preset if preset is not None else next(iter(cls.presets)), cls.presets)
    options = [field.name for field in dataclasses.fields(cls)]
    given = {ALIASES.get(key, key): value for key, value in overrides.items()}
    for key in given:
        _known(f"option of task {name!r}", key, dict.fromkeys(options))
    return cls(**{key: checked(cls, key, value) for key, value in {**chosen.options, **given}.items()})


def _known(kind: str, name: str, table):
    if name not in table:
        raise UserError(f"unknown {kind}: {name!r}; known: {', '.join(table)}")
    return table[name]
