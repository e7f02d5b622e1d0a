# SPDX-License-Identifier: Apache-2.0
"""The parts of a run by name, from their settings: those of a method, and the step after the rounds."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fairflare.aggregators.base import Rule
from fairflare.core import registry, validation
from fairflare.core.errors import UserError
from fairflare.core.registry import Method
from fairflare.core.settings import PROBE, Owners, bare, exactly_the_keys, owned, whole
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


def part(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of a part, of ``Training`` or of a step, with checked ``values``; UserError where they do not fit."""
    try:
        return cls(**values)
    except ValueError as error:
        raise UserError(str(error)) from None


def checked_part(cls: type[T] | None, what: str, values: Mapping[str, Any]) -> Any:
    """``part`` of the JSON ``values`` of all its fields, None of none; UserError, which names ``what``, for others."""
    return part(cls, whole(cls, what, values)) if cls else exactly_the_keys(what, values, ())


def step_class(name: str) -> type[AfterStep] | None:
    """The class of a step; None for "none"."""
    if name not in STEP_CLASSES:
        return None
    module, step = STEP_CLASSES[name]
    found: type[AfterStep] = getattr(importlib.import_module(module), step)
    return found
