# SPDX-License-Identifier: Apache-2.0
"""Which sites of a sum mask each other's updates: all of them, or each some, on a graph that nobody draws alone.

A regular graph in place of all pairs is from Bell et al., CCS 2020, https://doi.org/10.1145/3372297.3417885, section 3:
sites stand on a circle in random order, and each shares masks with the nearest ones on both sides. Updates stay hidden
as long as the honest sites of a sum are connected by masks that they share: then what the server holds tells it the sum
over all of them and nothing else, whoever else works with it and whatever answers are missing.

Sites can only be cut off from others by two runs of degree / 2 neighbouring sites that all work with the server. So
fewer than ``degree`` of these cut nobody off, wherever they stand, and more do with a probability that ``cut_off``
bounds. No recovery of lost sites' masks, hence no dropout: where a site falls silent a new graph is drawn for the rest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairflare.privacy.secure_sum.protocol import SumOrder, fingerprint

AUTO, ALL = "auto", "all"
NEIGHBOURS = f"{AUTO}|{ALL}|[1-9][0-9]{{0,3}}"
"""What the run key ``mask_neighbours`` may be: as many as are safe, all others, or the fewest."""
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
        circle = _circle(order, context)
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


def _circle(order: SumOrder, context: str) -> Sequence[str]:
    """The roster in an order that nobody chose: by a hash of each name and everyone's keys."""
    keys = {site: str(statement.get("key")) for site, statement in order.statements.items()}
    drawn = fingerprint("mask graph", context, order.round, order.attempt, keys)
    return sorted(order.roster, key=lambda site: hashlib.sha256(drawn + site.encode()).digest())
