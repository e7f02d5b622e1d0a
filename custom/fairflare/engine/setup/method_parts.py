# SPDX-License-Identifier: Apache-2.0
"""The parts of a run by name, from their settings: those of a method, what they need, and the step after the rounds."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fairflare.aggregators.base import Rule
from fairflare.core import registry, validation
from fairflare.core.errors import UserError
from fairflare.core.registry import Method
from fairflare.core.settings import PROBE, Given, Owners, bare, exactly_the_keys, owned, whole
from fairflare.core.types import Offer, Training
from fairflare.participation import Selector
from fairflare.probes.base import Probe
from fairflare.server_optimizers.base import ServerOptimizer
from fairflare.trainers.base import Trainer

if TYPE_CHECKING:
    from fairflare.engine.after.base import AfterStep

T = TypeVar("T")
PART_KEYS = ("trainer", "selector", "server_optimizer")
"""The parts of a method that a user may replace."""
NO_STEP = "none"
STEP_CLASSES = {
    "recalibrate": ("fairflare.engine.after.recalibrate", "Recalibrate"),
    "shares": ("fairflare.engine.after.recalibrate", "Shares"),
    "conformal": ("fairflare.engine.after.conformal", "Conformal"),
}
"""Step -> its module, by a name that no reader of imports follows (a job carries its own step alone), and its class."""
STEPS = (NO_STEP, *STEP_CLASSES)


@dataclass(frozen=True)
class MethodParts:
    """The objects that a method's declaration names, with their settings, and the owners of these in their order."""

    rule: Rule
    trainer: Trainer
    probes: tuple[Probe, ...]
    selector: Selector
    server_optimizer: ServerOptimizer
    owners: tuple[str, ...]

    @classmethod
    def of(cls, made: Mapping[str, Any]) -> MethodParts:
        """From owner -> part: "rule", "trainer", "probe.ID", "select" and "server"."""
        probes = tuple(one for owner, one in made.items() if owner.startswith(f"{PROBE}."))
        return cls(made["rule"], made["trainer"], probes, made["select"], made["server"], tuple(made))

    def by_owner(self) -> dict[str, Any]:
        parts = (self.rule, self.trainer, *self.probes, self.selector, self.server_optimizer)
        return dict(zip(self.owners, parts, strict=True))


def default_parts(method: str | Method, values: Mapping[str, Any] | None = None) -> MethodParts:
    """A method's parts with its own defaults.

    Args:
        values: settings that differ, by any name that works, see ``core.settings``.

    Raises:
        UserError: there is no such method or setting, or a value does not fit.
    """
    entry = registry.get_method(method) if isinstance(method, str) else method
    owners = Owners(registry.owners(entry), entry.shared)
    found = defaults_of(entry, owners) | owners.resolved(values or {})
    return MethodParts.of({owner: part(cls, owners.values(owner, found)) for owner, cls in owners.classes.items()})


def method_parts(entry: Method, settings: Mapping[str, Any], **ids: str) -> MethodParts:
    """A method's parts from every one of their settings by full name, as a file has them.

    ``ids`` are those of trainer, selector and server_optimizer, where they are not the method's own.

    Raises:
        UserError: a setting is missing, unknown or unfit.
    """
    owners = Owners(registry.owners(entry, **ids))
    exactly_the_keys("settings", settings, owners.full)
    values = {full: validation.exact(cls, bare(full), settings[full], full) for full, cls in owners.full.items()}
    return MethodParts.of({owner: part(cls, owned(values, owner)) for owner, cls in owners.classes.items()})


def defaults_of(entry: Method, owners: Owners) -> dict[str, Given]:
    """Full name -> the method's own default, where ``owners`` has such a setting.

    A shared quantity that the method gives no value has the default of the first part that it is declared for.
    """
    first = {name: registry.parameters(owners.full[full[0]])[bare(full[0])] for name, full in owners.shared.items()}
    equal = {full: Given(name, first[name]) for name, targets in owners.shared.items() for full in targets}
    return equal | declared(entry, owners)


def declared(entry: Method, owners: Owners) -> dict[str, Given]:
    """Full name -> what the method itself says, where ``owners`` has such a setting."""
    return _declared(Owners(registry.owners(entry), entry.shared), entry.settings, owners)


def reference_of(entry: Method, owners: Owners) -> dict[str, Given]:
    """Full name -> what the method's reference variant implies, where ``owners`` has such a setting."""
    declared = Owners({**registry.owners(entry), "train": Training}, entry.shared)
    return _declared(declared, entry.reference, owners)


def part(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of a part, of Training or of a step, with checked ``values``; UserError where they do not fit."""
    try:
        return cls(**values)
    except ValueError as error:
        raise UserError(str(error)) from None


def checked_part(cls: type[T] | None, what: str, values: Mapping[str, Any]) -> Any:
    """``part`` of the JSON ``values`` of all its fields, None of none; UserError, which names ``what``, for others."""
    return part(cls, whole(cls, what, values)) if cls else exactly_the_keys(what, values, ())


def _declared(declared: Owners, values: Mapping[str, Any], owners: Owners) -> dict[str, Given]:
    return {full: given for full, given in declared.resolved(values).items() if full in owners.full}


def step_class(name: str) -> type[AfterStep] | None:
    """The class of a step; None for "none"."""
    if name not in STEP_CLASSES:
        return None
    module, step = STEP_CLASSES[name]
    found: type[AfterStep] = getattr(importlib.import_module(module), step)
    return found


LACKING = [Offer("", ("accuracy", "dice", "loss"), "accuracy", *of) for of in ((("a", "b"), False), ((), True))]
"""A task without classes, and one without groups: what methods say that they miss is what they need."""


def effort(entry: Method) -> dict[str, Any]:
    """Passes over a site's training data per round at one local epoch, and exchanges of models per round."""
    _, *parts = registry.parts_of(entry)
    passes = {way: sum(getattr(part.cost, way) for part in parts) for way in ("forward", "backward")}
    rule = registry.get_rule(entry.rule)
    several, second = rule.anchors is not Rule.anchors, rule.anchor is not Rule.anchor
    return {"passes": passes, "exchanges": "several" if several else 2 if second else 1}


def received_by(entry: Method) -> list[dict[str, str]]:
    """The tensors that sites are sent beside the model."""
    made = default_parts(entry)
    parts: tuple[Trainer | Probe, ...] = (made.trainer, *made.probes)
    return [{"tensors": one.name, "meaning": one.meaning} for part in parts for one in part.receives]


def needs_of(entry: Method) -> list[str]:
    """What a method cannot do without, in sentences: of the data, of the task, of the network and of the training."""
    made = default_parts(entry)
    pieces: tuple[Rule | Trainer | Probe, ...] = (made.rule, made.trainer, *made.probes)
    found = [f"{need.split}: {need.least} examples: {need.reason}" for piece in pieces for need in piece.needs]
    found += [text for offer in LACKING for piece in pieces if (text := piece.missing(offer))]
    found += [made.trainer.unsuited_to(Training(optimizer="adam")), _of_network(made.trainer)]
    return list(dict.fromkeys(filter(None, found)))


def _of_network(trainer: Trainer) -> str:
    """What is wrong with a network of a single layer."""
    plain = torch.nn.Linear(2, 2)
    try:
        trainer.personal_entries(plain.state_dict())
    except UserError as error:
        return str(error)
    return trainer.unsuited(plain)
