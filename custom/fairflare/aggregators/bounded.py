# SPDX-License-Identifier: Apache-2.0
"""Bounds on what one site can do, around any rule: updates are clipped to a common length, weights are capped.

clip    D_k <- D_k min(1, C / ||D_k||)      over trainable entries; C = factor times the median norm of those that moved
cap     weights above c get c, the others keep their proportions and share what is left, until none is above

The order is reject (the gate), clip, cap, combine (the rule), step (the server optimizer).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from fairflare.aggregators.base import (
    Outcome,
    Rule,
    State,
    add_weighted,
)
from fairflare.aggregators.bounds import Bounds, Combining
from fairflare.aggregators.own import View
from fairflare.core.notes import Note
from fairflare.core.types import Info, Need, Offer, Reply, StateDict, Training, Weights
from fairflare.functional.blocks import blocks_of, square_of
from fairflare.functional.robust import capped, radius_by_bits, weighted_median

NOTES = (
    Note("clip_factor", "Kept length of the update", "fraction", meaning="min(1, C / ||D_k||)."),
    Note("capped", "Weight beyond the cap", "fraction", meaning="What the cap takes from the site's weight."),
)


def bounded(rule: Rule, bounds: Bounds) -> Rule:
    """``rule`` within ``bounds``; the rule itself where they bound nothing."""
    return rule if bounds == Bounds() else Bounded(rule, bounds)


@dataclass(frozen=True)
class Bounded(Rule):
    """A rule that sees clipped updates, and whose weights are capped before they are applied.

    Args:
        rule: says everything but that.
        bounds: of every site.
    """

    weighs_sums: ClassVar[bool] = False
    """Clipped sums over patients are those of no patients."""

    rule: Rule
    bounds: Bounds

    @property
    def notes(self) -> tuple[Note, ...]:  # type: ignore[override]  # what other rules say of their class is the rule's here
        """The rule's, and what the bounds take."""
        return (*self.rule.notes, *NOTES)

    @property
    def own_models(self) -> bool:  # type: ignore[override]  # as ``notes``
        """The rule's."""
        return self.rule.own_models

    @property
    def counts_own(self) -> bool:  # type: ignore[override]  # as ``notes``
        """The rule's."""
        return self.rule.counts_own

    def in_use(self, model: StateDict, models: Mapping[str, StateDict], sites: Iterable[str]) -> dict[str, StateDict]:
        return self.rule.in_use(model, models, sites)

    @property
    def alone(self) -> bool:  # type: ignore[override]  # as ``notes``
        """The rule's."""
        return self.rule.alone

    @property
    def donates(self) -> bool:  # type: ignore[override]  # as ``notes``
        """The rule's."""
        return self.rule.donates

    @property
    def wanted(self) -> tuple[str, ...]:
        return self.rule.wanted

    @property
    def useful(self) -> tuple[str, ...]:
        return self.rule.useful

    @property
    def heeded(self) -> tuple[str, ...]:
        return self.rule.heeded

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.rule.needs

    def missing(self, offer: Offer) -> str:
        return self.rule.missing(offer)

    def caution(self, training: Training) -> str:
        return self.rule.caution(training)

    def unprotected(self, sites: int) -> str:
        return self.rule.unprotected(sites)

    def orders(self, state: State, site: str, info: Info) -> dict[str, float]:
        return self.rule.orders(_inner(state), site, info)

    def tensors_for(self, state: State, site: str, info: Info) -> dict[str, StateDict]:
        return self.rule.tensors_for(_inner(state), site, info)

    def anchor(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> StateDict | None:
        return self.rule.anchor(model, self._clipped(replies, state)[0], _inner(state), info)

    def anchors(
        self, model: StateDict, replies: Sequence[Reply], state: State, info: Info
    ) -> Iterator[tuple[str, StateDict]]:
        if type(self.rule).anchor is Rule.anchor and type(self.rule).anchors is Rule.anchors:
            return iter(())
        return self.rule.anchors(model, self._clipped(replies, state)[0], _inner(state), info)

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """The rule's outcome of clipped updates, with capped weights; notes hold what was taken."""
        heard, factors, clip = self._clipped(replies, state)
        inner = _inner(state)
        if isinstance(self.rule, Combining):
            before = self.rule.prior(heard)
            after = self._capped(before)
            outcome = self.rule.combine(model, heard, after, inner)
        else:
            outcome = self.rule.aggregate(model, heard, inner, info)
            before, after = outcome.weights, self._capped(outcome.weights)
            if after != before:
                outcome = replace(outcome, model=add_weighted(model, heard, after), weights=after)
        taken = {site: max(weight - after[site], 0.0) for site, weight in before.items()}
        notes = {**outcome.notes, **({"clip_factor": factors} if factors else {}), "capped": taken}
        return replace(outcome, state={"rule": outcome.state, "clip": clip}, notes=notes)

    def _capped(self, weights: Weights) -> Weights:
        positive = sum(1 for w in weights.values() if w > 0)
        if self.bounds.cap == 1 or all(w <= self.bounds.cap for w in weights.values()):
            return weights
        if self.bounds.cap * positive <= 1:
            return {site: 1 / positive if w > 0 else 0.0 for site, w in weights.items()}
        return capped(weights, self.bounds.cap)

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


def _inner(state: State) -> State:
    found: State = state.get("rule", {})
    return found
