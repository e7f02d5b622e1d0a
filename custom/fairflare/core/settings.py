# SPDX-License-Identifier: Apache-2.0
"""Settings have owners: ``rule.q``, ``trainer.mu``, ``probe.sharpness.rho_max``, ``train.lr``, ``task.alpha``.

Every setting has one full name, its owner's and its own. A bare name ("q") works while exactly one owner has it. A
quantity that several parts share is declared once by the method under a name of its own, which sets it for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fairflare.core import validation
from fairflare.core.errors import UserError
from fairflare.core.validation import shown, unlisted

PROBE = "probe"
"""The owner whose settings are divided once more, by probe."""
Shared = Mapping[str, tuple[str, ...]]
"""Name of a shared quantity -> full names of the settings that it sets."""


def parse_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """("q=2", "beta=.5") -> {"q": "2", "beta": ".5"}; raises UserError on anything else."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise UserError(f"--set: expected KEY=VALUE, got {shown(pair)}")
        if key in values:
            raise UserError(f"--set: {key[:80]} is given twice")
        values[key] = value
    return values


@dataclasses.dataclass(frozen=True)
class Given:
    """A value and the key under which it was given, for messages."""

    key: str
    value: Any


class Owners:
    """Who owns which setting.

    Args:
        classes: owner -> the dataclass whose fields are its settings, e.g. "probe.sharpness" -> Sharpness.
        shared: what the method declares; targets that no owner has are left out.
        run: dataclass and names of the run's own settings, which have the owner "run".
    """

    def __init__(
        self, classes: Mapping[str, type], shared: Shared | None = None, run: tuple[type, Iterable[str]] | None = None
    ) -> None:
        self.classes = classes
        fields = [(owner, cls, field.name) for owner, cls in classes.items() for field in dataclasses.fields(cls)]
        self.full: dict[str, type] = {f"{owner}.{name}": cls for owner, cls, name in fields}
        if run:
            self.full |= {f"run.{name}": run[0] for name in run[1]}
        present = {name: tuple(t for t in targets if t in self.full) for name, targets in (shared or {}).items()}
        self.shared = {name: targets for name, targets in present.items() if targets}

    def names(self) -> dict[str, tuple[str, ...]]:
        """Shortest accepted name -> full names of all that it sets, in the owners' order."""
        found: dict[str, tuple[str, ...]] = {}
        for full in self.full:
            of = [name for name, targets in self.shared.items() if full in targets]
            short = next((name for name in [*of, bare(full)] if full in self._targets(name)), full)
            found.setdefault(short, self._targets(short) or (full,))
        return found

    def resolve(self, key: str) -> tuple[str, ...]:
        """Full names of what ``key`` (full, shared or bare) sets; UserError, with candidates, for none or several."""
        if targets := self._targets(key):
            return targets
        if found := self.having(key):
            raise UserError(f"{key}: belongs to several; expected one of {', '.join(found)}")
        owner = owner_of(key)
        known = [name for name in self.full if owner_of(name) == owner] or self.names()
        raise UserError(unlisted("key", key, sorted(known)))

    def resolved(self, values: Mapping[str, Any]) -> dict[str, Given]:
        """Full name -> what was given for it; UserError: a key is unknown or ambiguous, or two of them set the same."""
        found: dict[str, Given] = {}
        for key, value in values.items():
            for full in self.resolve(key):
                if full in found:
                    raise UserError(f"{full}: is given twice, as {found[full].key} and as {key}")
                found[full] = Given(key, value)
        return found

    def spread(self, values: Mapping[str, Any]) -> dict[str, Given]:
        """Full name -> the value that a preset gives it: a bare name stands for everyone who has it, if anyone does."""
        found = {full: Given(key, value) for key, value in values.items() for full in self.having(key)}
        return found | {key: Given(key, value) for key, value in values.items() if key in self.full}

    def having(self, name: str) -> tuple[str, ...]:
        """Full names of the settings that are called ``name``."""
        return tuple(full for full in self.full if bare(full) == name)

    def checked(self, full: str, given: Given) -> Any:
        """The value as the setting's owner declares it; raises UserError that names the key as it was given."""
        return validation.parsed(self.full[full], bare(full), given.value, label=given.key)

    def values(self, owner: str, given: Mapping[str, Given]) -> dict[str, Any]:
        """Own name -> checked value of what was ``given`` for one owner, by full name; raises as ``checked``."""
        return {bare(full): self.checked(full, one) for full, one in given.items() if owner_of(full) == owner}

    def _targets(self, key: str) -> tuple[str, ...]:
        """What ``key`` sets; empty where it is unknown or ambiguous."""
        if key in self.full:
            return (key,)
        having, targets = self.having(key), self.shared.get(key, ())
        if targets and set(having) <= set(targets):
            return targets
        return having if len(having) == 1 else ()


def bare(full: str) -> str:
    """The setting's own name: "rule.q" -> "q"."""
    return full.rpartition(".")[2]


def owner_of(full: str) -> str:
    """The setting's owner: "probe.sharpness.rho_max" -> "probe.sharpness"."""
    return full.rpartition(".")[0]


def owned(settings: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Own name -> value of what ``owner`` owns among ``settings``, which have full names."""
    return {bare(full): value for full, value in settings.items() if owner_of(full) == owner}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by full name as ``config.json`` has them, owner by owner: {"rule": {"q": 2.0}}.

    Names with dots are no keys of a file: FLARE's commands read a job's JSON as HOCON, where a dot divides.
    """
    found: dict[str, Any] = {}
    for full, value in settings.items():
        *owners, name = full.split(".")
        place = found
        for owner in owners:
            place = place.setdefault(owner, {})
        place[name] = value
    return found


def flat(settings: Any) -> dict[str, Any]:
    """``nested`` undone, from whoever the file comes; UserError for other content, or a name with a dot."""
    found: dict[str, Any] = {}
    for owner, values in _entries("settings", settings):
        probes = _entries("settings: probe", values) if owner == PROBE else [("", values)]
        for probe, own in probes:
            of = f"{owner}.{probe}" if probe else owner
            found |= {f"{of}.{name}": value for name, value in _entries(f"settings: {of}", own)}
    return found


def _entries(what: str, values: Any) -> list[tuple[str, Any]]:
    validation.expected(what, isinstance(values, Mapping), "names and values", values)
    for name in values:
        validation.expected(what, isinstance(name, str) and "." not in name and name != "", "names without dots", name)
    return list(values.items())


def exactly_the_keys(what: str, values: Collection[str], known: Collection[str]) -> None:
    """Raise UserError, which names the first, where a known key is missing or one is unknown."""
    validation.expected(what, isinstance(values, Collection), "keys and values", values)
    if missing := [key for key in known if key not in values]:
        raise UserError(f"{what}: expected a value for {missing[0]!r}, got none")
    if unknown := sorted(set(values) - set(known)):
        raise UserError(f"{what}: {unlisted('key', unknown[0], sorted(known))}")


def whole(cls: type, what: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON ``values`` of all fields of the dataclass ``cls`` and of no others; UserError begins with ``what``."""
    names = [field.name for field in dataclasses.fields(cls)]
    exactly_the_keys(what, values, names)
    return {name: validation.exact(cls, name, values[name]) for name in names}
