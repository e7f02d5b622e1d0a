# SPDX-License-Identifier: Apache-2.0
"""Bounds on what one site can do, around any rule: updates are clipped to a common length, weights are capped.

clip    D_k <- D_k min(1, C / ||D_k||)      over trainable entries; C = factor times the median norm of those that moved
mix     D_k <- sum_j M_kj D_j               all entries; M >= 0 with rows that sum to 1, from the updates' distances
cap     weights above c get c, the others keep their proportions and share what is left, until none is above

The default ("spread") acts on what stands out alone. An update is scaled down where its norm is beyond the spread of
norms over the sites and the last rounds (``functional.robust.kept_lengths``). A site weighs at most 2 / K or its share
of the examples, whichever is more; that share does not count where its examples are far more than the others'. Where
its update opposes the others', it weighs at most 1 / K or that share, and the update is no longer than their median.
Where numbers that it reports are far from the others', it weighs at most 1 / K.

The order is reject (the gate), clip, mix, cap, combine (the rule), step (the server optimizer).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from fairflare.aggregators.base import (
    SPREAD,
    Bounds,
    Combining,
    Outcome,
    Rule,
    State,
    add_weighted,
    example_shares,
    liars_among,
    limited,
)
from fairflare.aggregators.own import View
from fairflare.core.notes import Note
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.functional.blocks import blocks_of, square_of
from fairflare.functional.outliers import far_from_median
from fairflare.functional.robust import (
    agreements,
    distances,
    kept_lengths,
    log_deviations,
    mixing,
    radius_by_bits,
    spread_of,
    weighted_median,
)

NOTES = (
    Note("clip_factor", "Kept length of the update", "fraction", meaning="min(1, C / ||D_k||)."),
    Note("mixed_in", "Part in the mixed updates", meaning="Column sum of M: 1 on average, little for an outlier."),
    Note("capped_at", "Weight after the cap", "fraction", meaning="The cap of each site whose weight it limits."),
    Note("capped", "Weight beyond the cap", "fraction", meaning="What the cap takes from the site's weight."),
)


RECENT = 5
"""Rounds whose spread of norms counts, this one among them."""
FEWEST = 4
"""Sites from which on weights are capped: of fewer, 2 / K is more than half."""
FAR = 3.5
"""Robust standard deviations, and a difference, by which a mean cosine must be below the median site's."""
FAR_COSINE = 0.2
ROUNDING = 1e-9


def bounded(rule: Rule, bounds: Bounds) -> Rule:
    """``rule`` within ``bounds``; the rule itself where they bound nothing."""
    return rule if bounds == Bounds() else Bounded(rule, bounds)


VALUES = ("own_models", "counts_own", "alone", "caps", "donates", "wanted", "useful", "heeded", "needs")
METHODS = ("in_use", "missing", "caution", "unprotected")


def _of_rule(name: str) -> Any:
    """An attribute of ``Bounded`` that is the inner rule's."""
    return property(attrgetter(f"rule.{name}"))


@dataclass(frozen=True)
class Bounded(Rule):
    """A ``rule`` that sees clipped updates, and whose weights are capped before they are applied."""

    weighs_sums: ClassVar[bool] = False
    """Clipped sums over patients are those of no patients."""

    rule: Rule
    bounds: Bounds

    # What other rules say of their class, or of themselves, is the inner rule's here.
    own_models, counts_own, alone, caps, donates, wanted, useful, heeded, needs = map(_of_rule, VALUES)
    in_use, missing, caution, unprotected = map(_of_rule, METHODS)

    @property
    def notes(self) -> tuple[Note, ...]:  # type: ignore[override]  # as below
        """The rule's, and what the bounds take."""
        return (*self.rule.notes, *NOTES)

    def orders(self, state: State, site: str, info: Info) -> dict[str, float]:
        return self.rule.orders(_inner(state), site, info)

    def tensors_for(self, state: State, site: str, info: Info) -> dict[str, StateDict]:
        return self.rule.tensors_for(_inner(state), site, info)

    def anchor(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> StateDict | None:
        return self.rule.anchor(model, self._heard(replies, state, info).replies, _inner(state), info)

    def anchors(
        self, model: StateDict, replies: Sequence[Reply], state: State, info: Info
    ) -> Iterator[tuple[str, StateDict]]:
        if type(self.rule).anchor is Rule.anchor and type(self.rule).anchors is Rule.anchors:
            return iter(())
        return self.rule.anchors(model, self._heard(replies, state, info).replies, _inner(state), info)

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """The rule's outcome of clipped and mixed updates, with capped weights; notes hold what was taken.

        The weights are each site's part in the model: w M, where updates were mixed.
        """
        heard, notes, clip, mix, opposed = self._heard(replies, state, info)
        inner, cap = _inner(state), self._caps(replies, opposed)
        before: Weights = {}
        if isinstance(self.rule, Combining):
            before = self.rule.prior(heard)
            after = limited(before, cap)
            outcome = self.rule.combine(model, heard, after, inner)
        elif self.rule.caps:
            outcome = self.rule.aggregate(model, heard, inner, replace(info, cap=cap))
        else:
            outcome = self.rule.aggregate(model, heard, inner, info)
            if not self.bounds.uncappable(self.rule):
                before, after = outcome.weights, limited(outcome.weights, cap)
                if after != before:
                    outcome = replace(outcome, model=add_weighted(model, heard, after), weights=after)
        taken = {site: max(weight - after[site], 0.0) for site, weight in before.items()}
        if before and self.bounds.cap != SPREAD:
            notes = {**notes, "capped": taken}
        sites = [r.site for r in replies]
        weights = outcome.weights
        limits = cap if isinstance(cap, Mapping) else {}
        if at := {site: limit for site, limit in limits.items() if weights[site] >= limit * (1 - ROUNDING)}:
            notes = {**notes, "capped_at": at}
        if mix is not None:
            weights = dict(zip(sites, (np.array([weights[site] for site in sites]) @ mix).tolist()))
        kept = {"rule": outcome.state, "clip": clip}
        return replace(outcome, weights=weights, state=kept, notes={**outcome.notes, **notes})

    def heard(self, replies: Sequence[Reply], state: State, info: Info) -> Sequence[Reply]:
        """The replies with clipped updates; with the same factor, what a trainer's server half takes up."""
        if self.bounds.clip != SPREAD:
            return replies
        clipped, factors, _ = self._clipped(replies, state, info, *_lengths(replies))
        return [_with_tensors(r, factors.get(r.site, 1.0)) for r in clipped]

    def _caps(self, replies: Sequence[Reply], opposed: Collection[str]) -> float | dict[str, float]:
        """The largest weight of every site, or of each."""
        cap = self.bounds.cap_of(len(replies))
        if self.bounds.cap != SPREAD:
            return cap
        if len(replies) < FEWEST:
            return 1.0
        far, large = _far(replies), far_from_median({r.site: float(r.n_examples) for r in replies})
        caps = {r.site: cap / 2 if r.site in far or r.site in opposed else cap for r in replies}
        shares = {s: 0.0 if s in far or s in large else p for s, p in example_shares(replies).items()}
        return {site: max(caps[site], shares[site]) for site in caps}

    def _heard(self, replies: Sequence[Reply], state: State, info: Info) -> Heard:
        norms, opposed = _lengths(replies) if self.bounds.clip or self.bounds.cap == SPREAD else ({}, set[str]())
        heard, factors, clip = self._clipped(replies, state, info, norms, opposed)
        told = factors if self.bounds.clip != SPREAD else {site: kept for site, kept in factors.items() if kept < 1}
        notes: dict[str, Any] = {"clip_factor": told} if told else {}
        faulty = liars_among(len(replies), self.bounds.liars)
        if self.bounds.mix == "none" or not faulty:
            return Heard(heard, notes, clip, None, opposed)
        order = np.random.default_rng(info.round.number).permutation(len(replies))
        mix = mixing(self.bounds.mix, distances(heard), faulty, order)
        notes["mixed_in"] = dict(zip([r.site for r in replies], mix.sum(0).tolist()))
        mixed = [replace(r, update=View(r.update, partial(_mixed, heard, row))) for r, row in zip(heard, mix)]
        return Heard(mixed, notes, clip, mix, opposed)

    def _clipped(
        self, replies: Sequence[Reply], state: State, info: Info, norms: Mapping[str, float], opposed: Collection[str]
    ) -> tuple[list[Reply], dict[str, float], Mapping[str, Any]]:
        """The replies with clipped updates, the factors, and what is remembered of the radius."""
        before = state.get("clip", {})
        if not self.bounds.clip:
            return list(replies), {}, before
        if self.bounds.clip == SPREAD:
            away, last = log_deviations(norms), info.round.number - RECENT
            kept = {t: v for t, v in before.get("spread", {}).items() if int(t) > last}
            kept[str(info.round.number)] = torch.tensor(list(away.values()), dtype=torch.float64)
            factors = kept_lengths(away, torch.cat(list(kept.values())).tolist(), opposed)
            return [_scaled(r, factors.get(r.site, 1.0)) for r in replies], factors, {"spread": kept}
        within, after = self._radii(norms, replies, before)
        factors = {s: min(1.0, self.bounds.clip * within / norm) if norm > 0 else 1.0 for s, norm in norms.items()}
        heard = [_scaled(r, factors[r.site]) for r in replies]
        return heard, factors, {"radius": after} if after > 0 else before

    def _radii(
        self, norms: Mapping[str, float], replies: Sequence[Reply], before: Mapping[str, float]
    ) -> tuple[float, float]:
        """This round's radius, before its factor, and what the next round finds."""
        known, moving = before.get("radius", 0.0), {site: norm for site, norm in norms.items() if norm > 0}
        if not moving:
            return known, known
        if self.bounds.at == "bits" and known:
            return known, radius_by_bits(known, list(norms.values()))
        equal = self.bounds.at != "weighted"
        weights = {r.site: 1.0 if equal else float(r.n_examples) for r in replies}
        now = weighted_median(moving, weights)
        if self.bounds.at == "bits":
            return now, radius_by_bits(now, list(norms.values()))
        found = self.bounds.memory * known + (1 - self.bounds.memory) * now if known else now
        return found, found


class Heard(NamedTuple):
    """What the rule hears: the replies, notes, what is remembered of the radius, M where updates are mixed, and sites
    whose updates oppose the others'."""

    replies: list[Reply]
    notes: dict[str, Any]
    clip: Mapping[str, Any]
    mix: np.ndarray | None
    opposed: Collection[str]


def _lengths(replies: Sequence[Reply]) -> tuple[dict[str, float], set[str]]:
    """Site -> ||D_k||, and the sites whose mean cosine with the others is below 0 and far below the median site's."""
    norms = {r.site: norm_of(r) for r in replies}
    if len(replies) < FEWEST:
        return norms, set()
    agree = agreements(replies, norms)
    centre = float(np.median(list(agree.values())))
    least = min(centre - max(FAR * spread_of([a - centre for a in agree.values()]), FAR_COSINE), 0.0)
    return norms, {site for site, value in agree.items() if value < least}


def _far(replies: Sequence[Reply]) -> set[str]:
    """The sites of which a number is far from the other sites'; numbers that are all whole are counts."""
    numbers: dict[str, dict[str, float]] = {}
    for reply in replies:
        for name, value in reply.scalars.items():
            numbers.setdefault(name, {})[reply.site] = value
    told = (own for own in numbers.values() if not all(value.is_integer() for value in own.values()))
    return {site for own in told for site in far_from_median(own)}


def _with_tensors(reply: Reply, factor: float) -> Reply:
    """Every declared tensor scaled by ``factor``, too."""
    if factor == 1:
        return reply
    scaled = {name: {key: value * factor for key, value in one.items()} for name, one in reply.tensors.items()}
    return replace(reply, tensors=scaled)


def norm_of(reply: Reply) -> float:
    """||D_k|| over trainable entries."""
    keys = sorted(reply.trainable & set(reply.update))
    return math.sqrt(math.fsum(square_of(u) for key in keys for _, (u,) in blocks_of([reply], key)))


def _scaled(reply: Reply, factor: float) -> Reply:
    return replace(reply, update=View(reply.update, partial(_times, factor, reply.trainable))) if factor < 1 else reply


def _times(factor: float, trainable: frozenset[str], key: str, change: torch.Tensor) -> torch.Tensor:
    return change * factor if key in trainable else change


def _mixed(replies: Sequence[Reply], row: np.ndarray, key: str, _: torch.Tensor) -> torch.Tensor:
    """sum_j M_kj D_j for one entry, one site's at a time, in order of the sites."""
    total = torch.zeros(())
    for reply, part in zip(replies, row.tolist()):
        if part:
            change = reply.update[key]
            total = total.to(torch.promote_types(change.dtype, torch.float32)) + part * change
    return total


def _inner(state: State) -> State:
    found: State = state.get("rule", {})
    return found
