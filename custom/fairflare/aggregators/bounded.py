# SPDX-License-Identifier: Apache-2.0
"""Bounds on what one site can do, around any rule: updates are clipped to a common length, weights are capped.

clip    D_k <- D_k min(1, C / ||D_k||)      over trainable entries; C = factor times the median norm of those that moved
mix     D_k <- sum_j M_kj D_j               all entries; M >= 0 with rows that sum to 1, from the updates' distances
cap     weights above c get c, the others keep their proportions and share what is left, until none is above

The default ("spread") acts on what stands out alone. A norm is held against the one expected of the site's number of
examples (``functional.robust.expected_norms``), and the update scaled down where it is beyond the spread over the sites
and the last rounds (``functional.robust.kept_lengths``). A site weighs at most c / K or its share of the examples,
whichever is more, with c from 1.5 to 2, see ``widened``; where its update is longer than expected, that times expected
by norm. A number of examples that is far more than the others' counts as the largest that is not.

A direction stands out where its mean cosine with the others is far below the median site's, in the round or on average
over its rounds. Then the site weighs at most 0.75 / K or its share. Where that cosine is below 0, too, the update
opposes the others': the site weighs at most 0.75 / K whatever its share, and its update is no longer than expected.
Both begin at half of that distance and grow with it: liars would stay just inside a hard edge.
Where numbers that a site reports are far from the others', it weighs at most 0.75 / K.

The order is reject (the gate), clip, mix, cap, combine (the rule), step (the server optimizer).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    liars_among,
    limited,
    shares,
)
from fairflare.aggregators.own import Shortened, View
from fairflare.core.notes import Note
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.functional.blocks import blocks_of, square_of
from fairflare.functional.outliers import far_from_median, winsorised
from fairflare.functional.robust import (
    BOUND,
    agreements,
    distances,
    expected_norms,
    kept_lengths,
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


UNBOUNDED = Bounds()
RECENT = 5
"""Rounds whose spread of norms counts, this one among them."""
FEWEST = 4
"""Sites from which on weights are capped: of fewer, 1.5 / K is half or more."""
FAR, FAR_COSINE = 3.5, 0.2
"""Robust standard deviations, and a difference, by which a mean cosine must be below the median site's. Of fewer than
eight sites it takes more: the mean of K - 1 cosines scatters by 1 / sqrt(K - 1)."""
NEWEST = 0.3
"""Part of the newest round in what is remembered of a site's direction."""
ROUNDING = 1e-9


def bounded(rule: Rule, bounds: Bounds) -> Rule:
    """``rule`` within ``bounds``; the rule itself where they bound nothing."""
    return rule if bounds == UNBOUNDED else Bounded(rule, bounds)


VALUES = ("own_models", "counts_own", "ends_apart", "alone", "caps", "donates", "wanted", "useful", "heeded", "needs")
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
    own_models, counts_own, ends_apart, alone, caps, donates, wanted, useful, heeded, needs = map(_of_rule, VALUES)
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
        heard, notes, clip, mix, lengths = self._heard(replies, state, info)
        inner = _inner(state)
        before: Weights = {}
        if isinstance(self.rule, Combining):
            before = self.rule.prior(heard)
            cap = self._caps(replies, lengths, before)
            after = limited(before, cap)
            outcome = self.rule.combine(model, heard, after, inner)
        elif self.rule.caps:
            cap = self._caps(replies, lengths, {})
            outcome = self.rule.aggregate(model, heard, inner, replace(info, cap=cap))
        else:
            outcome = self.rule.aggregate(model, heard, inner, info)
            cap = self._caps(replies, lengths, outcome.weights)
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
        at = {site: limit for site, limit in limits.items() if weights[site] >= limit * (1 - ROUNDING)}
        if at := {site: limit for site, limit in at.items() if not before or before[site] > limit * (1 + ROUNDING)}:
            notes = {**notes, "capped_at": at}
        if mix is not None:
            weights = dict(zip(sites, (np.array([weights[site] for site in sites]) @ mix).tolist()))
        kept = {"rule": outcome.state, "clip": clip}
        return replace(outcome, weights=weights, state=kept, notes={**outcome.notes, **notes})

    def heard(self, replies: Sequence[Reply], state: State, info: Info) -> Sequence[Reply]:
        """The replies with clipped updates; with the same factor, what a trainer's server half takes up."""
        if self.bounds.clip != SPREAD:
            return replies
        clipped, factors, _ = self._clipped(replies, state, info, self._lengths(replies, state))
        return [_with_tensors(r, factors.get(r.site, 1.0)) for r in clipped]

    def _caps(self, replies: Sequence[Reply], lengths: Lengths, weights: Weights) -> float | dict[str, float]:
        """The largest weight of every site, or of each; ``weights`` are the rule's own, {} where they are unknown."""
        cap = self.bounds.cap_of(len(replies))
        if self.bounds.cap != SPREAD:
            return cap
        if len(replies) < FEWEST:
            return 1.0
        far, low, high = _far(replies), cap / 2, cap * widened(weights)
        caps = {s: (low + (high - low) * part) * lengths.shortness(s) for s, part in lengths.standing.items()}
        caps |= {site: min(caps[site], low) for site in far}
        sharing = {**lengths.sharing, **dict.fromkeys(far, 0.0)}
        examples = shares(counts_of(replies))
        return {s: max(caps[s], examples[s] * sharing[s] * lengths.shortness(s)) for s in caps}

    def _lengths(self, replies: Sequence[Reply], state: State) -> Lengths:
        before: Mapping[str, Any] = state.get("clip", {}).get("directions", {})
        by_spread = SPREAD in (self.bounds.clip, self.bounds.cap)
        return lengths_of(replies, before, by_spread) if self.bounds.clip or by_spread else Lengths()

    def _heard(self, replies: Sequence[Reply], state: State, info: Info) -> Heard:
        lengths = self._lengths(replies, state)
        heard, factors, clip = self._clipped(replies, state, info, lengths)
        told = factors if self.bounds.clip != SPREAD else {site: kept for site, kept in factors.items() if kept < 1}
        notes: dict[str, Any] = {"clip_factor": told} if told else {}
        faulty = liars_among(len(replies), self.bounds.liars)
        if self.bounds.mix == "none" or not faulty:
            return Heard(heard, notes, clip, None, lengths)
        order = np.random.default_rng(info.round.number).permutation(len(replies))
        mix = mixing(self.bounds.mix, distances(heard), faulty, order)
        notes["mixed_in"] = dict(zip([r.site for r in replies], mix.sum(0).tolist()))
        mixed = [replace(r, update=View(r.update, partial(_mixed, heard, row))) for r, row in zip(heard, mix)]
        return Heard(mixed, notes, clip, mix, lengths)

    def _clipped(
        self, replies: Sequence[Reply], state: State, info: Info, lengths: Lengths
    ) -> tuple[list[Reply], dict[str, float], Mapping[str, Any]]:
        """The replies with clipped updates, the factors, and what is remembered of norms and directions."""
        before = state.get("clip", {})
        kept: dict[str, Any] = {"directions": lengths.directions} if lengths.directions else {}
        if not self.bounds.clip:
            return list(replies), {}, kept or before
        if self.bounds.clip == SPREAD:
            moved, last = [s for s, norm in lengths.norms.items() if norm > 0], info.round.number - RECENT
            away = {s: math.log(lengths.norms[s] / lengths.expected[s]) for s in moved if len(moved) > 2}
            spread = {t: v for t, v in before.get("spread", {}).items() if int(t) > last}
            spread[str(info.round.number)] = torch.tensor(list(away.values()), dtype=torch.float64)
            factors = kept_lengths(away, torch.cat(list(spread.values())).tolist())
            factors |= {s: min(factors[s], lengths.shortness(s)) for s in factors if lengths.sharing.get(s) == 0}
            return [_scaled(r, factors.get(r.site, 1.0)) for r in replies], factors, {**kept, "spread": spread}
        within, after = self._radii(lengths.norms, replies, before)
        factors = {
            s: min(1.0, self.bounds.clip * within / norm) if norm > 0 else 1.0 for s, norm in lengths.norms.items()
        }
        heard = [_scaled(r, factors[r.site]) for r in replies]
        return heard, factors, {**kept, "radius": after} if after > 0 else {**before, **kept}

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


@dataclass(frozen=True)
class Lengths:
    """Norms and directions of a round's updates.

    Attributes:
        norms: site -> ||D_k|| over trainable entries.
        expected: site -> the norm that an update of so many examples has, see ``functional.robust.expected_norms``.
        standing: site -> 1 where its direction does not stand out, 0 where it does, in between from half of that on.
        sharing: site -> the same of directions against the others', 1 of all others.
        directions: site -> what is remembered of its rounds, see ``lengths_of``.
    """

    norms: Mapping[str, float] = field(default_factory=dict)
    expected: Mapping[str, float] = field(default_factory=dict)
    standing: Mapping[str, float] = field(default_factory=dict)
    sharing: Mapping[str, float] = field(default_factory=dict)
    directions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def shortness(self, site: str) -> float:
        """min(1, expected norm / own norm)."""
        norm = self.norms[site]
        return min(1.0, self.expected[site] / norm) if norm > 0 else 1.0


class Heard(NamedTuple):
    """What the rule hears: the replies, notes, what is remembered of earlier rounds, M where updates are mixed, and
    what was measured of the updates."""

    replies: list[Reply]
    notes: dict[str, Any]
    clip: Mapping[str, Any]
    mix: np.ndarray | None
    lengths: Lengths


def lengths_of(
    replies: Sequence[Reply], before: Mapping[str, Mapping[str, float]], by_direction: bool = True
) -> Lengths:
    """Norms, and which directions stand out, by the mean cosine a_k of each update with the others'.

    depth     d_k = (a_k - median a) / max(3.5 s, 0.2 sqrt(7 / (K - 1)), 0.2)     s: robust standard deviation of a
    standing  2 + 2 d_k within [0, 1]
    sharing   the same where a_k < 0, else 1

    in the round, or, if less, of the exponential means of d_k and a_k over the site's rounds (0.3 for the newest).

    Args:
        before: site -> "depth" and "cosine", those means up to the round before.
    """
    norms = {r.site: norm_of(r) for r in replies}
    expected = expected_norms(norms, counts_of(replies)) if by_direction else {}
    if len(replies) < FEWEST or not by_direction:
        return Lengths(norms, expected)
    cosines = agreements(replies, norms)
    centre = float(np.median(list(cosines.values())))
    least = FAR_COSINE * math.sqrt(max(7 / (len(replies) - 1), 1.0))
    scale = max(FAR * spread_of([a - centre for a in cosines.values()]), least)
    now = {site: {"depth": (a - centre) / scale, "cosine": a} for site, a in cosines.items()}
    means = {
        site: {name: value + (1 - NEWEST) * (before[site][name] - value) for name, value in own.items()}
        if site in before
        else own
        for site, own in now.items()
    }
    standing, sharing = dict.fromkeys(norms, 1.0), dict.fromkeys(norms, 1.0)
    for site, view in [(site, view[site]) for view in (now, means) for site in norms]:
        part = min(max(2 + 2 * view["depth"], 0.0), 1.0)
        standing[site] = min(standing[site], part)
        sharing[site] = min(sharing[site], part if view["cosine"] < 0 else 1.0)
    return Lengths(norms, expected, standing, sharing, {**before, **means})


def widened(weights: Weights) -> float:
    """How many times 1.5 / K the cap is: exp(2.5 s) / 1.5 within [1, 4/3], s the robust standard deviation of the log
    weights that the rule gives. Where most sites weigh differently, a large weight says little."""
    logs = np.log([weight for weight in weights.values() if weight > 0] or [1.0])
    return min(max(math.exp(BOUND * spread_of(logs - np.median(logs))) / 1.5, 1.0), 4 / 3)


def counts_of(replies: Sequence[Reply]) -> dict[str, float]:
    """Site -> its examples, of which a number that stands out counts as the largest that does not."""
    return winsorised({r.site: float(max(r.n_examples, 1)) for r in replies})


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
    change = partial(_times, factor, reply.trainable)
    return replace(reply, update=Shortened(reply.update, change)) if factor < 1 else reply


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
