# SPDX-License-Identifier: Apache-2.0
"""FedHEAL: drop a site's inconsistent parameter updates, and weigh sites by how far their updates reach.

FPHL (federated parameter-harmonised local updates), per position i and site m, u = D_m:

    l_{m,i}  share of m's rounds so far in which u_{m,i} >= 0 (this one included)
    c_{m,i}  = l_{m,i} where u_{m,i} >= 0, else 1 - l_{m,i};   keep where c_{m,i} >= tau
    w_i     += sum_m p_m u_{m,i} [keep] / sum_m p_m [keep]     unchanged where no site is kept

FAEL (fair aggregation by distance):

    d_m  = ||kept u_m||_2^2;   dp_m <- (1 - beta) dp_m + beta d_m / sum_j d_j;   p_m <- p_m + dp_m, normalised
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fairflare.contracts import Paper, Reply, Round, StateDict, Weights
from fairflare.registry import method
from fairflare.rules.base import Outcome, Rule, State, add_weighted, example_shares, shares, uniform

BLOCK = 1 << 15
"""Positions worked on at once: the updates of 20 sites there fill 2.6 MB, about what stays in cache."""
COUNTER = torch.int16
MOST_ROUNDS = torch.iinfo(COUNTER).max

FEDHEAL = Paper(
    authors="Chen et al.",
    title="Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity",
    venue="CVPR",
    year=2024,
    url="https://arxiv.org/abs/2405.16585",
)


@method(
    "fedheal",
    title="FedHEAL",
    summary="Ignores inconsistent parameter updates and favours sites far from the model; for domain skew.",
    paper=FEDHEAL,
)
@dataclass(frozen=True)
class FedHEAL(Rule):
    """Masked aggregation with distance-driven weights (Chen et al., arXiv:2405.16585, Eq. 5 to 12).

    Buffers are averaged with p and never masked. Wraps any trainer's update.

    Args:
        parts: "both", "fphl" (masks; p = n_k / n) or "fael" (weights; no masks).
        tau: least consistency of a kept update, >= 0; 0 keeps everything; above 1 drops everything.
        beta: share of this round's distances in the weight step, in [0, 1]; 0 leaves p at n_k / n, which is FedAvg.
        variant: "paper", or the authors' code as "reference": consistency is that of the rounds before this one, counts
            decreases or no change against increases, must exceed tau and masks running statistics too; d is the sum
            over parameter tensors of unsquared norms; p starts uniform and its unnormalised sum is carried.
    """

    parts: Literal["both", "fphl", "fael"] = "both"
    tau: float = 0.3
    beta: float = 0.4
    variant: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        if not 0 <= self.tau < math.inf:
            raise ValueError(f"tau must be finite and >= 0, got {self.tau}")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must be in [0, 1], got {self.beta}")

    def weigh(self, replies: Sequence[Reply], state: State, round: Round) -> tuple[Weights, State]:
        """p of this round from distances under ``replies``' own masks; see ``aggregate``."""
        outcome = self.aggregate({k: torch.zeros_like(v) for k, v in replies[0].update.items()}, replies, state, round)
        return outcome.weights, outcome.state

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, round: Round) -> Outcome:
        """The paper's step; two passes over the updates, since this round's distances change this round's weights.

        The counters in ``state`` are advanced in place: a second history would double the server's memory.
        """
        names = [r.site for r in replies]
        masked = self.parts != "fael"
        history, rounds = dict(state.get("history", {})), dict(state.get("rounds", {}))
        if masked:
            self._begin(replies, history, rounds)
        scores, kept = self._distances(replies, history, rounds, masked)
        weights, fael = self._fael(replies, dict(zip(names, scores)), state)
        if masked:
            new = self._harmonised(model, replies, weights, history, rounds)
            rounds |= {name: rounds[name] + 1 for name in names}
        else:
            new = add_weighted(model, replies, weights)
        notes = {"kept_share": dict(zip(names, kept))} if masked else {}
        return Outcome(new, weights, {"history": history, "rounds": rounds, **fael}, notes)

    def _begin(self, replies: Sequence[Reply], history: dict[str, Any], rounds: dict[str, int]) -> None:
        """Counters of zero for sites that are here for the first time; this round is counted in the first pass."""
        for reply in replies:
            if rounds.setdefault(reply.site, 0) >= MOST_ROUNDS:
                raise OverflowError(f"site {reply.site}: {MOST_ROUNDS} rounds, more than the counters hold")
            keys = self._masked_keys(reply)
            history.setdefault(reply.site, {key: torch.zeros(reply.update[key].numel(), dtype=COUNTER) for key in keys})

    def _masked_keys(self, reply: Reply) -> list[str]:
        return [key for key in reply.update if self.variant == "reference" or key in reply.trainable]

    def _distances(
        self, replies: Sequence[Reply], history: Mapping[str, Any], rounds: Mapping[str, int], masked: bool
    ) -> tuple[list[float], list[float]]:
        """d_m per reply, and the share of its trainable entries that are kept; counts this round (paper form)."""
        keys = [key for key in replies[0].update if key in replies[0].trainable] if replies[0].trainable else []
        squares = torch.zeros(len(keys), len(replies), dtype=torch.float64)
        kept = torch.zeros(len(replies), dtype=torch.float64)
        for k, key in enumerate(keys):
            for block, updates in _blocks(replies, key):
                if masked:
                    keep = self._keep(updates, replies, history, rounds, key, block, count=self.variant == "paper")
                    kept += keep.sum(1)
                    updates = updates.mul_(keep)
                squares[k] += _row_squares(updates)
        size = sum(replies[0].update[key].numel() for key in keys)
        totals = squares.sqrt().sum(0) if self.variant == "reference" else squares.sum(0)
        return totals.tolist(), (kept / max(size, 1)).tolist()

    def _keep(
        self,
        updates: Tensor,
        replies: Sequence[Reply],
        history: Mapping[str, Any],
        rounds: Mapping[str, int],
        key: str,
        block: slice,
        *,
        count: bool,
    ) -> Tensor:
        """bool (K, B): whose updates are consistent; ``count`` adds this round to the counters first."""
        reference = self.variant == "reference"
        ahead = updates <= 0 if reference else updates >= 0
        keep = torch.empty_like(ahead)
        for m, reply in enumerate(replies):
            counter = history[reply.site][key][block]
            if count:
                counter += ahead[m]
            seen = rounds[reply.site] + (0 if reference else 1)
            if not seen:
                keep[m] = True
                continue
            least = _least_count(seen, self.tau, strict=reference)
            # c = l where this update goes the counted way, 1 - l where it does not.
            torch.where(ahead[m], counter >= least, counter <= seen - least, out=keep[m])
        return keep

    def _fael(
        self, replies: Sequence[Reply], distances: Mapping[str, float], state: State
    ) -> tuple[Weights, dict[str, Any]]:
        """This round's p and the carried p and dp; sites that are away keep theirs."""
        start = example_shares(replies)
        if self.parts == "fphl":
            return start, {}
        if self.variant == "reference":
            start = uniform(start)
        carried, steps = dict(state.get("p", {})), dict(state.get("dp", {}))
        present = {site: carried.get(site, start[site]) for site in start}
        mass = 1.0 if self.variant == "reference" else sum(present.values())
        fresh = shares(distances)
        raw = {}
        for site in start:
            steps[site] = (1 - self.beta) * steps.get(site, 0.0) + self.beta * fresh[site]
            # p is a share of the sites that are here, as fresh is: both on the scale of 1.
            raw[site] = present[site] / mass + steps[site]
        weights = shares(raw)
        if self.variant == "reference":
            return weights, {"p": {**carried, **raw}, "dp": steps}
        return weights, {"p": {**carried, **{s: mass * w for s, w in weights.items()}}, "dp": steps}

    def _harmonised(
        self,
        model: StateDict,
        replies: Sequence[Reply],
        weights: Weights,
        history: Mapping[str, Any],
        rounds: Mapping[str, int],
    ) -> StateDict:
        """w_i + sum over kept of p_m u_{m,i} / sum over kept of p_m; the other entries as a weighted mean."""
        keys = set(self._masked_keys(replies[0]))
        result = add_weighted({k: v for k, v in model.items() if k not in keys}, replies, weights)
        p = torch.tensor([weights[r.site] for r in replies], dtype=torch.float64)
        late = self.variant == "reference"
        for key in keys & set(model):
            total = model[key].to(torch.promote_types(model[key].dtype, torch.float32), copy=True)
            flat = total.view(-1)
            for block, updates in _blocks(replies, key):
                keep = self._keep(updates, replies, history, rounds, key, block, count=False)
                if late:
                    self._count(updates, replies, history, key, block)
                shared = p.to(updates.dtype)
                mass, step = shared @ keep.to(updates.dtype), shared @ updates.mul_(keep)
                flat[block] += torch.where(mass > 0, step / mass, torch.zeros_like(step))
            result[key] = total.to(model[key].dtype)
        return {key: result[key] for key in model}

    def _count(
        self, updates: Tensor, replies: Sequence[Reply], history: Mapping[str, Any], key: str, block: slice
    ) -> None:
        for m, reply in enumerate(replies):
            history[reply.site][key][block] += updates[m] <= 0


def _blocks(replies: Sequence[Reply], key: str) -> Iterator[tuple[slice, Tensor]]:
    """Positions and the K updates there as a float (K, B) of their own."""
    flat = [reply.update[key].reshape(-1) for reply in replies]
    for start in range(0, flat[0].numel(), BLOCK):
        block = slice(start, start + BLOCK)
        yield block, torch.stack([update[block] for update in flat])


def _row_squares(updates: Tensor) -> Tensor:
    """float64 (K,): sums of squares; within a block float32 is enough."""
    return torch.linalg.vecdot(updates, updates).double()


def _least_count(seen: int, tau: float, *, strict: bool) -> int:
    """The smallest count c with c / seen >= tau (> tau when ``strict``)."""
    least = max(math.floor(tau * seen) - 1, 0)
    while least / seen < tau or (strict and least / seen <= tau):
        least += 1
    return least
