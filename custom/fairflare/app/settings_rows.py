# SPDX-License-Identifier: Apache-2.0
"""Every setting with its owner, default, range and meaning, read from where it is declared."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.registry import Method
from fairflare.core.settings import Owners, bare
from fairflare.core.suggest import unlisted
from fairflare.core.types import Training
from fairflare.core.validation import Entries, Range, Text
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RUN_KEYS, RunConfig
from fairflare.engine.setup.method_parts import STEPS, defaults_of, step_class

Row = dict[str, Any]
GENERAL: Mapping[str, type] = {"train": Training, "run": RunConfig}
"""Owners that every run has."""
ONE_OF_KIND = {"rule": "rule", "trainer": "trainer", "selector": "select", "server optimizer": "server"}
"""Kind of part -> the owner of its settings' names; a probe's are "probe.ID"."""


def about(name: str) -> dict[str, Any]:
    """What ``fairflare describe NAME`` shows: name, title, lines, settings and how one is given.

    Raises:
        UserError: nothing has the name; the message says what was meant.
    """
    task, colon, preset = name.partition(":")
    if name in registry.methods():
        return _method(registry.get_method(name))
    if task in tasks.every():
        return _task(task, preset if colon else None)
    rows = owner_settings(name)
    title = OWNERS.get(name.partition(".")[0], "") if rows else "every setting of this name"
    rows = rows or key_settings(name)
    return {"name": name, "title": title, "about": [], "settings": rows, "use": f"set it: --set {rows[0]['full']}=..."}


OWNERS: Mapping[str, str] = {
    "rule": "how the server weighs and combines updates",
    "trainer": "how a site trains",
    "probe": "what a site measures and reports",
    "select": "who takes part in a round",
    "server": "how the server steps along the combined update",
    "train": "local training, equal for all methods of a comparison",
    "task": "the data and the network",
    "after": "the step after the last round",
    "run": "the run",
}


def _method(entry: Method) -> dict[str, Any]:
    made = f"trainer {entry.trainer}, probes {', '.join(registry.probes_of(entry)) or 'none'}, rule {entry.rule}"
    lines = [entry.summary, str(entry.paper), made, f"card: docs/methods/{entry.id}.md"]
    use = "local training: fairflare describe train; the run: fairflare describe run"
    return {"name": entry.id, "title": entry.title, "about": lines, "settings": method_settings(entry), "use": use}


def _task(name: str, preset: str | None) -> dict[str, Any]:
    cls = tasks.known(name)
    rows = task_settings(name, preset)
    chosen = preset or next(iter(cls.presets))
    lines = [f"real: {cls.real}", f"simulated: {cls.simulated}", f"presets: {', '.join(cls.presets)}"]
    lines += [f"primary endpoint: {cls.primary}"] if cls.primary else []
    use = f"set one: fairflare run METHOD --task {name}:{chosen} --set {rows[0]['full']}=..."
    return {"name": f"{name}:{chosen}", "title": cls.title, "about": lines, "settings": rows, "use": use}


def method_settings(entry: Method) -> list[Row]:
    """The settings of a method's parts, each with its shortest name and the method's own default."""
    classes = registry.owners(entry)
    owners = Owners(classes, entry.shared)
    own = {full: given.value for full, given in defaults_of(entry, owners).items()}
    rows = []
    for short, targets in owners.names().items():
        row = _row(targets[0], classes[targets[0].rpartition(".")[0]])
        default = own.get(targets[0], row["default"])
        rows.append({**row, "name": short, "sets": list(targets), "default": default})
    return rows


def task_settings(name: str, preset: str | None = None) -> list[Row]:
    """The options of a task and how its sites train, with the values of one preset, the first by default.

    Raises:
        UserError: there is no such task or preset.
    """
    cls = tasks.known(name)
    preset = next(iter(cls.presets)) if preset is None else preset
    built = tasks.load(name, preset)
    training = cls.presets[preset].training
    rows = [{**_row(f"task.{field.name}", cls), "default": getattr(built, field.name)} for field in _fields(cls)]
    rows += [{**_row(f"train.{f.name}", Training), "default": getattr(training, f.name)} for f in _fields(Training)]
    return rows


def owner_settings(owner: str) -> list[Row]:
    """The settings of "train", "run", "rule", "server", "probe.sharpness" ...: of all parts that may be that owner."""
    return [row for row in all_settings() if row["owner"] == owner]


def key_settings(key: str) -> list[Row]:
    """Every setting whose name, bare or full, is ``key``.

    Raises:
        UserError: there is none; the message says what was meant.
    """
    rows = all_settings()
    if found := [row for row in rows if key in (row["full"], bare(row["full"]))]:
        return found
    owners = ", ".join(sorted({row["owner"] for row in rows}))
    places = f"methods: `fairflare list`, tasks: `fairflare tasks`, owners: {owners}"  # the names are hundreds
    raise UserError(unlisted("method, task, owner or key", key, subjects(rows), places))


def subjects(rows: list[Row]) -> list[str]:
    """All that can be described: methods, tasks, owners, bare and full names of settings."""
    owners = sorted({row["owner"] for row in rows})
    keys = sorted({bare(row["full"]) for row in rows} | {row["full"] for row in rows})
    return [*registry.methods(), *tasks.every(), *owners, *keys]


def all_settings() -> list[Row]:
    """Every setting of every part, task and run: owner, of which part or task, default, range, meaning."""
    rows = [row for owner, cls in GENERAL.items() for row in _rows(owner, cls)]
    for kind in registry.BASES:
        for id, cls in registry.parts(kind).items():
            rows += [{**row, "of": f"{kind} {id}"} for row in _rows(ONE_OF_KIND.get(kind, f"probe.{id}"), cls)]
    for name, step in ((name, step_class(name)) for name in STEPS):
        rows += [{**row, "of": f"step {name}"} for row in _rows("after", step)] if step else []
    for name, task in tasks.every().items():
        rows += [{**row, "of": f"task {name}"} for row in _rows("task", task)]
    return rows


def meaning(cls: type, name: str) -> str:
    """What the docstring of ``cls``, or of the base that declares the field, says of it in one line; "" for nothing."""
    for base in cls.__mro__:
        text = inspect.cleandoc(base.__doc__ or "")
        if found := re.search(rf"^ +{re.escape(name)}: +(.*(?:\n {{8,}}.*)*)", text, re.MULTILINE):
            return " ".join(found.group(1).replace("``", "`").split())
    return ""


def allowed(kind: Any) -> str:
    """A declared type in words: "number, 0 to 1", "one of sgd, adam", "true or false", "whole number or none"."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        return ", ".join([allowed(inner), *filter(None, map(_mark, marks))])
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(allowed(one) for one in get_args(kind))
    return WORDS.get(kind, WORDS.get(get_origin(kind) or kind, "text"))


WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    list: "values, divided by commas",
    tuple: "values, divided by commas",
    dict: "names and values",
    types.NoneType: "none",
}


def _mark(mark: Any) -> str:
    if isinstance(mark, Range):
        return f"{mark.low:g} to {mark.high:g}"
    if isinstance(mark, Text):
        return mark.words
    return f"at most {mark.most} entries" if isinstance(mark, Entries) else ""


def _rows(owner: str, cls: type) -> list[Row]:
    return [_row(f"{owner}.{field.name}", cls) for field in _fields(cls)]


def _fields(cls: type) -> list[dataclasses.Field[Any]]:
    if cls is RunConfig:
        return [field for field in dataclasses.fields(cls) if field.name in (*RUN_KEYS, "after")]
    return list(dataclasses.fields(cls))


def _row(full: str, cls: type) -> Row:
    name = bare(full)
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    hints = get_type_hints(cls, include_extras=True)
    return {
        "full": full,
        "name": name,
        "owner": full.rpartition(".")[0],
        "of": "",
        "default": _default(field),
        "allowed": allowed(hints[name]),
        "meaning": meaning(cls, name),
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
