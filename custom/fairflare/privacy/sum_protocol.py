# SPDX-License-Identifier: Apache-2.0
"""Secure sums: sites learn the sum of their numbers, the server the sum of their updates, and nobody anyone's own.

``sum_keys`` holds what every two sites share, ``secure_sums`` hides numbers and updates behind it, and
``encrypted_sums`` encrypts the numbers instead. What a site agrees to take part in is decided here.

Which sites of a sum mask each other's updates is a graph that nobody draws alone: all pairs, or a regular one (Bell et
al., CCS 2020, https://doi.org/10.1145/3372297.3417885, section 3): sites stand on a circle in random order, and each
shares masks with the nearest ones on both sides. Updates stay hidden as long as the honest sites of a sum are connected
by masks that they share: then what the server holds tells it the sum over all of them and nothing else, whoever else
works with it and whatever answers are missing. Sites can only be cut off from others by two runs of degree / 2
neighbouring sites that all work with the server. So fewer than ``degree`` of these cut nobody off, wherever they stand,
and more do with a probability that ``cut_off`` bounds. No recovery of lost sites' masks, hence no dropout: where a site
falls silent a new graph is drawn for the rest.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fairflare.privacy.schemes import ALL, AUTO, LEAST
from fairflare.privacy.statements import Sealed

MOST = 1000
"""Sites in a sum."""
ATTEMPTS = 3
"""Sums that a site takes part in per round, each with fewer sites than the one before."""


class SumRefused(Exception):
    """A sum that a site does not take part in; the text names sites and reasons, never a number."""


@dataclass(frozen=True)
class SumOrder:
    """What the server asks a site to take part in.

    Attributes:
        attempt: 0, and 1 more each time that a site failed to answer and the rest were asked again.
        statements: site -> what it said of itself in preflight, see ``PairwiseKeys.statement``.
        bound: ``fingerprint`` of everything else that the site was sent and that must be the same at all sites of the
            sum: run, model, orders, and for updates the sum of the numbers. The site computes it itself.
    """

    round: int
    attempt: int
    statements: Mapping[str, Sealed]
    bound: bytes = b""

    @property
    def roster(self) -> tuple[str, ...]:
        """The sites whose numbers are summed, sorted."""
        return tuple(sorted(self.statements))

    def digest(self, context: str) -> bytes:
        """SHA-256 that is the same at two sites exactly when they were sent the same and asked for the same sum.

        Keys follow from it: between sites that a server treats differently masks do not cancel.
        """
        return fingerprint(context, self.round, self.attempt, self.statements, self.bound)


def fingerprint(*content: Any) -> bytes:
    """SHA-256 of texts, bytes, numbers, None, mappings and sequences of these, of any other content SumRefused.

    It is the same only for the same content.
    """
    return hashlib.sha256(json.dumps(_tagged(content)).encode()).digest()


def _tagged(value: Any) -> Any:
    """``value`` for JSON; containers and bytes are marked, so that none looks like another."""
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {"mapping": [[key, _tagged(value[key])] for key in sorted(value)]}
    if isinstance(value, (list, tuple)):
        return {"sequence": [_tagged(item) for item in value]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise SumRefused("a message of another form")


class NumberScheme(Protocol):
    """A site's half of a scheme that sums numbers."""

    def seal(self, values: Sequence[float], order: SumOrder) -> Sealed:
        """``values`` (finite, >= 0) so that only their sum over the roster can be read; raises SumRefused."""

    def open(self, total: Any, terms: int) -> list[float]:
        """The ``terms`` sums in what the server made of everyone's; raises SumRefused when it does not hold them.

        Whether it does must not depend on this site's own values: a server could find them by trying.
        """


class Rosters:
    """Which sums a site has taken part in: two sums that differ by one site give that site's number away.

    A second sum in a round is for the case that a site fell silent, so it must have fewer sites than the first. A sum
    must have at least ``least`` sites, and ``LEAST``.
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
        return order == last
    return order.attempt > last.attempt and set(order.roster) < set(last.roster)


COMPLETE = 30
"""Sites up to which all pairs share masks."""
SHARE = 3
"""One in so many of the run's sites may work with the server."""
BITS = 100
"""-log2 of the probability that a graph cuts honest sites off: so small that who draws again and again finds none."""


@dataclass(frozen=True)
class MaskGraph:
    """How many neighbours a site has in a sum.

    Attributes:
        sites: of the run; a third of them may work with the server.
        least: the fewest neighbours, where the sum has so many other sites; None: all others.
    """

    sites: int
    least: int | None = None

    def degree(self, sites: int) -> int:
        """Neighbours in a sum of ``sites`` sites: an even number, or all others."""
        if self.least is None or sites <= COMPLETE:
            return sites - 1
        colluding = min(max(self.sites, sites) // SHARE, sites)
        found = self.least + self.least % 2
        while found < sites - 1 and cut_off(sites, found, colluding) > -BITS:
            found += 2
        return min(found, sites - 1)

    def neighbours(self, site: str, order: SumOrder, context: str) -> tuple[str, ...]:
        """The sites that share masks with ``site``, the same seen from either side.

        The circle follows from run, round, attempt and the roster's keys: no other word of the server's enters.
        """
        degree = self.degree(len(order.roster))
        if degree >= len(order.roster) - 1:
            return tuple(other for other in order.roster if other != site)
        keys = {site: str(statement.get("key")) for site, statement in order.statements.items()}
        drawn = fingerprint("mask graph", context, order.round, order.attempt, keys)
        circle = sorted(order.roster, key=lambda site: hashlib.sha256(drawn + site.encode()).digest())
        here = circle.index(site)
        near = [step for away in range(1, degree // 2 + 1) for step in (away, -away)]
        return tuple(sorted(circle[(here + step) % len(circle)] for step in near))


def cut_off(sites: int, degree: int, colluding: int) -> float:
    """log2 of a bound on the probability that some honest sites share no mask with the others; -inf: never.

    There are two runs of degree / 2 sites to place, and all of these sites have to be among the ``colluding`` ones.
    """
    if degree > colluding or degree >= sites - 1:
        return -math.inf
    taken = sum(math.log2((colluding - i) / (sites - i)) for i in range(degree))
    return min(0.0, math.log2(sites * (sites - 1) / 2) + taken)


def graph_of(neighbours: str, sites: int) -> MaskGraph:
    """The graph of a run of ``sites`` sites whose setting is ``neighbours``: "auto", "all" or the fewest, a number."""
    return MaskGraph(sites, None if neighbours == ALL else 0 if neighbours == AUTO else int(neighbours))
