# SPDX-License-Identifier: Apache-2.0
"""Every setting with its owner, default, range and meaning, read from where it is declared.

The tasks are imported where they are asked for: what a method's settings are needs neither them nor PyTorch.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fairflare.core import registry, validation
from fairflare.core.errors import UserError
from fairflare.core.registry import Method
from fairflare.core.settings import Owners
from fairflare.core.suggest import unlisted
from fairflare.core.types import Training
from fairflare.core.validation import Entries, Range, Text
from fairflare.engine.setup.method_parts import STEPS, defaults_of, step_class

Row = dict[str, Any]
ONE_OF_KIND = {"rule": "rule", "trainer": "trainer", "selector": "select", "server optimizer": "server"}
"""Kind of part -> the owner of its settings' names; a probe's are "probe.ID"."""


def about(name: str) -> dict[str, Any]:
    """What ``fairflare describe NAME`` shows: name, title, lines, settings and how one is given.

    Raises:
        UserError: nothing has the name; the message says what was meant.
    """
    if name in registry.methods():
        return _method(registry.get_method(name))
    from fairflare.engine.setup import tasks

    task, colon, preset = name.partition(":")
    if task in tasks.every():
        return _task(task, preset if colon else None)
    rows = [row for row in all_settings() if row["owner"] == name]
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
    """The options of a task and how its sites train, with the values of one preset, the first by default."""
    from fairflare.engine.setup import tasks

    cls = tasks.known(name)
    chosen = next(iter(cls.presets)) if preset is None else preset
    built = tasks.load(name, chosen)
    training = cls.presets[chosen].training
    rows = [{**row, "default": getattr(built, row["name"])} for row in _rows("task", cls)]
    rows += [{**row, "default": getattr(training, row["name"])} for row in _rows("train", Training)]
    lines = [f"real: {cls.real}", f"simulated: {cls.simulated}", f"presets: {', '.join(cls.presets)}"]
    lines += [f"primary endpoint: {cls.primary}"] if cls.primary else []
    use = f"set one: fairflare run METHOD --task {name}:{chosen} --set {rows[0]['full']}=..."
    return {"name": f"{name}:{chosen}", "title": cls.title, "about": lines, "settings": rows, "use": use}


def method_settings(entry: Method) -> list[Row]:
    """The settings of a method's parts, each with its shortest name and the method's own default."""
    classes = registry.owners(entry)
    owners = Owners(classes, entry.shared)
    rows = {row["full"]: row for owner, cls in classes.items() for row in _rows(owner, cls)}
    own = {full: {"default": given.value} for full, given in defaults_of(entry, owners).items()}
    named = owners.names().items()
    return [{**rows[of[0]], "name": short, "sets": list(of), **own.get(of[0], {})} for short, of in named]


def key_settings(key: str) -> list[Row]:
    """Every setting whose name, bare or full, is ``key``.

    Raises:
        UserError: there is none; the message says what was meant.
    """
    from fairflare.engine.setup import tasks

    rows = all_settings()
    if found := [row for row in rows if key in (row["full"], row["name"])]:
        return found
    owners = sorted({row["owner"] for row in rows})
    keys = sorted({row[kind] for row in rows for kind in ("name", "full")})
    places = f"methods: `fairflare list`, tasks: `fairflare tasks`, owners: {', '.join(owners)}"  # names are hundreds
    subjects = [*registry.methods(), *tasks.every(), *owners, *keys]
    raise UserError(unlisted("method, task, owner or key", key, subjects, places))


def all_settings() -> list[Row]:
    """Every setting of every part, task and run: owner, of which part or task, default, range, meaning."""
    from fairflare.engine.setup import tasks
    from fairflare.engine.setup.run_config import RUN_KEYS, RunConfig

    run = (row for row in _rows("run", RunConfig) if row["name"] in (*RUN_KEYS, "after"))
    rows = [*_rows("train", Training), *run]
    for kind in registry.BASES:
        for id, cls in registry.parts(kind).items():
            rows += _rows(ONE_OF_KIND.get(kind, f"probe.{id}"), cls, f"{kind} {id}")
    for name in STEPS:
        rows += _rows("after", step, f"step {name}") if (step := step_class(name)) else []
    for name, task in tasks.every().items():
        rows += _rows("task", task, f"task {name}")
    return rows


def _rows(owner: str, cls: type, of: str = "") -> list[Row]:
    """One row per setting of ``cls``, in the order of its fields."""
    hints, defaults = validation.hints(cls), registry.parameters(cls)
    rows = []
    for name, hint in hints.items():
        row = {"full": f"{owner}.{name}", "name": name, "owner": owner, "of": of, "default": defaults[name]}
        rows.append({**row, "allowed": allowed(hint), "meaning": meaning(cls, name)})
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


WORDS: dict[Any, str] = {bool: "true or false", int: "whole number", float: "number", str: "text"}
WORDS |= {dict: "names and values", types.NoneType: "none"}
WORDS |= dict.fromkeys((list, tuple), "values, divided by commas")


def _mark(mark: Any) -> str:
    if isinstance(mark, Range):
        return f"{mark.low:g} to {mark.high:g}"
    if isinstance(mark, Text):
        return mark.words
    return f"at most {mark.most} entries" if isinstance(mark, Entries) else ""
