# SPDX-License-Identifier: Apache-2.0
"""Which of the training sites take part in a round: all, a share that is drawn anew in every round, or a list.

The share is that of McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1: S_t = a random set of
max(C K, 1) sites. In a pool one site trains, on the training data of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fairflare.core.registry import method, selector
from fairflare.core.seeds import derive
from fairflare.core.types import Round
from fairflare.core.validation import Names, Range


class Selector:
    """A frozen dataclass of parameters whose ``select`` is a pure function of its arguments.

    A site that is not selected trains nothing in that round and is neither absent nor rejected; the rule sees it as a
    site that is away. Preflight and the final evaluation ask every site.
    """

    pools: ClassVar[bool] = False
    """Whether the sites that it selects train on the training data of all sites; in process, on data that may be."""

    def select(self, sites: Sequence[str], round: Round, seed: int, least: int) -> tuple[str, ...]:
        """The sites that take part, in the order of ``sites``; by default those of ``ever``.

        Args:
            sites: the training sites that are there, at least one.
            round: t and T.
            seed: the run's.
            least: fewest accepted sites that the round needs; no fewer are selected where that many are there.
        """
        return self.ever(sites)

    def ever(self, sites: Sequence[str]) -> tuple[str, ...]:
        """Those of the training sites ``sites`` that it may select in some round, in their order.

        What rules and trainers know of the federation, as its number of sites, is of these: a site that never trains
        is no part of it.
        """
        return tuple(sites)

    def missing(self, sites: Sequence[str]) -> str:
        """What is wrong with this selector on a run's training sites, in one line; empty when nothing is."""
        return ""


@selector("all")
@dataclass(frozen=True)
class All(Selector):
    """Every training site takes part in every round."""


@selector("share")
@dataclass(frozen=True)
class Share(Selector):
    """ceil(share K) of the K sites, drawn uniformly without replacement.

    The draw depends on the run's seed, the round and the sites' names alone: a run that is continued selects as one
    that was never interrupted, in process as in FLARE.

    Args:
        share: C in (0, 1]; 1 selects every site.
    """

    share: Annotated[float, Range(0, 1)] = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1, got {self.share}")

    def select(self, sites: Sequence[str], round: Round, seed: int, least: int) -> tuple[str, ...]:
        """The first of the sites in an order that is drawn for this round."""
        count = max(least, math.ceil(self.share * len(sites) - 5e-10))  # 0.1 of 30 sites are 3, whatever the rounding
        drawn = sorted(sites, key=lambda site: (derive(seed, "select", round.number, site), site))
        chosen = set(drawn[:count])
        return tuple(site for site in sites if site in chosen)


@selector("list")
@dataclass(frozen=True)
class Named(Selector):
    """The sites of a list, in every round.

    Args:
        sites: their names, separated by commas.
    """

    sites: Names = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the list."""
        return tuple(name.strip() for name in self.sites.split(",") if name.strip())

    def ever(self, sites: Sequence[str]) -> tuple[str, ...]:
        return tuple(site for site in sites if site in self.names)

    def missing(self, sites: Sequence[str]) -> str:
        """A list that is empty or names a site that does not train."""
        if not self.names:
            return f"select.sites: expected names among {', '.join(sites)}, got none"
        unknown = next((name for name in self.names if name not in sites), "")
        return f"select.sites: expected names among {', '.join(sites)}, got {unknown!r}" if unknown else ""


@selector("pool")
@dataclass(frozen=True)
class Pool(Selector):
    """The first site has the training examples of all sites and trains alone; every site is evaluated on its own.

    For runs in one process on simulated or published data: whoever asks for anything else is refused.
    """

    pools = True

    def ever(self, sites: Sequence[str]) -> tuple[str, ...]:
        return tuple(sites[:1])


MCMAHAN = (
    "McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017. "
    "https://arxiv.org/abs/1602.05629"
)

method(
    "pooled",
    title="Pooled",
    summary="One model trains on the training data of all sites; for public and simulated data alone.",
    rule="fedavg",
    selector="pool",
    paper=MCMAHAN,
)
