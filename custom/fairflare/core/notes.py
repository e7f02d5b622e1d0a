# SPDX-License-Identifier: Apache-2.0
"""What a rule reports of a round beside the weights, described so that logs and reports need not know the rule."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fairflare.core.errors import UserError
from fairflare.core.validation import exact

Per = Literal["round", "site", "group", "layer", "cell"]
Chart = Literal["lines", "map", "table", "none"]
Over = Literal["last", "mean"]
DEPTH: dict[str, int] = {"round": 0, "site": 1, "group": 1, "layer": 2, "cell": 2}
"""How many names lead to one number of a note."""
RESERVED = ("weights",)
"""Names that the round loop gives notes of its own."""


@dataclass(frozen=True)
class Note:
    """One quantity that a rule reports of every round, in ``Outcome.notes`` under ``name``.

    Attributes:
        name: its key, an identifier.
        label: its name in words, for titles and axes.
        unit: of its numbers, as "fraction" or "nats"; empty where they have none.
        per: what a number belongs to: "round" (the note is one number), "site" or "group" (name -> number), "layer"
            (layer -> site -> number) or "cell" (site -> group -> number).
        chart: how a report draws it: "lines" over the rounds, a "table" of the last round, a "map" (layers or groups
            down, sites across), or "none".
        shares: whether the numbers of a round are fractions that sum to 1: over all sites, groups or cells, or within
            each layer. They are drawn against equal shares.
        over: what map and table of a two-fold note show: the "last" round, or the "mean" over a number's rounds.
        mark_above: > 0: a site or group whose median over the rounds exceeds this many times the median of all medians
            is marked; 0 marks none.
    """

    name: str
    label: str
    unit: str = ""
    per: Per = "site"
    chart: Chart = "lines"
    meaning: str = ""
    shares: bool = False
    over: Over = "last"
    mark_above: float = 0.0

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in RESERVED:
            raise ValueError(f"name must be an identifier other than {RESERVED[0]!r}, got {self.name!r}")
        for field, known in (("per", Per), ("chart", Chart), ("over", Over)):
            if getattr(self, field) not in get_args(known):
                raise ValueError(f"{field} must be one of {get_args(known)}, got {getattr(self, field)!r}")
        if not 0 <= self.mark_above < math.inf:
            raise ValueError(f"mark_above must be finite and >= 0, got {self.mark_above!r}")

    def misfit(self, value: Any) -> str:
        """What is wrong with ``value`` as this note, in words; empty when nothing is."""
        return _misfit(value, DEPTH[self.per], self.name)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def depth(self) -> int:
        """How many names lead to one number."""
        return DEPTH[self.per]


def read(declared: Any) -> list[Note]:
    """The notes that a log declares; left out is what ``Note.to_json`` cannot have written, and a name's second."""
    found: dict[str, Note] = {}
    for one in declared if isinstance(declared, list) else ():
        with contextlib.suppress(UserError, AttributeError, KeyError, TypeError, ValueError):
            note = Note(**{key: exact(Note, key, value) for key, value in one.items()})
            found.setdefault(note.name, note)
    return list(found.values())


def numbers(declared: Mapping[str, Any], value: Any) -> dict[str, float]:
    """Path -> number of a note's value, where it is declared per round, site or group: "" or the site or group.

    Args:
        value: what a round's notes hold under its name; anything that does not fit it is left out.
    """
    depth = DEPTH.get(str(declared.get("per")))
    found = {"": value} if depth == 0 else value if depth == 1 and isinstance(value, Mapping) else {}
    return {str(name): float(number) for name, number in found.items() if not _misfit(number, 0, "")}


def _misfit(value: Any, depth: int, path: str) -> str:
    if depth == 0:
        proper = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return "" if proper else f"{path}: expected a finite number, got {str(value)[:40]}"
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        return f"{path}: expected a mapping of names, got {str(value)[:40]}"
    return next((wrong for name, item in value.items() if (wrong := _misfit(item, depth - 1, f"{path}/{name}"))), "")
