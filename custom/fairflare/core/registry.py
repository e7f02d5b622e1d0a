# SPDX-License-Identifier: Apache-2.0
"""The one list of methods and of the five kinds of parts: the command line, the contract tests and the docs read it.

A part registers itself with a decorator: ``@selector("id")``, ``@trainer("id")``, ``@probe("id")``, ``@rule("id")``,
``@server_optimizer("id")``. A method is a declaration, ``method("id", rule="...", trainer="...", ...)``, that names
parts by their ids. ``core.plugins`` says where they are found.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fairflare.core import plugins, validation
from fairflare.core.errors import UserError
from fairflare.core.settings import Owners
from fairflare.core.types import Paper, Training, refuse_training
from fairflare.core.validation import unlisted

if TYPE_CHECKING:
    from fairflare.aggregators.base import Rule
    from fairflare.probes.base import Probe
    from fairflare.trainers.base import Trainer

PLUGINS = plugins.VARIABLE
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
BASES = {
    "selector": ("participation", "Selector"),
    "trainer": ("trainers.base", "Trainer"),
    "probe": ("probes.base", "Probe"),
    "rule": ("aggregators.base", "Rule"),
    "server optimizer": ("server_optimizers.base", "ServerOptimizer"),
}
"""Kind of part -> the class that every part of the kind derives from, and its module."""
T = TypeVar("T")

_methods: dict[str, Method] = {}
_parts: dict[str, dict[str, type]] = {kind: {} for kind in BASES}
_whole: set[str] = set()
"""Methods that have been checked together with their parts, once every plugin is there."""
exchanges: dict[str, type] = {}
"""Exchanges of plugins by id, see ``engine.exchanges.base.exchange``."""
_open: dict[str, bool] = {}
"""Methods declared without a rule's id, whose rule is the class below the declaration."""


@dataclasses.dataclass(frozen=True)
class Method:
    """A named combination of parts with its paper's defaults.

    Attributes:
        id: what the user types.
        title: the name in the paper.
        summary: one line, what it is for.
        probes: ids of the probes that sites run.
        settings: defaults that differ from those of the parts, by any name that works, see ``core.settings``; never of
            local training, which is the task's.
        shared: name of a quantity that several parts share -> full names of the settings that it sets.
        reference: further settings that ``variant=reference`` implies (what the authors' code does); these may change
            local training, since the user asks for them.
        home: the module that declares it.
    """

    id: str
    title: str
    summary: str
    rule: str
    trainer: str
    probes: tuple[str, ...]
    selector: str
    server_optimizer: str
    paper: Paper
    settings: Mapping[str, Any]
    reference: Mapping[str, Any]
    shared: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    home: str = dataclasses.field(default="", compare=False)


def method(
    id: str,
    *,
    title: str,
    summary: str,
    paper: Paper | str,
    rule: str = "",
    trainer: str = "sgd",
    probes: tuple[str, ...] = (),
    selector: str = "all",
    server_optimizer: str = "none",
    settings: Mapping[str, Any] | None = None,
    reference: Mapping[str, Any] | None = None,
    shared: Mapping[str, tuple[str, ...]] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Declare method ``id``, see ``Method``.

    Without ``rule`` the declaration stands above the class (a frozen dataclass of its parameters) of a rule, which it
    also registers as rule ``id``, or of a trainer, registered as trainer ``id``, under FedAvg. ``paper`` may be a text,
    see ``Paper.cited``.

    Raises:
        ValueError: the id is taken, ``settings`` change local training, or ``paper`` is another text.
    """
    paper = Paper.cited(paper) if isinstance(paper, str) else paper
    refuse_training(settings or {})
    if not all(isinstance(one, Mapping) for one in (settings or {}, reference or {}, shared or {})):
        raise UserError(f"method {validation.shown(id)}: expected mappings as settings, reference and shared")
    texts = (title, summary, rule, trainer, selector, server_optimizer, *probes)
    if not isinstance(paper, Paper) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"method {validation.shown(id)}: expected a Paper, and texts as title, summary and parts")
    _check_id("method", id)
    home = sys._getframe(1).f_globals.get("__name__", "")
    kinds = (trainer, tuple(probes), selector, server_optimizer)
    entry = Method(id, title, summary, rule or id, *kinds, paper, settings or {}, reference or {}, shared or {}, home)
    if rule:
        _add(_methods, id, entry, "method", same=lambda old: old == entry)
    else:
        _open[id] = True

    def register(cls: type[T]) -> type[T]:
        if rule:
            raise UserError(f"method {id!r}: expected no class below a declaration that names its rule")
        base = sys.modules.get("fairflare.trainers.base")  # None: not yet imported, so that nothing derives from it
        of_trainer = base is not None and isinstance(cls, type) and issubclass(cls, base.Trainer)
        found = dataclasses.replace(entry, rule="fedavg", trainer=id) if of_trainer else entry
        _part("trainer" if of_trainer else "rule", id)(cls)
        _add(_methods, id, found, "method", same=lambda old: old == found)
        _open.pop(id, None)
        return cls

    return register


def _part(kind: str, id: str) -> Callable[[type[T]], type[T]]:
    def register(cls: type[T]) -> type[T]:
        _check_part(kind, id, cls)
        _add(_parts[kind], id, cls, kind, same=lambda old: _source(old) == _source(cls))
        return cls

    return register


selector, trainer, probe, rule, server_optimizer = (partial(_part, kind) for kind in BASES)


def methods() -> dict[str, Method]:
    """Every method by id, sorted."""
    _discover()
    return dict(sorted(_methods.items()))


def home(id: str) -> str:
    return get_method(id).home


def parts(kind: str) -> dict[str, type]:
    """Every part of a kind (a key of ``BASES``) by id, sorted."""
    _discover()
    return dict(sorted(_parts[kind].items()))


def get_method(id: str) -> Method:
    """The method ``id``; raises UserError that lists the known ones."""
    if not _import_home("method", id):
        return _get(methods(), id, "method")
    _check_once(id)
    return _methods[id]


def get_part(kind: str, id: str) -> type:
    """The part ``id`` of a kind; raises UserError that lists the known ones."""
    return _parts[kind][id] if _import_home(kind, id) else _get(parts(kind), id, kind)


get_rule: Callable[[str], type[Rule]] = partial(get_part, "rule")
get_trainer: Callable[[str], type[Trainer]] = partial(get_part, "trainer")
get_probe: Callable[[str], type[Probe]] = partial(get_part, "probe")
trainers: Callable[[], dict[str, type[Trainer]]] = partial(parts, "trainer")
probes: Callable[[], dict[str, type[Probe]]] = partial(parts, "probe")


def parts_of(entry: Method) -> tuple[type[Any], ...]:
    """The classes of a method's rule, trainer and probes."""
    return (get_rule(entry.rule), get_trainer(entry.trainer), *map(get_probe, probes_of(entry)))


def probes_of(entry: Method, trainer: str | None = None) -> tuple[str, ...]:
    """Ids of the probes of a method, and of those that its trainer's server half reads."""
    more = get_trainer(entry.trainer if trainer is None else trainer).probes
    return tuple(dict.fromkeys((*entry.probes, *more)))


def parameters(cls: type) -> dict[str, Any]:
    """Name -> default of a part's parameters (the fields of its dataclass)."""
    made = {f.name: f.default_factory for f in dataclasses.fields(cls) if f.default_factory is not dataclasses.MISSING}
    return {f.name: made[f.name]() if f.name in made else f.default for f in dataclasses.fields(cls)}


def owners(
    entry: Method, trainer: str | None = None, selector: str | None = None, server_optimizer: str | None = None
) -> dict[str, type]:
    """Owner of settings -> its class, for a method's parts or the others that are chosen by id in their place."""
    given: dict[str, Any] = {"trainer": trainer, "selector": selector, "server_optimizer": server_optimizer}
    chosen = dataclasses.replace(entry, **{kind: id for kind, id in given.items() if id is not None})
    return _owners(chosen, get_part)


def _owners(entry: Method, get: Callable[[str, str], Any]) -> dict[str, type]:
    """``owners`` of the method's own parts, as ``get`` finds them by kind and id."""
    trainer = get("trainer", entry.trainer)
    return {
        "rule": get("rule", entry.rule),
        "trainer": trainer,
        **{f"probe.{id}": get("probe", id) for id in (*entry.probes, *trainer.probes)},
        "select": get("selector", entry.selector),
        "server": get("server optimizer", entry.server_optimizer),
    }


def _check_id(kind: str, id: str) -> None:
    if not isinstance(id, str) or not ID.fullmatch(id):
        raise UserError(f"{kind} {validation.shown(id)}: expected an id of letters, digits, - and _")


def _check_part(kind: str, id: str, cls: type) -> None:
    """Raise UserError unless ``cls`` is a part that every command can describe, set and build."""
    _check_id(kind, id)
    module, name = BASES[kind]
    base = getattr(importlib.import_module(f"fairflare.{module}"), name)
    if not isinstance(cls, type) or not issubclass(cls, base) or inspect.isabstract(cls):
        raise UserError(f"{kind} {id!r}: expected a class derived from {name} with all of its methods")
    if not dataclasses.is_dataclass(cls):
        raise UserError(f"{kind} {id!r}: expected a frozen dataclass of parameters")
    try:
        hints = validation.hints(cls)
    except Exception as error:  # whatever an annotation's evaluation raises
        raise UserError(f"{kind} {id!r}: {type(error).__name__}: {error}") from None
    for key, default in parameters(cls).items():
        if default is dataclasses.MISSING or not validation.supported(hints[key]):
            raise UserError(f"{kind} {id!r}: {key}: expected a default, and a type that JSON has")
        validation.exact(cls, key, default)


def _source(cls: type) -> tuple[str | None, str]:
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None), cls.__qualname__


def _add(table: dict[str, T], id: str, entry: T, kind: str, same: Callable[[T], bool]) -> None:
    if id in table and not same(table[id]):
        raise ValueError(f"{kind} {id!r} is registered twice")
    table[id] = entry


def _get(table: Mapping[str, T], id: str, kind: str) -> T:
    if id not in table:
        raise UserError(plugins.absent(kind, id) or unlisted(kind, id, sorted(table)))
    return table[id]


def words_for(kind: str) -> tuple[str, ...]:
    """The functions by which a file may declare a part of a kind, or a method; a method's may register its rule or
    trainer."""
    word = kind.replace(" ", "_")
    return (word, "method") if kind in ("rule", "trainer") else (word,)


def _import_home(kind: str, id: str) -> bool:
    """Import the one file of the package that declares a part or method; False where everything has to be imported."""
    homes = (plugins.declared_in(plugins.PART, plugins.ROOMS, word, id) for word in words_for(kind))
    home = next(filter(None, homes), None)
    if home is not None:
        importlib.import_module(home)
    return home is not None and id in (_methods if kind == "method" else _parts[kind])


def _discover() -> None:
    names = plugins.load((_methods, exchanges, _open, *_parts.values()), _refuse_open)
    for id in list(_methods):
        _check_once(id, *names[:1])


def _check_once(id: str, *names: str) -> None:
    """Check the method ``id`` together with its parts, unless that was done; ``names`` begin a message."""
    if id in _whole:
        return
    try:
        _check_method(_methods[id])
    except UserError as error:
        home = _methods.pop(id).home
        for kind in ("rule", "trainer"):  # the class below the declaration
            if id in _parts[kind] and _parts[kind][id].__module__ == home:
                del _parts[kind][id]
        raise UserError(": ".join((*names, f"method {id!r}", str(error)))) from None
    _whole.add(id)


def _refuse_open() -> None:
    """Raise UserError where a method was declared without a rule and no class stands below the declaration."""
    if _open:
        id = sorted(_open)[0]
        _open.clear()
        raise UserError(f"method {id!r}: expected rule=ID, or a rule's class below the declaration")


def _check_method(entry: Method) -> None:
    """Raise UserError unless the method's parts exist and its settings are theirs or, asked for, the training's."""

    def found_part(kind: str, id: str) -> type[Any]:
        _import_home(kind, id)
        return _get(_parts[kind], id, kind)

    found = _owners(entry, found_part)
    own, asked = Owners(found, entry.shared), Owners({**found, "train": Training}, entry.shared)
    for name, targets in entry.shared.items():
        if not isinstance(name, str) or not ID.fullmatch(name) or not isinstance(targets, tuple) or not targets:
            raise UserError(f"shared {validation.shown(name)}: expected a name, and a tuple of full names of settings")
        for target in targets:
            if target not in own.full:
                raise UserError(f"shared {name!r}: unknown key {validation.shown(target)}")
    for owners, values in ((own, entry.settings), (asked, entry.reference)):
        for full, given in owners.resolved(values).items():
            owners.checked(full, given)
