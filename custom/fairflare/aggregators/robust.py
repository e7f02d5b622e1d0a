# SPDX-License-Identifier: Apache-2.0
"""Median, trimmed mean and multi-Krum: what a few sites send, however far off, moves the model little.

Position by position over trainable entries (median, trimmed mean), or by whole updates (multi-Krum). Running statistics
are averaged with the sites' weights.
"""

from __future__ import annotations

import math
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
from fairflare.functional.robust import BLOCK, distances, krum_scores, median, trimmed_mean

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


@method(
    "multi-krum",
    title="Multi-Krum",
    summary="Averages the updates that have near neighbours and drops the others; against a few wild sites.",
    paper="Blanchard et al.: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. NeurIPS 2017. "
    "https://arxiv.org/abs/1703.02757",
)
@dataclass(frozen=True)
class MultiKrum(Combining):
    """The mean of the updates with the nearest neighbours (Blanchard et al., arXiv:1703.02757, Section 4).

    Weights play no part in the choice. A score is the sum of the K - f - 2 smallest squared distances to other updates;
    who has the same score as the last one that is kept is kept too.

    Args:
        faulty: f, the sites that may send anything; where fewer than 2 f + 3 are there, as many as fit; "auto": K / 4,
            rounded down, at least 1.
        keep: m, the updates that are averaged; none: K - f.
    """

    notes: ClassVar[tuple[Note, ...]] = (
        REMOVED,
        Note("score", "Krum score", chart="table", meaning="Sum of the squared distances to the nearest updates."),
    )
    faulty: Annotated[int, Range(0, 10_000)] | Literal["auto"] = AUTO
    keep: Annotated[int, Range(1, 10_000)] | None = None

    def __post_init__(self) -> None:
        if self.faulty != AUTO and self.faulty < 0:
            raise ValueError(f"faulty must be auto or at least 0, got {self.faulty}")
        if self.keep is not None and self.keep < 1:
            raise ValueError(f"keep must be none or at least 1, got {self.keep}")

    def unprotected(self, sites: int) -> str:
        """f is as large as fits, and ``keep`` may keep everybody."""
        asked, faulty = self._asked(sites), self._faulty(sites)
        if (self.keep or 0) >= sites:
            return f"multi-krum protects from nobody with {sites} sites: keep={self.keep} keeps all"
        if faulty < asked:
            need = f"faulty={asked} takes {2 * asked + 3}"
            return f"multi-krum protects from {faulty or 'nobody'} with {sites} sites: {need}"
        return ""

    def _faulty(self, sites: int) -> int:
        return max(min(self._asked(sites), (sites - 3) // 2), 0)

    def _asked(self, sites: int) -> int:
        return max(liars_among(sites), 1) if self.faulty == AUTO else self.faulty

    def combine(self, model: StateDict, replies: Sequence[Reply], prior: Weights, state: State) -> Outcome:
        """The mean of the m updates of least score by p, renormalised; "removed": p_k of the others, 0 of these."""
        sites = [r.site for r in replies]
        faulty = self._faulty(len(sites))
        scores = dict(zip(sites, krum_scores(distances(replies), faulty))) if len(sites) > 2 else {}
        count = min(self.keep or max(len(sites) - faulty, 1), len(sites))
        limit = sorted(scores.values())[count - 1] if scores else math.inf
        kept = {site: prior[site] if scores.get(site, 0.0) <= limit else 0.0 for site in sites}
        if not sum(kept.values()):
            kept = {site: float(scores.get(site, 0.0) <= limit) for site in sites}
        weights = shares(kept)
        removed = {site: prior[site] if not weight else 0.0 for site, weight in weights.items()}
        return Outcome(add_weighted(model, replies, weights), weights, state, {"removed": removed, "score": scores})


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
            moved[where], share = combine(np.stack(list(updates)), p)
            part += share
        size += value.numel()
        wide = torch.promote_types(value.dtype, torch.float32)
        after[key] = (value.to(wide) + torch.from_numpy(moved).to(wide).view(value.shape)).to(value.dtype)
    rest = add_weighted({key: value for key, value in model.items() if key not in after}, replies, prior)
    parts = part / size if size else p
    return {key: (after | rest)[key] for key in model}, dict(zip([r.site for r in replies], parts.tolist()))
