# SPDX-License-Identifier: Apache-2.0
"""The order in which names are shown: "site-2" before "site-10". Sums over sites go by plain name order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


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
