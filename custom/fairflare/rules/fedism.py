# SPDX-License-Identifier: Apache-2.0
"""FedISM and FedISM+: sites where the model sits in a sharper or higher region weigh more.

    x_k   the site's sharpness S_k or its perturbed loss L_k, measured on the received model
    wt_k  = x_k^q / sum_j x_j^q
    w_t   = beta wt + (1 - beta) w_{t-1},   w_1 = wt_1
    w^{t+1} = sum_k w_{t,k} w_k

The search radius rho(t) = rho_max (t/T)^tau is an affair of the trainer and the probe, which know t and T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fairflare.contracts import Paper, Reply, Round, Weights
from fairflare.registry import method
from fairflare.rules.base import Rule, State, example_shares, shares

FLOOR = 1e-10
"""Sharpness below this counts as this: it can be negative at a tiny rho (the authors clip likewise)."""

FEDISM = Paper(
    authors="Wu et al.",
    title="From Optimization to Generalization: Fair Federated Learning against Quality Shift via Inter-Client "
    "Sharpness Matching",
    venue="IJCAI",
    year=2024,
    url="https://arxiv.org/abs/2404.17805",
)
FEDISM_PLUS = Paper(
    authors="Wu et al.",
    title="Fair Federated Medical Image Classification Against Quality Shift via Inter-Client Progressive State "
    "Matching",
    venue="arXiv",
    year=2025,
    url="https://arxiv.org/abs/2503.09587",
)
REFERENCE = {"probe_transform": "train"}


@method(
    "fedism",
    title="FedISM",
    summary="Matches sharpness across sites at one fixed search radius; for image-quality shift.",
    paper=FEDISM,
    trainer="gsam",
    probes=("sharpness",),
    settings={"rho_max": 0.05, "rho_tau": 0.0, "logit_tau": 1.0},
    reference=REFERENCE,
)
@method(
    "fedism-plus",
    title="FedISM+",
    summary="Matches sharpness (S) or perturbed loss (L) at a radius that grows over the rounds; for quality shift.",
    paper=FEDISM_PLUS,
    trainer="gsam",
    probes=("sharpness",),
    settings={"rho_max": 0.1, "rho_tau": 0.5, "logit_tau": 1.0},
    reference=REFERENCE,
)
@dataclass(frozen=True)
class FedISM(Rule):
    """Weights from each site's sharpness or perturbed loss (Wu et al., arXiv:2503.09587, Eq. 16 and 17).

    Args:
        state: "S" weighs by sharpness (Eq. 16), "L" by perturbed loss (Eq. 17).
        q: exponent >= 0; 0 gives every site the same weight.
        beta: share of this round's weights in the moving average, in [0, 1]; 1 forgets the past.
        weighting: "state" as above; "examples" is n_k / n, the GSAM-only ablation (no probe runs then).
        prior: "examples" multiplies x_k^q by n_k; "none" as in the paper.
        variant: "reference" adds 1e-10 to the normalised sharpness before the power, as the authors' code does.
    """

    state: Literal["S", "L"] = "S"
    q: float = 2.0
    beta: float = 0.5
    weighting: Literal["state", "examples"] = "state"
    prior: Literal["none", "examples"] = "none"
    variant: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        if not 0 <= self.q < math.inf:
            raise ValueError(f"q must be finite and >= 0, got {self.q}")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must be in [0, 1], got {self.beta}")

    @property
    def wanted(self) -> tuple[str, ...]:
        """The scalar that the weights are made of."""
        if self.weighting == "examples":
            return ()
        return ("sharpness",) if self.state == "S" else ("perturbed_loss",)

    def weigh(self, replies: Sequence[Reply], state: State, round: Round) -> tuple[Weights, State]:
        """Moving average of w~; a site that was away keeps its share of the average and joins again from there."""
        if self.weighting == "examples":
            return example_shares(replies), state
        scores = {r.site: r.scalars[self.wanted[0]] for r in replies}
        priors = {r.site: float(r.n_examples) if self.prior == "examples" else 1.0 for r in replies}
        fresh = power_shares(scores, self.q, priors, offset=FLOOR if self.variant == "reference" else 0.0)
        known = state.get("weights", {})
        here = {site: known.get(site, new) for site, new in fresh.items()}
        past, mass = shares(here), sum(here.values())
        weights = {site: self.beta * fresh[site] + (1 - self.beta) * past[site] for site in fresh}
        return weights, {"weights": shares({**known, **{site: mass * w for site, w in weights.items()}})}


def power_shares(
    scores: Mapping[str, float], q: float, priors: Mapping[str, float] | None = None, offset: float = 0.0
) -> Weights:
    """prior_k x_k^q / sum_j prior_j x_j^q with x clipped to >= 1e-10, normalised and raised by ``offset`` first.

    Computed as a softmax of q log x, so that no power over- or underflows.
    """
    clipped = {site: max(score, FLOOR) for site, score in scores.items()}
    peak = max(clipped.values())
    total = sum(score / peak for score in clipped.values())
    logs = {
        site: q * math.log(score / peak / total + offset) + (math.log(priors[site]) if priors else 0.0)
        for site, score in clipped.items()
    }
    top = max(logs.values())
    return shares({site: math.exp(value - top) for site, value in logs.items()})
