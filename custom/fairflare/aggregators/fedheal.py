# SPDX-License-Identifier: Apache-2.0
"""FedHEAL: drop a site's inconsistent parameter updates, and weigh sites by how far their updates reach.

FPHL (federated parameter-harmonised local updates), per position i and site m, u = D_m:

    l_{m,i}  share of m's rounds so far in which u_{m,i} >= 0 (this one included)
    c_{m,i}  = l_{m,i} where u_{m,i} >= 0, else 1 - l_{m,i};   keep where c_{m,i} >= tau
    w_i     += sum_m p_m u_{m,i} [keep] / sum_m p_m [keep]     unchanged where no site is kept

FAEL (fair aggregation by distance):

    d_m  = ||kept u_m||_2^2;   dp_m <- (1 - beta) dp_m + beta d_m / sum_j d_j;   p_m <- p_m + dp_m, normalised

which stands for the program that it simplifies, and that ``variant=exact`` solves: p >= 0, sum p = 1, minimal
Var_m(||sum_j p_j u_j - u_m||_2^2) (Eq. 10).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fairflare.aggregators.base import Outcome, State, WeighingRule, add_weighted, example_shares, limited, shares
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.core.validation import within
from fairflare.functional.blocks import BLOCK, blocks_of, gram, square_of
from fairflare.functional.consistency import Consistency
from fairflare.functional.directions import equalised


@method(
    "fedheal",
    title="FedHEAL",
    summary="Ignores inconsistent parameter updates and favours sites far from the model; for domain skew.",
    paper="Chen et al.: Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity. CVPR "
    "2024. https://arxiv.org/abs/2405.16585",
)
@dataclass(frozen=True)
class FedHEAL(WeighingRule):
    """Masked aggregation with distance-driven weights (Chen et al., arXiv:2405.16585, Eq. 5 to 12).

    Buffers are averaged with p and never masked. Wraps any trainer's update.

    Args:
        parts: "both", "fphl" (masks; p = n_k / n) or "fael" (weights; no masks).
        tau: least consistency of a kept update, >= 0; 0 keeps everything; above 1 drops everything.
        beta: share of this round's distances in the weight step, in [0, 1]; 0 leaves p at n_k / n, which is FedAvg.
        variant: "paper", or the authors' code as "reference": consistency is that of the rounds before this one, counts
            decreases or no change against increases, must exceed tau and masks running statistics too; d is the sum
            over parameter tensors of unsquared norms; p starts uniform and its unnormalised sum is carried. "exact":
            the paper, but FAEL's p is that of Eq. 10 from the whole updates, anew in each round; ``beta`` has no part.
    """

    caps: ClassVar[bool] = True
    notes = (Note("kept_share", "Kept share of the update", "fraction", meaning="Share of its positions that count."),)
    donates: ClassVar[bool] = True
    parts: Literal["both", "fphl", "fael"] = "both"
    tau: float = 0.3
    beta: float = 0.4
    variant: Literal["paper", "reference", "exact"] = "paper"

    def __post_init__(self) -> None:
        within(self, tau="[0, inf)", beta="[0, 1]")

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """p of this round from distances under the sites' masks, and the next state, made from a copy of ``state``."""
        zeros = {key: torch.zeros_like(value) for key, value in replies[0].update.items()}
        outcome = self.aggregate(zeros, replies, copy.deepcopy(state), info)
        return outcome.weights, outcome.state

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """The paper's step; two passes over the updates, since this round's distances change this round's weights."""
        sites, masks, distances = [r.site for r in replies], None, list[float]()
        if self.parts != "fael":
            masks = Consistency.of(replies, state, self.tau, self.variant == "reference")
        if masks is not None or self.variant != "exact":
            distances, kept = self._distances(replies, masks)
        weights, carried = self._fael(replies, dict(zip(sites, distances)), state)
        weights = limited(weights, info.cap)
        if masks is None:
            return Outcome(add_weighted(model, replies, weights), weights, carried)
        new = self._harmonised(model, replies, weights, masks)
        return Outcome(new, weights, {**masks.after(replies), **carried}, {"kept_share": dict(zip(sites, kept))})

    def _distances(self, replies: Sequence[Reply], masks: Consistency | None) -> tuple[list[float], list[float]]:
        """d_m of what ``masks`` keep (None: all), and the share of entries that is kept; counts this round (paper)."""
        keys = [key for key in replies[0].update if key in replies[0].trainable]
        squares, kept = np.zeros((len(keys), len(replies))), np.zeros(len(replies))
        for k, key in enumerate(keys):
            scratch = _scratch(replies, key)
            for block, updates in blocks_of(replies, key):
                for m, (reply, u) in enumerate(zip(replies, updates)):
                    if masks is None:
                        squares[k, m] += square_of(u)
                        continue
                    keep = masks.keep(reply.site, key, block, u, count=not masks.reference)
                    kept[m] += np.count_nonzero(keep)
                    masked = scratch[: len(u)]
                    np.copyto(masked, keep)
                    masked *= u
                    squares[k, m] += square_of(masked)
        size = sum(replies[0].update[key].numel() for key in keys)
        sums = (np.sqrt(squares) if self.variant == "reference" else squares).sum(0)
        return sums.tolist(), (kept / max(size, 1)).tolist()

    def _fael(
        self, replies: Sequence[Reply], distances: Mapping[str, float], state: State
    ) -> tuple[Weights, dict[str, Any]]:
        """This round's p and the carried p and dp; sites that are away keep theirs."""
        start = example_shares(replies)
        if self.parts == "fphl":
            return start, {}
        if self.variant == "exact":
            return dict(zip(start, equalised(gram(replies)).tolist())), {}
        carried, steps = dict(state.get("p", {})), dict(state.get("dp", {}))
        if self.variant == "reference":
            start = dict.fromkeys(start, 1 / len(start))
        present = _joined(start, carried)
        mass = 1.0 if self.variant == "reference" else sum(present.values())
        fresh = shares(distances)
        steps |= {site: (1 - self.beta) * steps.get(site, 0.0) + self.beta * fresh[site] for site in start}
        # p is a share of the sites that are here, as fresh is: both on the scale of 1.
        raw = {site: present[site] / mass + steps[site] for site in start}
        weights = shares(raw)
        if self.variant == "reference":
            return weights, {"p": {**carried, **raw}, "dp": steps}
        return weights, {"p": shares({**carried, **{s: mass * w for s, w in weights.items()}}), "dp": steps}

    def _harmonised(
        self, model: StateDict, replies: Sequence[Reply], weights: Weights, masks: Consistency
    ) -> StateDict:
        """w_i + sum over kept of p_m u_{m,i} / sum over kept of p_m; the other entries as a weighted mean."""
        masked = [key for key in model if masks.masks(key)]
        result = add_weighted({k: v for k, v in model.items() if k not in masked}, replies, weights)
        for key in masked:
            total = model[key].to(torch.promote_types(model[key].dtype, torch.float32), copy=True)
            flat, scratch = total.view(-1).numpy(), _scratch(replies, key)
            for block, updates in blocks_of(replies, key):
                mass, step = np.zeros_like(flat[block]), np.zeros_like(flat[block])
                for reply, u in zip(replies, updates):
                    keep = masks.keep(reply.site, key, block, u, count=masks.reference)
                    share = scratch[: len(u)]
                    np.copyto(share, keep)
                    share *= weights[reply.site]
                    mass += share
                    share *= u
                    step += share
                # Where nobody is kept the step is 0 as well.
                flat[block] += np.divide(step, mass, out=step, where=mass > 0)
            result[key] = total.to(model[key].dtype)
        return {key: result[key] for key in model}


def _joined(start: Weights, carried: Mapping[str, float]) -> Weights:
    """p of the sites that are here; a newcomer stands to those that are known as its ``start`` stands to theirs."""
    known = [site for site in start if site in carried]
    scale = sum(carried[s] for s in known) / sum(start[s] for s in known) if known else 1.0
    return {site: carried.get(site, scale * share) for site, share in start.items()}


def _scratch(replies: Sequence[Reply], key: str) -> np.ndarray:
    """Room for one block, in float32 or wider: a new array per block and site would cost as much as its contents."""
    wide = replies[0].update[key].dtype == torch.float64
    return np.empty(min(BLOCK, replies[0].update[key].numel()), dtype=np.float64 if wide else np.float32)
