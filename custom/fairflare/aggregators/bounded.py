# SPDX-License-Identifier: Apache-2.0
"""Bounds on what one site can do, around any rule: updates are clipped to a common length, weights are capped.

clip    D_k <- D_k min(1, C / ||D_k||)      over trainable entries; C = factor times the median norm of those that moved
mix     D_k <- sum_j M_kj D_j               all entries; M >= 0 with rows that sum to 1, from the updates' distances
cap     weights above c get c, the others keep their proportions and share what is left, until none is above

The order is reject (the gate), clip, mix, cap, combine (the rule), step (the server optimizer).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch

from fairflare.aggregators.base import Bounds, Combining, Outcome, Rule, State, add_weighted, liars_among, limited
from fairflare.aggregators.own import View
from fairflare.core.notes import Note
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.functional.blocks import blocks_of, square_of
from fairflare.functional.robust import distances, mixing, radius_by_bits, weighted_median

NOTES = (
    Note("clip_factor", "Kept length of the update", "fraction", meaning="min(1, C / ||D_k||)."),
    Note("mixed_in", "Part in the mixed updates", meaning="Column sum of M: 1 on average, little for an outlier."),
    Note("capped", "Weight beyond the cap", "fraction", meaning="What the cap takes from the site's weight."),
)


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
        return self.rule.anchor(model, self._heard(replies, state, info)[0], _inner(state), info)

    def anchors(
        self, model: StateDict, replies: Sequence[Reply], state: State, info: Info
    ) -> Iterator[tuple[str, StateDict]]:
        if type(self.rule).anchor is Rule.anchor and type(self.rule).anchors is Rule.anchors:
            return iter(())
        return self.rule.anchors(model, self._heard(replies, state, info)[0], _inner(state), info)

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """The rule's outcome of clipped and mixed updates, with capped weights; notes hold what was taken.

        The weights are each site's part in the model: w M, where updates were mixed.
        """
        heard, notes, clip, mix = self._heard(replies, state, info)
        inner, cap = _inner(state), self.bounds.cap_of(len(replies))
        before: Weights = {}
        if isinstance(self.rule, Combining):
            before = self.rule.prior(heard)
            after = limited(before, cap)
            outcome = self.rule.combine(model, heard, after, inner)
        elif self.rule.caps:
            outcome = self.rule.aggregate(model, heard, inner, replace(info, cap=cap))
        else:
            outcome = self.rule.aggregate(model, heard, inner, info)
            if not Bounds(cap=cap).uncappable(self.rule):
                before, after = outcome.weights, limited(outcome.weights, cap)
                if after != before:
                    outcome = replace(outcome, model=add_weighted(model, heard, after), weights=after)
        if before:
            notes = {**notes, "capped": {site: max(weight - after[site], 0.0) for site, weight in before.items()}}
        sites = [r.site for r in replies]
        weights = outcome.weights
        if mix is not None:
            weights = dict(zip(sites, (np.array([weights[site] for site in sites]) @ mix).tolist()))
        taken = {"rule": outcome.state, "clip": clip}
        return replace(outcome, weights=weights, state=taken, notes={**outcome.notes, **notes})

    def _heard(
        self, replies: Sequence[Reply], state: State, info: Info
    ) -> tuple[list[Reply], dict[str, Any], Mapping[str, Any], np.ndarray | None]:
        """What the rule hears, the notes, what is remembered of the radius, and M where updates are mixed."""
        heard, factors, clip = self._clipped(replies, state)
        notes: dict[str, Any] = {"clip_factor": factors} if factors else {}
        faulty = liars_among(len(replies), self.bounds.liars)
        if self.bounds.mix == "none" or not faulty:
            return heard, notes, clip, None
        order = np.random.default_rng(info.round.number).permutation(len(replies))
        mix = mixing(self.bounds.mix, distances(heard), faulty, order)
        notes["mixed_in"] = dict(zip([r.site for r in replies], mix.sum(0).tolist()))
        mixed = [replace(r, update=View(r.update, partial(_mixed, heard, row))) for r, row in zip(heard, mix)]
        return mixed, notes, clip, mix

    def _clipped(
        self, replies: Sequence[Reply], state: State
    ) -> tuple[list[Reply], dict[str, float], Mapping[str, Any]]:
        """The replies with clipped updates, the factors, and what is remembered of the radius."""
        before = state.get("clip", {})
        if not self.bounds.clip:
            return list(replies), {}, before
        norms = {r.site: norm_of(r) for r in replies}
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
