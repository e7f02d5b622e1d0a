# SPDX-License-Identifier: Apache-2.0
"""The one list of methods, rules, trainers and probes: the command line, the contract tests and the docs read it.

A file in ``rules/``, ``trainers/`` or ``probes/`` registers what it defines with a decorator and is found by being
there. Files from outside the package are found through ``FAIRFLARE_PLUGINS``: paths of ``.py`` files, separated as in
``PATH``.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import pkgutil
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fairflare.contracts import Paper
from fairflare.errors import UserError

if TYPE_CHECKING:
    from fairflare.probes.base import Probe
    from fairflare.rules.base import Rule
    from fairflare.trainers.base import Trainer

PLUGINS = "FAIRFLARE_PLUGINS"
ROOMS = ("rules", "trainers", "probes")
T = TypeVar("T")

_methods: dict[str, Method] = {}
_trainers: dict[str, type[Trainer]] = {}
_probes: dict[str, type[Probe]] = {}


@dataclasses.dataclass(frozen=True)
class Method:
    """A named combination of a rule, a trainer and probes with its paper's defaults.

    Attributes:
        id: what the user types.
        title: the name in the paper.
        summary: one line, what it is for.
        rule: the server rule's class.
        trainer: id of the trainer.
        probes: ids of the probes that sites run.
        paper: where it comes from.
        settings: defaults that differ from those of the parts and of the task's training settings.
        reference: further settings that ``variant=reference`` implies (what the authors' code does).
    """

    id: str
    title: str
    summary: str
    rule: type[Rule]
    trainer: str
    probes: tuple[str, ...]
    paper: Paper
    settings: Mapping[str, Any]
    reference: Mapping[str, Any]


def method(
    id: str,
    *,
    title: str,
    summary: str,
    paper: Paper,
    trainer: str = "sgd",
    probes: tuple[str, ...] = (),
    settings: Mapping[str, Any] | None = None,
    reference: Mapping[str, Any] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Register a rule's class (a frozen dataclass of its parameters) as method ``id``; stack it for several methods."""

    def register(rule: type[T]) -> type[T]:
        entry = Method(id, title, summary, rule, trainer, tuple(probes), paper, settings or {}, reference or {})
        _add(_methods, id, entry, "method", same=lambda old: _source(old.rule) == _source(rule))
        return rule

    return register


def trainer(id: str) -> Callable[[type[T]], type[T]]:
    """Register a trainer's class under ``id``."""
    return _part(_trainers, id, "trainer")


def probe(id: str) -> Callable[[type[T]], type[T]]:
    """Register a probe's class under ``id``."""
    return _part(_probes, id, "probe")


def methods() -> dict[str, Method]:
    """Every method by id, sorted."""
    _discover()
    return dict(sorted(_methods.items()))


def get_method(id: str) -> Method:
    """The method ``id``; raises UserError that lists the known ones."""
    return _get(methods(), id, "method")


def get_trainer(id: str) -> type[Trainer]:
    """The trainer ``id``; raises UserError that lists the known ones."""
    _discover()
    return _get(_trainers, id, "trainer")


def get_probe(id: str) -> type[Probe]:
    """The probe ``id``; raises UserError that lists the known ones."""
    _discover()
    return _get(_probes, id, "probe")


def trainers() -> dict[str, type[Trainer]]:
    """Every trainer by id, sorted."""
    _discover()
    return dict(sorted(_trainers.items()))


def probes() -> dict[str, type[Probe]]:
    """Every probe by id, sorted."""
    _discover()
    return dict(sorted(_probes.items()))


def parameters(cls: type) -> dict[str, Any]:
    """Name -> default of a part's parameters (the fields of its dataclass)."""
    return {f.name: f.default for f in dataclasses.fields(cls)}


def method_keys(entry: Method) -> set[str]:
    """Names of the parameters of a method's rule, trainer and probes."""
    parts = (entry.rule, get_trainer(entry.trainer), *map(get_probe, entry.probes))
    return {key for part in parts for key in parameters(part)}


def checked(cls: type, name: str, value: Any) -> Any:
    """``value`` (a JSON value or command-line text) as field ``name`` of ``cls`` declares it.

    Raises:
        UserError: names the key, what was expected and what came.
    """
    hint = typing.get_type_hints(cls)[name]
    if typing.get_origin(hint) is typing.Literal:
        allowed = typing.get_args(hint)
        for option in allowed:
            if str(option) == str(value):
                return option
        raise UserError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value is None or value == "none":
            return None
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    return _as(hint, name, value)


def _as(hint: type, name: str, value: Any) -> Any:
    if hint is bool:
        known = {"true": True, "false": False, "1": True, "0": False}
        if str(value).lower() not in known:
            raise UserError(f"{name}: expected true or false, got {value!r}")
        return known[str(value).lower()]
    try:
        if hint is int and (isinstance(value, bool) or float(value) != int(float(value))):
            raise ValueError
        return hint(float(value)) if hint is int else hint(value)
    except (TypeError, ValueError, OverflowError):
        kind = {int: "a whole number", float: "a number"}.get(hint, hint.__name__)
        raise UserError(f"{name}: expected {kind}, got {value!r}") from None


def _part(table: dict[str, type], id: str, kind: str) -> Callable[[type[T]], type[T]]:
    def register(cls: type[T]) -> type[T]:
        _add(table, id, cls, kind, same=lambda old: _source(old) == _source(cls))
        return cls

    return register


def _source(cls: type) -> tuple[str | None, str]:
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None), cls.__qualname__


def _add(table: dict[str, T], id: str, entry: T, kind: str, same: Callable[[T], bool]) -> None:
    if id in table and not same(table[id]):
        raise ValueError(f"{kind} {id!r} is registered twice")
    table[id] = entry


def _get(table: Mapping[str, T], id: str, kind: str) -> T:
    if id not in table:
        raise UserError(f"unknown {kind} {id!r}; known: {', '.join(sorted(table))}")
    return table[id]


def _discover() -> None:
    _import_rooms()
    for path in plugin_files():
        _import_plugin(path)


@cache
def _import_rooms() -> None:
    for room in ROOMS:
        package = importlib.import_module(f"fairflare.{room}")
        for info in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{info.name}")


def plugin_files() -> tuple[Path, ...]:
    """The files that ``FAIRFLARE_PLUGINS`` names."""
    return tuple(Path(p) for p in os.environ.get(PLUGINS, "").split(os.pathsep) if p)


@cache
def _import_plugin(path: Path) -> None:
    name = f"fairflare_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"{PLUGINS}: no such Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{PLUGINS}: {path}: {type(error).__name__}: {error}") from error
