# SPDX-License-Identifier: Apache-2.0
"""``check_rule("my-rule")``: the laws of methods on a rule alone, with the probes and the trainer that it needs."""

from __future__ import annotations

from typing import Any

from fairflare.core import registry
from fairflare.core.registry import Method
from fairflare.core.types import Outline, Paper, TensorSpec
from fairflare.testing.example import outline
from fairflare.testing.laws import CHECKS, wanted_scalars_are_reported

PAPER = Paper("", "", "", 0, "")


def check_rule(id: str, **settings: Any) -> None:
    """Run every law on rule ``id``, fed with the numbers of the registered probes and trainers that report them.

    Args:
        id: the rule's.
        settings: parameters of the rule that differ from their defaults.

    Raises:
        AssertionError: a law fails, or no probe and no trainer reports a number that the rule wants.
        UserError: there is no such rule.
    """
    entry = method_around(id, **settings)
    for check in (wanted_scalars_are_reported, *CHECKS):  # first what the other laws cannot do without
        check(entry)


def method_around(id: str, **settings: Any) -> Method:
    """An unregistered method of rule ``id`` alone: the trainer and the probes that report what it wants or uses."""
    rule = registry.get_rule(id)(**settings)
    asked = {*rule.wanted, *rule.useful}
    probes = tuple(name for name, cls in registry.probes().items() if asked & _names(cls(), outline()))
    senders = [name for name, cls in registry.trainers().items() if asked & {_family(one.name) for one in cls.sends}]
    kinds = (senders[0] if senders else "sgd", probes, "all", "none")
    return Method(id, id, "", id, *kinds, PAPER, settings, {})


def _names(probe: Any, outline: Outline) -> set[str]:
    found = {one.name for one in (*probe.scalars(outline), *probe.sends) if not isinstance(one, TensorSpec)}
    return found | {_family(name) for name in found}


def _family(name: str) -> str:
    return name.partition("/")[0]
