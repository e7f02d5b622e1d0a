# SPDX-License-Identifier: Apache-2.0
"""Median and trimmed mean: what a few sites send, however far off, moves the model little.

Position by position over trainable entries; running statistics are averaged with the sites' weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
import torch

from fairflare.aggregators.base import AUTO, Combining, Outcome, State, add_weighted, liars_among, shares
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Reply, StateDict, Weights
from fairflare.core.validation import Range
from fairflare.functional.blocks import blocks_of
from fairflare.functional.robust import BLOCK, median, pieces, trimmed_mean

Combine: TypeAlias = "Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]"
REMOVED = Note(
    "removed", "Removed weight", "fraction", meaning="What of the site's weight p_k had no part in the model."
)
YIN = (
    "Yin et al.: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018. "
    "https://arxiv.org/abs/1803.01498"
)


@method(
    "median",
    title="Median",
    summary="Takes the weighted median of the updates at each position; against a minority of wild sites.",
    paper=YIN,
)
@dataclass(frozen=True)
class Median(Combining):
    """The weighted median of the updates at each position (Yin et al., arXiv:1803.01498, Algorithm 1, option I)."""

    notes: ClassVar[tuple[Note, ...]] = (REMOVED,)

    def unprotected(self, sites: int) -> str:
        """The median of two is their mean."""
        return f"the median of {sites} sites protects from nobody: it takes 3" if sites < 3 else ""

    def combine(self, model: StateDict, replies: Sequence[Reply], prior: Weights, state: State) -> Outcome:
        """The midpoint of the updates with p-mass at most 1/2 on either side; "removed", in [0, 1], is lost of p_k."""
        after, share = _by_position(model, replies, prior, median)
        weights = shares(share)
        removed = {site: max(prior[site] - weights[site], 0.0) for site in weights}
        return Outcome(after, weights, state, {"removed": removed})


@method(
    "trimmed-mean",
    title="Trimmed mean",
    summary="Averages the updates at each position without the outermost share; against a few wild sites.",
    paper=YIN,
)
@dataclass(frozen=True)
class TrimmedMean(Combining):
    """The mean at each position without the outermost mass (Yin et al., arXiv:1803.01498, Algorithm 1, option II).

    Args:
        trim: the mass that is dropped at either end, in [0, 0.5); 0 is the mean; "auto": f / K of the round's K sites,
            f = K / 4 rounded down, at least 1 of three.
    """

    notes: ClassVar[tuple[Note, ...]] = (REMOVED,)
    trim: Annotated[float, Range(0, 0.5)] | Literal["auto"] = AUTO

    def __post_init__(self) -> None:
        if self.trim != AUTO and not 0 <= self.trim < 0.5:
            raise ValueError(f"trim must be auto or in [0, 0.5), got {self.trim}")

    def unprotected(self, sites: int) -> str:
        """A site that weighs more than the trimmed mass is dropped in part."""
        trim = self._trim(sites)
        left = 1 - trim * sites
        if left <= 1e-9:
            return ""
        advice = "it takes 3 sites" if sites < 3 else f"set trim to {1 / sites:.2g} or above, or use the median"
        return f"trim={trim:.3g} leaves {left:.0%} of a wild site in the model where {sites} weigh alike: {advice}"

    def _trim(self, sites: int) -> float:
        return liars_among(sites) / sites if self.trim == AUTO else self.trim

    def combine(self, model: StateDict, replies: Sequence[Reply], prior: Weights, state: State) -> Outcome:
        """The mean of what is left of p after ``trim`` at each end; "removed", in [0, 1], is lost of p_k."""
        after, kept = _by_position(model, replies, prior, partial(trimmed_mean, trim=self._trim(len(replies))))
        removed = {site: max(prior[site] - mass, 0.0) for site, mass in kept.items()}
        return Outcome(after, shares(kept), state, {"removed": removed})


def _by_position(
    model: StateDict, replies: Sequence[Reply], prior: Weights, combine: Combine
) -> tuple[StateDict, dict[str, float]]:
    """The next model, and site -> its mean part over the positions."""
    p = np.array([prior[r.site] for r in replies])
    part, size, after = np.zeros(len(replies)), 0, {}
    for key in [key for key in model if key in replies[0].trainable]:
        value = model[key]
        moved = np.empty(value.numel())
        for where, updates in blocks_of(replies, key, BLOCK):
            block, there = np.stack(list(updates)), moved[where]
            for piece, values in pieces(block):
                there[piece], share = combine(values, p)
                part += share
        size += value.numel()
        wide = torch.promote_types(value.dtype, torch.float32)
        after[key] = (value.to(wide) + torch.from_numpy(moved).to(wide).view(value.shape)).to(value.dtype)
    rest = add_weighted({key: value for key, value in model.items() if key not in after}, replies, prior)
    parts = part / size if size else p
    return {key: (after | rest)[key] for key in model}, dict(zip([r.site for r in replies], parts.tolist()))
