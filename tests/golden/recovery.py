# SPDX-License-Identifier: Apache-2.0
"""What a protocol needs that recovers the masks of sites that fall silent; the one here draws a new graph instead.

Bell et al., CCS 2020, https://doi.org/10.1145/3372297.3417885, Section 3: each site shares its secrets with k
neighbours on a circle in random order, and t of the shares open one. Beside ``MaskGraph.degree`` these numbers say what
recovery would cost a federation.
"""

from __future__ import annotations

import math

SIGMA, ETA = 40, 20
"""-log2 of the probabilities that something is learnt, and that a sum fails."""
SLACK = 1.25
"""In the threshold against a server that tells sites different things."""


def neighbours_and_threshold(
    sites: int, corrupt: float, dropout: float, semi_malicious: bool = False
) -> tuple[int, int]:
    """The least even number k of neighbours, and the threshold t of their shares.

    k is such that honest sites stay connected but for 2^-41, no site has t corrupt neighbours but for 2^-41, and every
    site has t surviving ones but for 2^-20; exact hypergeometric tails, a union over the sites.

    Args:
        sites: n > 1.
        corrupt: share of them that work with the server, in [0, 1).
        dropout: share that may fall silent, in [0, 1).
        semi_malicious: whether the server may tell sites different things about who is silent.

    Raises:
        ValueError: no number of neighbours will do.
    """
    from scipy.stats import hypergeom  # takes a while to import

    bad, alive = math.floor(corrupt * sites), math.floor((1 - dropout) * sites + 0.5)
    for k in range(2, sites, 2):
        counts = range(k + 1)
        too_many = hypergeom(sites - 1, bad, k).sf(counts) <= 2.0 ** -(SIGMA + 1) / sites
        too_few = hypergeom(sites - 1, alive - 1, k).cdf(counts) >= 2.0**-ETA / sites
        known, surviving = int(too_many.argmax()), int(too_few.argmax())
        if semi_malicious:
            known = math.ceil((known + k - SLACK) / 2)
        if known < surviving and disconnected(sites, k, bad + sites - alive) < -(SIGMA + 1):
            return k, max(2, known + 1)
    raise ValueError(f"no number of neighbours is enough for {sites} sites, {corrupt:g} corrupt and {dropout:g} silent")


def disconnected(sites: int, neighbours: int, removed: int) -> float:
    """log2 of a bound on the probability that sites which stay are cut off from others; -inf: never.

    Two disjoint runs of k / 2 removed sites have to stand somewhere on the circle with somebody between them.
    """
    if neighbours > removed or neighbours >= sites - 1:
        return -math.inf
    pairs = math.log2(sites * (sites - neighbours - 1) / 2)
    return min(0.0, pairs + sum(math.log2((removed - i) / (sites - i)) for i in range(neighbours)))
