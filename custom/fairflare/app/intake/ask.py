# SPDX-License-Identifier: Apache-2.0
"""Two ways to read the same data: somebody at a terminal is asked, a script gets one line with both and their flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairflare.core.errors import UserError


@dataclass(frozen=True)
class Reading:
    """One way to read the data: in words, and the flags of ``fairflare init`` that decide for it."""

    words: str
    flags: str


Ask = Callable[[str, Sequence[Reading]], int]
"""What is unclear and the readings -> the number of the one that holds."""


def refuse(what: str, readings: Sequence[Reading]) -> int:
    """Raise UserError with all readings and what decides for each, as nobody is there to choose."""
    ways = "; or ".join(f"{one.words} ({one.flags})" for one in readings)
    raise UserError(f"init: {what}: either {ways}")
