# SPDX-License-Identifier: Apache-2.0
"""Secure sums: sites learn the sum of their numbers, the server the sum of their updates, and nobody anyone's own.

``privacy.pairs`` holds the keys, ``privacy.masks`` hides numbers and updates behind them, and ``privacy.ckks`` encrypts
the numbers instead. What a site agrees to take part in is decided here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LEAST = 3
"""Sites in a sum: of two each would learn the other's number by subtracting its own."""
ATTEMPTS = 3
"""Sums that a site takes part in per round, each with fewer sites than the one before."""
Sealed = Mapping[str, Any]
"""What goes into a message: short texts, or bytes."""


class SumRefused(Exception):
    """A sum that a site does not take part in; the text names sites and reasons, never a number."""


@dataclass(frozen=True)
class SumOrder:
    """What the server asks a site to take part in.

    Attributes:
        round: number of the round.
        attempt: 0, and 1 more each time that a site failed to answer and the rest were asked again.
        statements: site -> what it said of itself in preflight, see ``PairwiseKeys.statement``.
    """

    round: int
    attempt: int
    statements: Mapping[str, Sealed]

    @property
    def roster(self) -> tuple[str, ...]:
        """The sites whose numbers are summed, sorted."""
        return tuple(sorted(self.statements))

    def digest(self, context: str) -> bytes:
        """SHA-256 that is the same at two sites exactly when they were asked for the same sum of the same run."""
        content = [context, self.round, self.attempt, self.roster]
        return hashlib.sha256(json.dumps(content).encode()).digest()


class NumberScheme(Protocol):
    """A site's half of a scheme that sums numbers."""

    def seal(self, values: Sequence[float], order: SumOrder) -> Sealed:
        """``values`` (finite, >= 0) so that only their sum over the roster can be read; raises SumRefused."""

    def open(self, total: Any, terms: int) -> list[float]:
        """The ``terms`` sums in what the server made of everyone's; raises SumRefused when it does not hold them."""


class Identity(Protocol):
    """How a site proves that its words are its own; FLARE's certificates, or nothing."""

    def sign(self, content: bytes) -> dict[str, str]:
        """A proof that this site said ``content``."""

    def vouches(self, site: str, content: bytes, proof: Sealed) -> bool:
        """Whether ``proof`` shows that ``site`` said ``content``."""


class NoIdentity:
    """Takes everyone at their word: within one process, and in the simulator, whose sites have no certificates."""

    def sign(self, content: bytes) -> dict[str, str]:
        """No proof."""
        return {}

    def vouches(self, site: str, content: bytes, proof: Sealed) -> bool:
        """Always."""
        return True


class Rosters:
    """Which sums a site has taken part in: two sums that differ by one site give that site's number away.

    A second sum in a round is for the case that a site fell silent, so it must have fewer sites than the first.

    Args:
        site: its name.
        least: sites that a sum must have, at least ``LEAST``.
    """

    def __init__(self, site: str, least: int = LEAST) -> None:
        self._site, self._least = site, max(least, LEAST)
        self.last: SumOrder | None = None

    def admit(self, order: SumOrder) -> None:
        """Take note of a sum to take part in; raises SumRefused."""
        if len(order.roster) < self._least:
            raise SumRefused(f"a sum of {len(order.roster)} sites, {self._least} needed")
        if self._site not in order.roster:
            raise SumRefused("a sum without this site")
        if not 0 <= order.attempt < ATTEMPTS:
            raise SumRefused("too many sums in one round")
        if self.last is not None and not _follows(self.last, order):
            raise SumRefused("a second sum of a round that is not of fewer sites")
        self.last = order


def _follows(last: SumOrder, order: SumOrder) -> bool:
    if order.round != last.round:
        return order.round > last.round
    if order.attempt == last.attempt:
        return order.statements == last.statements
    return order.attempt > last.attempt and set(order.roster) < set(last.roster)
