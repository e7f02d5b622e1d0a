# SPDX-License-Identifier: Apache-2.0
"""What every server rule is, and the arithmetic that most of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from fairflare.contracts import Offer, Reply, Round, StateDict, Training, Weights

State = Mapping[str, Any]
"""A rule's memory: nested dicts of floats, strings and tensors, saved with the model after every round."""


@dataclass(frozen=True)
class Outcome:
    """What a rule makes of one round: the next model, the weight of each accepted site, and the rule's next state."""

    model: StateDict
    weights: Weights
    state: State
    notes: Mapping[str, Any] = field(default_factory=dict)


class Rule(ABC):
    """A server rule: a frozen dataclass of parameters whose methods are pure functions of replies and state.

    A rule that only weighs whole models implements ``weigh``; one that treats layers or positions apart overrides
    ``aggregate``. Replies arrive sorted by site name, at least one, all of them accepted by the gate.
    """

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the scalars that every reply must hold; a reply without them is rejected."""
        return ()

    @property
    def useful(self) -> tuple[str, ...]:
        """Families of scalars ("cka" stands for "cka/...") that the rule uses where they are defined.

        Probes that report nothing wanted or useful do not run.
        """
        return ()

    def orders(self, state: State, site: str, round: Round) -> dict[str, float]:
        """The numbers that ``site`` alone is told before it trains; none by default."""
        return {}

    def anchor(self, model: StateDict, replies: Sequence[Reply], state: State, round: Round) -> StateDict | None:
        """The model of a second exchange, sent to the sites whose replies were accepted; None: there is none.

        What their "anchored" probes then report is added to the replies' scalars before ``aggregate``.
        """
        return None

    @abstractmethod
    def weigh(self, replies: Sequence[Reply], state: State, round: Round) -> tuple[Weights, State]:
        """Non-negative weights that sum to 1 over the replies' sites, and the next state."""

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, round: Round) -> Outcome:
        """w^{t+1} = w^t + sum_k p_k D_k with the weights p of ``weigh``.

        A rule may build its next state in the memory of ``state``, which nobody uses again.
        """
        weights, next_state = self.weigh(replies, state, round)
        return Outcome(add_weighted(model, replies, weights), weights, next_state)

    def missing(self, offer: Offer) -> str:
        """What the task lacks for this rule, in words that end a sentence; empty when nothing is missing."""
        return ""

    def caution(self, training: Training) -> str:
        """What a user should know about this rule under these training settings; empty when there is nothing."""
        return ""


class SummedRule(Rule):
    """A rule whose weights follow from sums over the sites: with secure sums no site's own numbers need leave it.

    Each site turns its numbers into ``terms``, learns the sums of everyone's terms, and multiplies its update by
    ``own_weight`` before it is masked. What a site keeps of the rounds before, the server then does not know.
    """

    n_terms: ClassVar[int]
    """Numbers in ``terms``."""

    @abstractmethod
    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        """What this site adds to the sums, each finite and >= 0; ``kept`` is what ``own_weight`` said to keep."""

    @abstractmethod
    def own_weight(self, terms: Sequence[float], kept: float | None, sums: Sequence[float]) -> tuple[float, float]:
        """This site's weight, and what it keeps for the rounds to come.

        Over the sites of a round these are the weights of ``weigh``. Whatever ``sums`` are, the weight is in [0, 1]:
        an error for some sums and none for others would tell whoever made them up something of ``terms``.
        """

    def unsummable(self) -> str:
        """Why these parameters need more than sums, in words that end a sentence; empty when they do not."""
        return ""


def added_whole(model: StateDict, total: StateDict, state: State) -> Outcome:
    """w^{t+1} = w^t + sum_k p_k D_k where only the sum is known; ``state`` is left as it is."""
    after = {key: value + total[key] if key in total else value.clone() for key, value in model.items()}
    return Outcome(after, {}, state, {"weights": "applied at the sites, unknown to the server"})


def add_weighted(model: StateDict, replies: Sequence[Reply], weights: Weights) -> StateDict:
    """``model`` plus the weighted sum of the updates, in the order of the replies; integer buffers are kept.

    Sums run in float32 or the entry's own wider type, one entry at a time, so that the extra memory is one model.
    """
    result = {}
    for key, value in model.items():
        if not value.is_floating_point():
            result[key] = value.clone()
            continue
        total = value.to(torch.promote_types(value.dtype, torch.float32), copy=True)
        for reply in replies:
            total.add_(reply.update[key], alpha=weights[reply.site])
        result[key] = total.to(value.dtype)
    return result


def shares(amounts: Mapping[str, float]) -> Weights:
    """Non-negative amounts divided by their sum; uniform when all are zero."""
    total = sum(amounts.values())
    if total <= 0:
        return uniform(amounts)
    return {site: amount / total for site, amount in amounts.items()}


def uniform(sites: Mapping[str, Any] | Sequence[str]) -> Weights:
    """1/K for each of the K sites."""
    names = list(sites)
    return {site: 1.0 / len(names) for site in names}


def example_shares(replies: Sequence[Reply]) -> Weights:
    """n_k / n over the replies."""
    return shares({r.site: float(r.n_examples) for r in replies})
