# SPDX-License-Identifier: Apache-2.0
"""How far one site may reach, and the rules whose weights can be capped before they combine; see ``bounded``."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from fairflare.aggregators.base import Outcome, Rule, State, WeighingRule, example_shares, uniform
from fairflare.core.types import Info, Reply, StateDict, Weights

At = Literal["median", "weighted", "bits"]
Mix = Literal["none", "neighbours", "buckets", "krum", "krum-neighbours", "centre", "geometric"]
MIXES: tuple[Mix, ...] = get_args(Mix)
AUTO: Literal["auto"] = "auto"
LIARS = 0.25
"""The share of the sites against which "auto" holds."""


def liars_among(sites: int, share: float = LIARS) -> int:
    """f: that share of the sites, rounded down; at least 1 where there are three, and always fewer than half."""
    return min(max(int(share * sites + 1e-9), 1), max(sites - 1, 0) // 2)


def limited(weights: Weights, cap: float) -> Weights:
    """``weights`` with none above ``cap``; equal ones where fewer sites than 1 / ``cap`` weigh anything.

    What is above is shared by the other sites in their proportions, until none is.
    """
    if all(w <= cap for w in weights.values()):
        return weights
    positive = sum(1 for w in weights.values() if w > 0)
    if cap * positive <= 1:
        return {site: 1 / positive if w > 0 else 0.0 for site, w in weights.items()}
    return capped(weights, cap)


def capped(weights: Weights, cap: float) -> Weights:
    """The weights with none above ``cap``: the others keep their proportions and share what is left, until none is.

    Args:
        weights: >= 0, sum 1.
        cap: > 0; at most 1 / K gives equal weights.

    Raises:
        ValueError: too few positive weights to reach 1 under the cap.
    """
    if cap * len(weights) <= 1:
        return dict.fromkeys(weights, 1 / len(weights))
    positive = sum(1 for w in weights.values() if w > 0)
    if cap * positive < 1:
        raise ValueError(f"cap must be at least 1 / {positive}, the number of positive weights, got {cap:g}")
    full: set[str] = set()
    while True:
        rest = math.fsum(w for site, w in weights.items() if site not in full)
        scale = (1 - cap * len(full)) / rest if rest > 0 else 0.0
        over = {site for site, w in weights.items() if site not in full and w * scale > cap}
        if not over:
            return {site: cap if site in full else w * scale for site, w in weights.items()}
        full |= over


@dataclass(frozen=True)
class Combining(Rule):
    """A rule that combines updates, given the sites' weights.

    Args:
        weighting: "examples" for p_k = n_k / n; "uniform" for 1 / K.
    """

    weighting: Literal["examples", "uniform"] = "examples"

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        return self.combine(model, replies, self.prior(replies), state)

    def prior(self, replies: Sequence[Reply]) -> Weights:
        """p, before anything is removed."""
        return uniform([r.site for r in replies]) if self.weighting == "uniform" else example_shares(replies)

    @abstractmethod
    def combine(self, model: StateDict, replies: Sequence[Reply], prior: Weights, state: State) -> Outcome:
        """The next model from updates of sites that weigh ``prior``; the weights are their parts in it."""


@dataclass(frozen=True)
class Bounds:
    """How far one site may reach.

    Attributes:
        clip: the factor of C, > 0; 0 clips nothing.
        at: C's median counts every site once, or weighs them by n_k ("weighted"); "bits" moves C from the first round's
            median on by each site's answer whether its norm is within it.
        memory: share of the past in a moving average of the median, in [0, 1).
        cap: the largest weight, in (0, 1]; 1 caps nothing, "auto" is 2 / K of the round's K sites, where the rule's
            weights can be capped at all. Where fewer sites than 1 / cap weigh anything, these weigh the same.
        mix: what takes the place of single updates after clipping, see ``functional.robust.mixing``.
        liars: the share of the sites that mixing holds against, see ``liars_among``.
    """

    clip: float = 0.0
    at: At = "median"
    memory: float = 0.0
    cap: float | Literal["auto"] = 1.0
    mix: Mix = "none"
    liars: float = LIARS

    def __post_init__(self) -> None:
        if not 0 <= self.clip < math.inf:
            raise ValueError(f"clip_updates must be finite and >= 0, got {self.clip}")
        if self.at not in get_args(At):
            raise ValueError(f"clip_at must be one of {', '.join(get_args(At))}, got {self.at}")
        if not 0 <= self.memory < 1:
            raise ValueError(f"clip_memory must be in [0, 1), got {self.memory}")
        if self.cap != AUTO and not 0 < self.cap <= 1:
            raise ValueError(f"cap_weights must be in (0, 1] or auto, got {self.cap}")
        if self.mix not in MIXES:
            raise ValueError(f"mix_updates must be one of {', '.join(MIXES)}, got {self.mix}")
        if not 0 < self.liars < 0.5:
            raise ValueError(f"liars must be in (0, 0.5), got {self.liars}")
        if self.mix == "none" and self.liars != LIARS:
            raise ValueError("liars has no effect without mix_updates: leave it out or set it")
        if not self.clip and (self.at != "median" or self.memory):
            raise ValueError("clip_at and clip_memory have no effect without clip_updates: leave them out or set it")
        if self.at == "bits" and self.memory:
            raise ValueError("clip_memory has no effect with clip_at=bits, which remembers by itself: leave it out")

    def cap_of(self, sites: int) -> float:
        """The largest weight of one of a round's ``sites``."""
        return min(2 / sites, 1.0) if self.cap == AUTO else self.cap

    def uncappable(self, rule: Rule) -> str:
        """Why the weights of ``rule`` cannot be capped, in words that end a sentence; empty where they can."""
        adds = isinstance(rule, WeighingRule) and type(rule).aggregate is WeighingRule.aggregate
        if self.cap == 1 or adds or rule.caps or isinstance(rule, Combining):
            return ""
        if self.cap == AUTO and self.mix in ("neighbours", "krum-neighbours"):
            return ""  # which itself keeps a site's part at 1 / (K - f) or less
        return f"rule {type(rule).__name__} does more with its weights than to add updates, so that none can be capped"
