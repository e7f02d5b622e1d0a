# SPDX-License-Identifier: Apache-2.0
"""FedAMP: each site is sent a mixture of all models in which those that are like its own count most.

u_i  = (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j        over j != i;   w_j: site j's model
xi_ij = share / (K - 1) exp(-||w_i - w_j||^2 / (sigma m))            m: their lower median over pairs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, example_shares
from fairflare.aggregators.own import from_shared
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict
from fairflare.core.validation import Range
from fairflare.functional.robust import distances


@method(
    "fedamp",
    title="FedAMP",
    summary="Sends each site a mixture of the models that are like its own, near which it trains; own models.",
    trainer="fedprox",
    paper="Huang et al.: Personalized Cross-Silo Federated Learning on Non-IID Data. AAAI 2021. "
    "https://arxiv.org/abs/2007.03797",
)
@dataclass(frozen=True)
class FedAMP(Rule):
    """Attentive message passing (Huang et al., AAAI 2021, https://arxiv.org/abs/2007.03797, Algorithm 1).

    Attention is A(x) = 1 - exp(-x / sigma), whose slope weighs the others. Sites train from u_i with a proximal term to
    it (trainer fedprox). In the last round each is given its own w_i, the method's result.

    Args:
        sigma: > 0, of the attention, in lower medians of the squared distance between two sites' models, which one far
            site of four or more does not change.
        share: alpha A'(0) (K - 1), the most that the others make of u_i, in [0, 1]; 0 leaves every site alone.
    """

    notes = (Note("kept", "Own part of the site's mixture", "fraction", meaning="1 - sum_j xi_ij."),)
    own_models = counts_own = True
    sigma: Annotated[float, Range(0, 1e6)] = 1.0
    share: Annotated[float, Range(0, 1)] = 1.0

    def __post_init__(self) -> None:
        if not self.sigma > 0:
            raise ValueError(f"sigma must be > 0, got {self.sigma}")

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        local = [from_shared(r, model, info) for r in replies]
        mixture = self.mixtures(distances(local))
        last = info.round.number == info.round.total
        rows = np.eye(len(local)) if last else mixture
        sites, weights = [r.site for r in replies], example_shares(replies)
        parts = [dict(zip(sites, row, strict=True)) for row in rows.tolist()]
        own = {site: add_weighted(model, local, part) for site, part in zip(sites, parts, strict=True)}
        notes = {"kept": dict(zip(sites, np.diag(mixture).tolist(), strict=True))}
        return Outcome(add_weighted(model, local, weights), weights, state, notes, own)

    def mixtures(self, apart: np.ndarray) -> np.ndarray:
        """float64 (K, K), rows sum to 1: what of every w_j is in u_i, from squared distances ``apart`` (K, K)."""
        k = len(apart)
        if k == 1:
            return np.ones((1, 1))
        scale = self.sigma * float(np.quantile(apart[np.triu_indices(k, 1)], 0.5, method="lower"))
        near = np.exp(-apart / scale) if scale > 0 else (apart == 0).astype(float)
        found: np.ndarray = self.share / (k - 1) * near
        np.fill_diagonal(found, 0)
        np.fill_diagonal(found, 1 - found.sum(1))
        return found
