# SPDX-License-Identifier: Apache-2.0
"""What somebody may have meant who wrote a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
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
