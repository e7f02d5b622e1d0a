# SPDX-License-Identifier: Apache-2.0
"""Multi-Krum averages the updates that have near neighbours and drops the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fairflare.aggregators.base import AUTO, Combining, Outcome, State, add_weighted, liars_among, shares
from fairflare.aggregators.own import as_sent
from fairflare.aggregators.robust import REMOVED
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Reply, StateDict, Weights
from fairflare.core.validation import Range
from fairflare.functional.robust import distances, krum_scores


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

    Weights play no part in the choice, nor does what bounds take of an update's length. A score is the sum of the
    K - f - 2 smallest squared distances to other updates; who has the same score as the last one that is kept is kept
    too.

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
        sent = [as_sent(r) for r in replies]
        scores = dict(zip(sites, krum_scores(distances(sent), faulty))) if len(sites) > 2 else {}
        count = min(self.keep or max(len(sites) - faulty, 1), len(sites))
        limit = sorted(scores.values())[count - 1] if scores else math.inf
        kept = {site: prior[site] if scores.get(site, 0.0) <= limit else 0.0 for site in sites}
        if not sum(kept.values()):
            kept = {site: float(scores.get(site, 0.0) <= limit) for site in sites}
        weights = shares(kept)
        removed = {site: prior[site] if not weight else 0.0 for site, weight in weights.items()}
        return Outcome(add_weighted(model, replies, weights), weights, state, {"removed": removed, "score": scores})
