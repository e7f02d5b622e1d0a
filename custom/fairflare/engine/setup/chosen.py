# SPDX-License-Identifier: Apache-2.0
"""Which parts a run is put together of: a method's own, and those that the user has chosen in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.registry import Method
from fairflare.core.settings import Given, Owners, owner_of
from fairflare.engine.setup.method_parts import declared, defaults_of

PART_KEYS = ("trainer", "selector", "server_optimizer")
"""The parts of a method that a user may replace."""
RULE = "rule"
"""The one that makes another method of it: the rule's own, with the first one's other parts."""
OWNERS = {"trainer": "trainer", "selector": "select", "server_optimizer": "server"}
"""Kind of part -> the owner of its settings."""


@dataclass(frozen=True)
class Chosen:
    """What was chosen.

    Attributes:
        method: whose rule and probes they are.
        ids: kind of ``PART_KEYS`` -> id.
        lenders: a method that other parts are of -> the owners of settings that it has lent its defaults.
    """

    method: Method
    ids: Mapping[str, str]
    lenders: tuple[tuple[Method, frozenset[str]], ...]

    def defaults(self, owners: Owners) -> dict[str, Given]:
        """Full name -> default, of what the methods say that the parts are of."""
        found = defaults_of(self.method, owners)
        for lender, lent in self.lenders:
            found |= {full: one for full, one in declared(lender, owners).items() if owner_of(full) in lent}
        return found


def chosen_parts(method: str, layers: list[dict[str, Any]]) -> Chosen:
    """The parts of a run of ``method``; the choices are taken out of ``layers``, the last of which wins.

    ``rule=fedheal`` with the method moon is the method fedheal with the trainer moon. As a trainer a method's id will
    do too: its trainer, with the settings that the method gives it.

    Args:
        method: its id.
        layers: settings by any name; "rule", "trainer", "selector" and "server_optimizer", also with "run.", are ids.

    Raises:
        UserError: there is no such method, rule or trainer, or a part is given twice in one layer.
    """
    first = registry.get_method(method)
    rule, given = taken(RULE, layers), {kind: taken(kind, layers) for kind in PART_KEYS}
    home = first if rule in (None, first.rule) else _home(str(rule))
    ids = {kind: getattr(first, kind) if one is None else one for kind, one in given.items()}
    lenders = []
    if home is not first:
        lenders.append((first, frozenset(owner for kind, owner in OWNERS.items() if given[kind] is None)))
    if given["trainer"] is not None and (lender := registry.methods().get(ids["trainer"])):
        if ids["trainer"] not in registry.trainers():
            ids["trainer"] = lender.trainer
        if lender.trainer == ids["trainer"]:
            lenders.append((lender, frozenset({OWNERS["trainer"]})))
    return Chosen(home, ids, tuple(lenders))


def composed_title(method: Method, ids: Mapping[str, str]) -> str:
    """The method's title, with the parts that are not its own: "FedHEAL, trainer moon"."""
    own = [kind for kind in PART_KEYS if ids[kind] == getattr(method, kind)]
    return ", ".join(
        [method.title, *(f"{kind.replace('_', ' ')} {ids[kind]}" for kind in PART_KEYS if kind not in own)]
    )


def _home(rule: str) -> Method:
    """The method that a rule is the rule of: of its own name, or the first that has it."""
    registry.get_rule(rule)
    methods = registry.methods()
    found = [entry for id, entry in methods.items() if entry.rule == rule and id == rule]
    found += [entry for entry in methods.values() if entry.rule == rule]
    if not found:
        raise UserError(f"rule {rule}: expected a rule that a method has")
    return found[0]


def taken(kind: str, layers: list[dict[str, Any]]) -> str | None:
    """Takes the id that was given for a kind of part out of ``layers``; the last one wins, None: none was given."""
    found = None
    for layer in layers:
        keys = [key for key in (kind, f"run.{kind}") if key in layer]
        if len(keys) > 1:
            raise UserError(f"run.{kind}: is given twice, as {keys[0]} and as {keys[1]}")
        found = str(layer.pop(keys[0])) if keys else found
    return found
