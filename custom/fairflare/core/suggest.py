# SPDX-License-Identifier: Apache-2.0
"""Names in messages: their order ("site-2" before "site-10"), the first few of many, and what a wrong one may mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairflare.core import validation

ALIKE = 0.7
"""How alike two names are, 0 to 1 as difflib measures, from which on one is offered for the other."""
MOST = 3
"""Names that are offered."""
OTHER_WORDS: Mapping[str, str] = {
    "learning_rate": "lr",
    "num_rounds": "rounds",
    "n_rounds": "rounds",
    "local_epochs": "epochs",
    "num_epochs": "epochs",
    "bs": "batch_size",
    "batchsize": "batch_size",
    "wd": "weight_decay",
    "optim": "optimizer",
    "temperature": "tau",
    "n_sites": "sites",
    "num_clients": "sites",
}
"""What other packages call it -> what it is called here."""


def unlisted(what: str, name: Any, known: Iterable[str], instead: str = "") -> str:
    """The message for ``name``, which is not one of the ``known``: what is close to it, or else all that there are.

    Args:
        what: the kind of name, e.g. "key" or "task:"; stands between "unknown" and the name.
        name: as it was given, of whatever type.
        known: the names that exist, at least one; listed in this order where none is close.
        instead: what is said in place of a long list.

    Returns:
        "unknown key 'roundz'; did you mean rounds?" or "unknown key 'x'; known: lr, rounds".
    """
    names = list(known)
    begin = f"unknown {what} {validation.shown(name)}"
    if found := close(name, names):
        return f"{begin}; did you mean {' or '.join(found)}?"
    return f"{begin}; {instead or 'known: ' + ', '.join(names)}"


def close(name: Any, known: Iterable[str]) -> list[str]:
    """At most ``MOST`` of the ``known`` names that ``name`` may stand for, the closest first; [] where none is."""
    if not isinstance(name, str) or not 2 <= len(name) <= 100:
        return []
    names = list(known)
    owner, dot, own = name.lower().rpartition(".")
    usual = f"{owner}{dot}{OTHER_WORDS.get(own, own)}"
    if usual in names:
        return [usual]
    lower = {one.lower(): one for one in reversed(names)}
    found = [lower[one] for one in difflib.get_close_matches(name.lower(), lower, n=MOST, cutoff=ALIKE)]
    return found or sorted(one for one in names if len(own) > 2 and one.rpartition(".")[2] == own)[:MOST]


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which "site-2" comes before "site-10"."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part) for part in parts]


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once, in natural order; names that differ only in leading zeros keep a fixed order too."""
    return sorted(set(names), key=lambda name: (natural(name), name))


def some(names: Sequence[str], most: int = 5) -> str:
    """The first ``most`` names, and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
