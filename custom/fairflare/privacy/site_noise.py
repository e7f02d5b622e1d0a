# SPDX-License-Identifier: Apache-2.0
"""Differential privacy for a hospital: its part of each round's sum is bounded, and the sum has noise.

    each round   q_k = p_k D_k min(1, (C / K) / |p_k D_k|)             K sites in the sum, p_k the weight, C the clip
                 sent q_k + N(0, sigma^2 (C / K)^2 / (K - c))          behind masks; c may tell their noise, or drop out

The sum has noise of sigma C / K beside what c sites know of their own or never sent, and a hospital moves it by at most
C / K. So with T rounds it is T Gaussian mechanisms of multiplier sigma (McMahan et al., ICLR 2018, arXiv:1710.06963, at
the level of clients; the shares are those of Kairouz et al., ICML 2021, arXiv:2102.06387, with continuous noise). Two
runs are neighbours if in one of them a hospital's updates are zero. No server and no c sites add all of the noise.
Only jobs that ask for it carry this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fairflare.core.types import Ledger, StateDict
from fairflare.privacy.budget import Draws, Mechanism, epsilon_of, noise_for
from fairflare.privacy.egress import EgressRefused
from fairflare.privacy.secure_sum.protocol import SumRefused

SPENT = "privacy budget of the hospital spent: it takes no further part"


def bounded(update: Mapping[str, Any], most: float, deviation: float, draws: Draws) -> StateDict:
    """``update`` (tensors or arrays) in float64, of norm ``most`` at most over all entries, plus Gaussian noise."""
    entries = {key: torch.as_tensor(value).detach().cpu().double() for key, value in update.items()}
    norm = math.sqrt(sum(float(value.square().sum()) for value in entries.values()))
    factor = min(1.0, most / norm) if norm else 1.0
    return {key: value * factor + deviation * draws.normal(value) for key, value in entries.items()}


def share(clip: float, noise: float, sites: int, colluders: int) -> tuple[float, float]:
    """The largest norm of a site's part of a sum over ``sites``, and the deviation of the noise that it adds.

    Raises:
        SumRefused: no more sites than may tell their noise.
    """
    if sites <= colluders:
        raise SumRefused(f"a sum of {sites} sites, of which {colluders} may tell their noise")
    return clip / sites, noise * clip / sites / math.sqrt(sites - colluders)


@dataclass
class SiteNoise:
    """What a site does to its weighted update before it is masked, and the budget that it keeps.

    Attributes:
        clip: C, the largest norm that an update has as if all weights were alike.
        epsilon: of the hospital over the run.
        delta: the chance that goes with it.
        colluders: c, sites that may tell their noise or drop out once they have been asked for a sum.
        rounds: T. A sum that is asked for again counts as one more.
        ledger: what the site has spent, which survives a restart; None: kept here alone.
    """

    clip: float
    epsilon: float
    delta: float
    colluders: int
    rounds: int
    ledger: Ledger | None = None
    draws: Draws = field(default_factory=lambda: Draws(None))

    def __post_init__(self) -> None:
        self._sums = 0

    @property
    def noise(self) -> float:
        """sigma, the least with which all rounds keep to the budget."""
        return noise_for(self.epsilon, self.delta, 1.0, self.rounds)

    def check(self) -> None:
        """Raise EgressRefused unless one more sum keeps to the budget."""
        if self._after(1) > self.epsilon:
            raise EgressRefused(SPENT)

    def charge(self) -> None:
        """Count a sum before anything of it leaves; raises EgressRefused as ``check``."""
        self.check()
        now, self._sums = self._after(1), self._spent() + 1
        if self.ledger is not None:
            self.ledger.write({"epsilon": now, "delta": self.delta, "spent": [[self.noise, 1.0, self._sums]]})

    def applied(self, update: Mapping[str, Any], sites: int) -> StateDict:
        """p_k D_k, bounded and with this site's share of the noise, for a sum over ``sites``; raises SumRefused."""
        return bounded(update, *share(self.clip, self.noise, sites, self.colluders), self.draws)

    def _spent(self) -> int:
        rows = self.ledger.read().get("spent", ()) if self.ledger is not None else ()
        return max([self._sums, *(int(steps) for _, _, steps in rows)])

    def _after(self, more: int) -> float:
        return epsilon_of([Mechanism(self.noise, 1.0, self._spent() + more)], self.delta)
