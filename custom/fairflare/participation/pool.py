# SPDX-License-Identifier: Apache-2.0
"""One site trains, on the training data of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairflare.core.registry import method, selector
from fairflare.core.types import Paper, Round
from fairflare.participation.base import Selector


@selector("pool")
@dataclass(frozen=True)
class Pool(Selector):
    """The first site has the training examples of all sites and trains alone; every site is evaluated on its own.

    For runs in one process on simulated or published data: whoever asks for anything else is refused.
    """

    pools = True

    def select(self, sites: Sequence[str], round: Round, seed: int, least: int) -> tuple[str, ...]:
        return tuple(sites[:1])

    def ever(self, sites: Sequence[str]) -> tuple[str, ...]:
        return tuple(sites[:1])


MCMAHAN = Paper.cited(
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
