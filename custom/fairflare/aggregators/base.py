# SPDX-License-Identifier: Apache-2.0
"""What every server rule is, the arithmetic that most share, and how far one site may reach; see ``bounded``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch

from fairflare.core.notes import Note
from fairflare.core.types import Info, Need, Offer, Reply, StateDict, Training, Weights

State = Mapping[str, Any]
"""A rule's memory: nested dicts of floats, strings and tensors, saved with the model after every round."""
Notes = Mapping[str, Any]
"""Name -> value of what ``Rule.notes`` declares, as far as a round has it."""


@dataclass(frozen=True)
class Outcome:
    """What a rule makes of one round.

    Attributes:
        model: w^{t+1}, with the entries of w^t.
        weights: site -> its share of the update, for the sites of the round's replies.
        state: the rule's next state.
        notes: what the round says.
        models: site -> a model of its own, with the entries of w^t, if the rule gives sites such (``own_models``). The
            site is sent it in the rounds to come, until it is given another; sites without one are sent ``model``.
    """

    model: StateDict
    weights: Weights
    state: State
    notes: Notes = field(default_factory=dict)
    models: Mapping[str, StateDict] = field(default_factory=dict)


class Rule(ABC):
    """A server rule: a frozen dataclass of parameters whose methods are pure functions of what they are given.

    A rule that weighs whole models derives from ``WeighingRule`` and implements ``weigh``; one that treats layers or
    positions apart implements ``aggregate``. Replies arrive sorted by site name, at least one, all of them accepted by
    the gate.
    """

    notes: ClassVar[tuple[Note, ...]] = ()
    """What ``Outcome.notes`` may hold."""
    own_models: ClassVar[bool] = False
    """Whether ``Outcome.models`` may hold any; there are none in runs with secure sums."""
    counts_own: ClassVar[bool] = False
    """Whether sites use these models, so that a run's results are those of each site's own one."""
    alone: ClassVar[bool] = False
    """Whether no site may learn of any other, so that trainers which exchange anything else are refused."""
    weighs_sums: ClassVar[bool] = False
    """Whether sites may answer with sums over patients in place of models, as it only weighs answers by numbers."""
    ends_apart: ClassVar[bool] = False
    """Whether the last round's model is none that an update leads to, so that no server optimizer can step there."""
    caps: ClassVar[bool] = False
    """Whether ``aggregate`` keeps its weights within ``Info.cap`` itself, by ``limited``."""
    donates: ClassVar[bool] = False
    """Whether ``aggregate`` may use up the state that it is given (optax's donated arguments); else it leaves it alone.

    For a state as large as the sites' models, of which a copy would double the server's memory. Whoever calls
    ``aggregate`` twice with one state passes a copy then.
    """

    def in_use(self, model: StateDict, models: Mapping[str, StateDict], sites: Iterable[str]) -> dict[str, StateDict]:
        """Site -> the model that it uses: its own of ``models`` where sites use these, else the shared ``model``.

        A model that sites are shown beside the shared one is not used.
        """
        own = models if self.counts_own else {}
        return {site: own.get(site, model) for site in sites}

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

    def orders(self, state: State, site: str, info: Info) -> dict[str, float]:
        """The numbers that are sent to ``site`` alone before it trains; none by default."""
        return {}

    def tensors_for(self, state: State, site: str, info: Info) -> dict[str, StateDict]:
        """Name -> {entry: tensor}, sent to ``site`` beside the model before it trains; none by default.

        A rule that sends all sites the same returns the same tensors for every ``site``.
        """
        return {}

    def anchor(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> StateDict | None:
        """The model of a second exchange, sent to the sites whose replies were accepted; None: there is none.

        What their "anchored" probes then report is added to the replies' scalars before ``aggregate``.
        """
        return None

    @property
    def heeded(self) -> tuple[str, ...]:
        """Families of ``orders`` that the trainer must heed (``Trainer.heeds``) for the rule to mean what it says."""
        return ()

    def anchors(
        self, model: StateDict, replies: Sequence[Reply], state: State, info: Info
    ) -> Iterator[tuple[str, StateDict]]:
        """Label and model of every further exchange of the round, one after the other; by default that of ``anchor``.

        What "anchored" probes report of a model is added to the replies' scalars as "NAME/LABEL", and as "NAME" where
        the label is empty. A site that leaves one of them without a good answer is left out of the round. Each model is
        made when the one before it has been answered; whoever makes it keeps none.
        """
        found = [made for made in [self.anchor(model, replies, state, info)] if made is not None]
        while found:
            yield "", found.pop()

    @abstractmethod
    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """The next model, the sites' weights and the next state; pure, but for what ``donates`` allows."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """What it needs of every site's data beyond an example to train on; nothing by default."""
        return ()

    def missing(self, offer: Offer) -> str:
        """What the task lacks for this rule, in words that end a sentence; empty when nothing is missing."""
        return ""

    def caution(self, training: Training) -> str:
        """What a user should know about this rule under these training settings; empty when there is nothing."""
        return ""

    def heard(self, replies: Sequence[Reply], state: State, info: Info) -> Sequence[Reply]:
        """What a trainer's server half takes up of the accepted replies: all of it, unless the rule is bounded."""
        return replies

    def unprotected(self, sites: int) -> str:
        """Why a rule against wild sites holds against fewer of ``sites`` in a round than it says; empty where it does.

        In words that begin a line.
        """
        return ""


class WeighingRule(Rule):
    """A rule that gives every site one weight for its whole model."""

    @abstractmethod
    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """Non-negative weights that sum to 1 over the replies' sites, and the next state; always pure."""

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """w^{t+1} = w^t + sum_k p_k D_k with the weights p of ``weigh``; where a rule ``caps``, within the cap."""
        weights, after = self.weigh(replies, state, info)
        weights = limited(weights, info.cap) if self.caps else weights
        notes = self.round_notes(weights, replies, state, after, info)
        return Outcome(add_weighted(model, replies, weights), weights, after, notes)

    def round_notes(self, weights: Weights, replies: Sequence[Reply], before: State, after: State, info: Info) -> Notes:
        """``Outcome.notes`` of a round that led with these ``weights`` from one state to the next; none by default."""
        return {}


class SummedRule(WeighingRule):
    """A rule whose weights follow from sums over the sites: with secure sums no site's own numbers need leave it.

    Each site turns its numbers into ``terms``, learns the sums of everyone's terms, and multiplies its update by
    ``own_weight`` before it is masked. What a site keeps of the rounds before, the server then does not know.
    ``orders`` must be the same for every site: masks depend on them.
    """

    weighs_sums: ClassVar[bool] = True
    n_terms: ClassVar[int]
    """Numbers in ``terms``."""
    counted: ClassVar[int | None] = None
    """Index of the term that is 1 at every site, if there is one: sites know what its sum must be."""

    @abstractmethod
    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        """What this site adds to the sums, each finite and >= 0; ``kept`` is what ``own_weight`` said to keep."""

    def own_weight(self, terms: Sequence[float], kept: float | None, sums: Sequence[float]) -> tuple[float, float]:
        """This site's weight, by default its share of the first sum, and what it keeps for the rounds to come.

        Over the sites of a round these are the weights of ``weigh``. Whatever ``sums`` are, the weight is in [0, 1]:
        an error for some sums and none for others would tell whoever made them up something of ``terms``.
        """
        total = max(sums[0], terms[0])
        return terms[0] / total if total > 0 else 1 / max(sums[self.counted or 0], 1.0), 0.0

    def unsummable(self) -> str:
        """Why these parameters need more than sums, in words that end a sentence; empty when they do not."""
        return ""


def added_whole(model: StateDict, total: StateDict, state: State) -> Outcome:
    """w^{t+1} = w^t + sum_k p_k D_k where only the sum is known; ``state`` is left as it is."""
    after = {key: value + total[key] if key in total else value.clone() for key, value in model.items()}
    return Outcome(after, {}, state, {"weights": "applied at the sites, unknown to the server"})


def add_weighted(model: StateDict, replies: Sequence[Reply], weights: Mapping[str, float]) -> StateDict:
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


def add_scaled(model: StateDict, replies: Sequence[Reply], weights: Weights, step: float) -> StateDict:
    """``add_weighted`` with the trainable parameters moved ``step`` times as far; buffers are averaged as ever."""
    return add_factors(model, replies, {site: step * weight for site, weight in weights.items()}, weights)


def add_factors(
    model: StateDict, replies: Sequence[Reply], factors: Mapping[str, float], weights: Weights
) -> StateDict:
    """``model`` plus the updates: parameters times ``factors`` of any sign and sum, buffers averaged by ``weights``.

    Running statistics outside of what the sites hold would make no sense, and a variance might be negative.
    """
    parameters = {key: value for key, value in model.items() if key in replies[0].trainable}
    buffers = {key: value for key, value in model.items() if key not in parameters}
    moved = add_weighted(parameters, replies, factors) | add_weighted(buffers, replies, weights)
    return {key: moved[key] for key in model}


def shares(amounts: Mapping[str, float]) -> Weights:
    """Non-negative amounts divided by their sum; uniform when all are zero."""
    total = sum(amounts.values())
    if total <= 0:
        return uniform(amounts)
    return {site: amount / total for site, amount in amounts.items()}


def convex(factors: Mapping[str, float], replies: Sequence[Reply]) -> Weights:
    """Factors without the negative ones, divided by their sum; shares of the examples where nothing is left."""
    found = {site: max(factor, 0.0) for site, factor in factors.items()}
    return shares(found) if sum(found.values()) > 0 else example_shares(replies)


def uniform(sites: Mapping[str, Any] | Sequence[str]) -> Weights:
    """1/K for each of the K sites."""
    names = list(sites)
    return {site: 1.0 / len(names) for site in names}


def example_shares(replies: Sequence[Reply]) -> Weights:
    """n_k / n over the replies."""
    return shares({r.site: float(r.n_examples) for r in replies})


def filled(values: Mapping[str, float | None], default: float = 1.0) -> dict[str, float]:
    """``values`` with the mean of the known ones (``default`` when none is) in place of None."""
    known = [value for value in values.values() if value is not None]
    usual = sum(known) / len(known) if known else default
    return {site: usual if value is None else value for site, value in values.items()}


def without_negative_variances(model: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``model`` with running variances of at least 0: differences that leave a rounding error below it are accepted."""
    return {k: v.clamp(min=0) if k.endswith("running_var") and bool((v < 0).any()) else v for k, v in model.items()}


At = Literal["median", "weighted", "bits"]
Mix = Literal["none", "neighbours", "buckets", "krum", "krum-neighbours", "centre", "geometric"]
MIXES: tuple[Mix, ...] = get_args(Mix)
AUTO: Literal["auto"] = "auto"
SPREAD: Literal["spread"] = "spread"
LIARS = 0.25
"""The share of the sites against which "auto" holds."""


def liars_among(sites: int, share: float = LIARS) -> int:
    """f: that share of the sites, rounded down; at least 1 where there are three, and always fewer than half."""
    return min(max(int(share * sites + 1e-9), 1), max(sites - 1, 0) // 2)


def limited(weights: Weights, cap: float | Mapping[str, float]) -> Weights:
    """``weights`` (>= 0, sum 1) with none above ``cap`` > 0, of all sites or of each.

    What is above is shared by the other sites in their proportions, until none is. Where the caps of the sites that
    weigh anything sum to 1 or less, these sites weigh in proportion to their caps.
    """
    caps = cap if isinstance(cap, Mapping) else dict.fromkeys(weights, cap)
    if all(w <= caps[site] for site, w in weights.items()):
        return weights
    total = math.fsum(caps[site] for site, w in weights.items() if w > 0)
    if total <= 1:
        return {site: caps[site] / total if w > 0 else 0.0 for site, w in weights.items()}
    full: set[str] = set()
    while True:
        rest = math.fsum(w for site, w in weights.items() if site not in full)
        scale = (1 - math.fsum(caps[site] for site in full)) / rest if rest > 0 else 0.0
        over = {site for site, w in weights.items() if site not in full and w * scale > caps[site]}
        if not over:
            return {site: caps[site] if site in full else w * scale for site, w in weights.items()}
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
        clip: the factor of C, > 0; 0 clips nothing; "spread": only updates beyond the spread of norms, see
            ``functional.robust.outlying``.
        at: C's median counts every site once, or weighs them by n_k ("weighted"); "bits" moves C from the first round's
            median on by each site's answer whether its norm is within it.
        memory: share of the past in a moving average of the median, in [0, 1).
        cap: the largest weight, in (0, 1]; 1 caps nothing, "auto" is 2 / K of the round's K sites, where the rule's
            weights can be capped at all. Where fewer sites than 1 / cap weigh anything, these weigh the same. "spread"
            is 1.5 to 2 / K or, where that is more, the site's share of the examples, see ``bounded``.
        mix: what takes the place of single updates after clipping, see ``functional.robust.mixing``.
        liars: the share of the sites that mixing holds against, see ``liars_among``.
    """

    clip: float | Literal["spread"] = 0.0
    at: At = "median"
    memory: float = 0.0
    cap: float | Literal["auto", "spread"] = 1.0
    mix: Mix = "none"
    liars: float = LIARS

    def __post_init__(self) -> None:
        if self.clip != SPREAD and not 0 <= self.clip < math.inf:
            raise ValueError(f"clip_updates must be finite and >= 0 or spread, got {self.clip}")
        if self.at not in get_args(At):
            raise ValueError(f"clip_at must be one of {', '.join(get_args(At))}, got {self.at}")
        if not 0 <= self.memory < 1:
            raise ValueError(f"clip_memory must be in [0, 1), got {self.memory}")
        if self.cap not in (AUTO, SPREAD) and not 0 < self.cap <= 1:
            raise ValueError(f"cap_weights must be in (0, 1], auto or spread, got {self.cap}")
        if self.mix not in MIXES:
            raise ValueError(f"mix_updates must be one of {', '.join(MIXES)}, got {self.mix}")
        if not 0 < self.liars < 0.5:
            raise ValueError(f"liars must be in (0, 0.5), got {self.liars}")
        if self.mix == "none" and self.liars != LIARS:
            raise ValueError("liars has no effect without mix_updates: leave it out or set it")
        if self.clip in (0, SPREAD) and (self.at != "median" or self.memory):
            raise ValueError("clip_at and clip_memory have no effect without a number for clip_updates: leave them out")
        if self.at == "bits" and self.memory:
            raise ValueError("clip_memory has no effect with clip_at=bits, which remembers by itself: leave it out")

    def cap_of(self, sites: int) -> float:
        """The largest weight of one of a round's ``sites``."""
        times = {AUTO: 2.0, SPREAD: 1.5}
        return min(times[self.cap] / sites, 1.0) if self.cap in (AUTO, SPREAD) else float(self.cap)

    def uncappable(self, rule: Rule) -> str:
        """Why the weights of ``rule`` cannot be capped, in words that end a sentence; empty where they can."""
        adds = isinstance(rule, WeighingRule) and type(rule).aggregate is WeighingRule.aggregate
        if self.cap == 1 or adds or rule.caps or isinstance(rule, Combining):
            return ""
        if self.cap == AUTO and self.mix in ("neighbours", "krum-neighbours"):
            return ""  # which itself keeps a site's part at 1 / (K - f) or less
        return f"rule {type(rule).__name__} does more with its weights than to add updates, so that none can be capped"
