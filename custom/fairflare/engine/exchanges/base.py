# SPDX-License-Identifier: Apache-2.0
"""An exchange: what the server asks of the sites beside the rounds, as one object that is found by its name.

The kernels (``engine.site``, ``engine.loop``) know no exchange by name. A job carries the exchanges that its
configuration names. A plugin registers its own with ``@exchange("id")``, and a run names it in ``exchanges``.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from fairflare.core import registry
from fairflare.core.errors import EgressRefused, UserError
from fairflare.core.schema import TASKS, Answer, Declared, Instruction, SiteModels, Transport
from fairflare.core.types import Cost, Number, Round, StateDict
from fairflare.core.validation import unlisted
from fairflare.engine.checks import Rejection, checked_scalars, first_good, left_out, silent
from fairflare.privacy.egress import FieldCheck, check_scalars

if TYPE_CHECKING:
    from fairflare.engine.after.base import AfterStep
    from fairflare.engine.combination import Aggregation
    from fairflare.engine.setup.run_config import RunConfig
    from fairflare.engine.setup.site_parts import Parts
    from fairflare.engine.site import Site
    from fairflare.tasks.base import Task

Work = Callable[["Site", Instruction], Answer]
"""What a site does with an instruction; raises EgressRefused where nothing may leave."""
HOME = "fairflare.engine.exchanges"
"""Where the package's own lie, a module for each: by a name that no reader of imports follows."""
OWN = ("sums", "clinical", "after", "benefit", "decide")
"""The package's own, in the order in which the server asks after the last round; a run names "decide" itself."""


class AtSite(Protocol):
    """A site's half. ``tasks``: name of an instruction's task -> what answers it."""

    @property
    def tasks(self) -> Mapping[str, Work]: ...


@dataclass(frozen=True)
class Ended:
    """A federation after its last round, as an exchange finds it.

    Attributes:
        models: site -> the model that it uses, for the sites that are there.
        first: the initial model; None: this machine makes another one than the run began with.
        round: the last one.
        declared: site -> training examples that it declared before the first round.
    """

    transport: Transport
    aggregation: Aggregation
    models: SiteModels
    first: StateDict | None
    round: Round
    declared: Declared


class AtServer(Protocol):
    """The server's half of what is asked after the last round, with the event under which it is logged."""

    event: ClassVar[str]
    needs_first: ClassVar[bool]
    """Whether it sends the initial model."""
    of_training_sites: ClassVar[bool]
    """Whether a site that trains nothing is left out."""

    def run(self, ended: Ended) -> tuple[dict[str, Any], list[Rejection]]:
        """What the log says of it, as JSON values, and the sites of which nothing counts."""


@dataclass(frozen=True)
class OfRun:
    """What both halves of an exchange are made from.

    Attributes:
        site: its name; empty at the server.
        min_count: the fewest patients whose numbers leave the site; None: none do.
        step: what is done after the last round, see ``engine.after``; None: nothing.
        memory: the site's memory file, beside which its other files lie; None: nothing is kept.
    """

    config: RunConfig
    parts: Parts
    site: str = ""
    min_count: int | None = None
    memory: Path | None = None
    step: AfterStep | None = None

    @property
    def secure(self) -> bool:
        """Whether the run has secure sums."""
        return self.config.secure_sum != "none"


class Exchange(ABC):
    """One exchange, or several that belong together: a frozen dataclass of parameters with defaults.

    Attributes:
        tasks: what instructions of it ask (``Instruction.task``).
        fields: the fields of an answer that it fills, see ``core.schema``; a plugin's are ("reports",).
        cost: of one question, in passes over the site's calibration, test or training cases.
    """

    tasks: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ("reports",)
    cost: ClassVar[Cost] = Cost(forward=1)

    @abstractmethod
    def at_site(self, run: OfRun) -> AtSite:
        """The site's half; called once per run."""

    def at_server(self, run: OfRun) -> AtServer | None:
        """The server's half of what is asked after the last round; None: it asks nothing of its own."""
        return None

    def numbers(self, run: OfRun) -> tuple[Number, ...]:
        """The numbers that may leave a site in ``fields``, with their ranges."""
        return ()

    def sealed(self, run: OfRun) -> Mapping[str, Mapping[str, Collection[int]]]:
        """Task -> name -> how many numbers a site may seal under it, in a run with secure sums."""
        return {}

    def leaves(self, run: OfRun) -> Mapping[str, FieldCheck]:
        """Field -> the check of its value before it leaves a site."""
        known = self.numbers(run)
        return {name: lambda value, task: check_scalars(value, known) for name in self.fields}


def ask(
    ended: Ended, task: str, known: Sequence[Number], orders: Mapping[str, float] | None = None
) -> tuple[dict[str, dict[str, float]], list[Rejection]]:
    """Ask every site that is there; site -> its numbers within the ranges of ``known``, and the rejections."""
    asked = {site: Instruction(task, ended.round, model, orders or {}) for site, model in ended.models.items()}
    answers = list(ended.transport.exchange(asked))
    found, refused, _ = first_good(answers, lambda one: checked_scalars(one.reports, known), ended.round.number)
    return {site: found[site] for site in sorted(found)}, left_out(refused, found) + silent(asked, answers)


def refusing(check: Callable[[Any], object], what: str) -> FieldCheck:
    """``check``, whose ValueError becomes EgressRefused."""

    def refuse(value: Any, task: str) -> None:
        try:
            check(value)
        except ValueError as error:
            raise EgressRefused(f"{what}: {error}") from None

    return refuse


E = TypeVar("E", bound=type[Exchange])
_plugins: dict[str, type[Exchange]] = registry.exchanges


def exchange(id: str) -> Callable[[E], E]:
    """Register a plugin's exchange; UserError for a name, or a task, that is the package's or another's."""

    def register(cls: E) -> E:
        taken = {task for name, other in _plugins.items() if name != id for task in other.tasks} | set(TASKS)
        if not registry.ID.fullmatch(id) or id in OWN or (id in _plugins and _plugins[id].__module__ != cls.__module__):
            raise UserError(f"exchange {id!r}: expected a name of its own of letters, digits, - and _")
        if not cls.tasks or taken & set(cls.tasks):
            raise UserError(f"exchange {id!r}: expected tasks of its own, got {sorted(taken & set(cls.tasks))}")
        _plugins[id] = cls
        return cls

    return register


def find(name: str) -> Exchange:
    """The exchange ``name``; raises UserError that lists the known ones."""
    if name in OWN:
        found: Exchange = importlib.import_module(f"{HOME}.{name}").EXCHANGE
        return found
    if name not in _plugins:
        registry.methods()  # imports every plugin
    if name not in _plugins:
        raise UserError(unlisted("exchange", name, sorted(_plugins)))
    return _plugins[name]()


def named(config: RunConfig, task: Task) -> dict[str, Exchange]:
    """Name -> exchange of those that a run's configuration and task name, in the order in which they are asked."""
    return {name: find(name) for name in names(config, task)}


def names(config: RunConfig, task: Task) -> list[str]:
    """Names of the exchanges beside the rounds that a run has."""
    kind = task.kind
    asked = {
        "sums": config.secure_sum != "none",
        "clinical": config.fold != "all" and (kind.has_times or (kind.has_classes and len(task.classes) > 1)),
        "after": config.after != "none",
        "benefit": config.solo,
    }
    return [*(name for name in OWN if asked.get(name)), *config.exchanges]


def modules(config: RunConfig, task: Task) -> list[str]:
    """The modules of a run's exchanges, which no import statement names."""
    return [type(one).__module__ for one in named(config, task).values()]
