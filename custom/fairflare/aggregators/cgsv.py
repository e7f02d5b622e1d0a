# SPDX-License-Identifier: Apache-2.0
"""CGSV: reputations from cosines with the aggregate, and for each site the part of the aggregate that it has earned.

u_k = Gamma D_k / ||D_k||        u = sum_k r_k u_k            r = n_k / n in the first round
r_k <- alpha r_k + (1 - alpha) cos(u_k, u), at least 0.001, normalised
q_k = tanh(beta r_k) / max_j tanh(beta r_j)
v_k <- v_k + top q_k of each layer of u      v_k: site k's own model, which its own update does not move
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, example_shares, filled, shares
from fairflare.aggregators.own import from_shared, moved
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Paper, Reply, StateDict, Weights
from fairflare.core.validation import Range, within
from fairflare.functional.blocks import gram
from fairflare.functional.largest import at_least, layer_bounds

FLOOR = 1e-3
"""Least reputation before it is normalised."""
TINY = 1e-7


@method(
    "cgsv",
    title="CGSV",
    summary="A model per site; sites whose updates agree with the aggregate receive more of it.",
    paper=Paper.cited(
        "Xu et al.: Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning. NeurIPS 2021. "
        "https://proceedings.neurips.cc/paper/2021/hash/8682cc30db9c025ecd3fee433f8ab54c-Abstract.html"
    ),
)
@dataclass(frozen=True)
class CGSV(Rule):
    """Gradient-driven rewards (Xu et al., NeurIPS 2021, Eq. 1 to 5); a model for each site.

    Updates are compared and masked over trainable parameters; a site's running statistics stay its own. The shared
    model, which no site is sent once it has one of its own, takes all of u.

    Args:
        alpha: share of the past in the reputations, in [0, 1).
        beta: how evenly rewards are spread, > 0: the larger, the more even.
        step: Gamma > 0, the length of every u_k; the size of a site's update has no effect.
        variant: "reference" is the authors' mask, which drops at least one entry of each layer, at q = 1 too.
    """

    notes: ClassVar[tuple[Note, ...]] = (
        Note("reputation", "Reputation", "fraction", shares=True, meaning="r_k after the round."),
        Note("cosine", "Cosine with the aggregate", chart="table", meaning="cos(u_k, u), the estimated contribution."),
        Note("received", "Received share of the aggregate", "fraction", meaning="q_k, the part of each layer of u."),
    )
    own_models = counts_own = True
    alpha: Annotated[float, Range(0, 1)] = 0.95
    beta: Annotated[float, Range(0, 1e6)] = 1.0
    step: Annotated[float, Range(0, 1e6)] = 0.5
    variant: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        within(self, alpha="[0, 1)", beta="(0, inf)", step="(0, inf)")

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """As above; the weights are r before the round. State: "reputation", site -> r > 0."""
        before = state.get("reputation", {})
        weights = self._weights(replies, before)
        factors, cosines = self._compared(replies, weights)
        reputation = self._earned(before, cosines)
        received = self._received(reputation)
        zeros = {key: torch.zeros_like(value) for key, value in model.items() if key in replies[0].trainable}
        step = add_weighted(zeros, replies, factors)
        own = self._own(model, replies, step, received, info)
        rest = {key: value for key, value in model.items() if key not in step}
        local = [from_shared(r, model, info) for r in replies]
        after = add_weighted(rest, local, weights) | {key: model[key] + change for key, change in step.items()}
        notes = {"reputation": shares(reputation), "cosine": cosines, "received": received}
        following = {"reputation": {**before, **reputation}}
        return Outcome({key: after[key] for key in model}, weights, following, notes, own)

    def _weights(self, replies: Sequence[Reply], before: Mapping[str, float]) -> Weights:
        """r over the sites that are here; n_k / n in the first round, and the others' mean for who is new later."""
        if not before:
            return example_shares(replies)
        return shares(filled({r.site: before.get(r.site) for r in replies}))

    def _compared(self, replies: Sequence[Reply], weights: Weights) -> tuple[Weights, dict[str, float]]:
        """What each update is multiplied by in u, and its cosine with u; 0 for an update of zero."""
        products = gram(replies)
        lengths = np.sqrt(np.maximum(np.diag(products), 0))
        factors = np.array([weights[r.site] for r in replies]) * self.step / (lengths + TINY)
        whole = math.sqrt(max(float(factors @ products @ factors), 0.0))
        scale = lengths * whole
        cosines = np.divide(products @ factors, scale, out=np.zeros_like(scale), where=scale > 0)
        sites = [r.site for r in replies]
        return dict(zip(sites, factors.tolist())), dict(zip(sites, np.clip(cosines, -1, 1).tolist()))

    def _earned(self, before: Mapping[str, float], cosines: Mapping[str, float]) -> dict[str, float]:
        """r of the sites that are here; together they keep what they had together."""
        old = filled({site: before.get(site) for site in cosines}) if before else dict.fromkeys(cosines, 0.0)
        new = {site: max(self.alpha * old[site] + (1 - self.alpha) * c, FLOOR) for site, c in cosines.items()}
        mass = sum(old.values()) or 1.0
        return {site: mass * share for site, share in shares(new).items()}

    def _received(self, reputation: Mapping[str, float]) -> dict[str, float]:
        earned = {site: math.tanh(self.beta * r) for site, r in reputation.items()}
        most = max(earned.values())
        return {site: value / most if most > 0 else 1.0 for site, value in earned.items()}

    def _own(
        self, model: StateDict, replies: Sequence[Reply], step: StateDict, received: Weights, info: Info
    ) -> dict[str, StateDict]:
        """Site -> its next model."""
        drop = self.variant == "reference"
        fractions = [received[r.site] for r in replies]
        limits = {key: layer_bounds(change, fractions, drop) for key, change in step.items()}

        def part(k: int, key: str) -> torch.Tensor:
            return at_least(step[key], limits[key][k])

        return {r.site: moved(r, model, info, partial(part, k)) for k, r in enumerate(replies)}
