# SPDX-License-Identifier: Apache-2.0
"""FedISM and FedISM+: sites where the model sits in a sharper or higher region weigh more.

    x_k   the site's sharpness S_k or its perturbed loss L_k, measured on the received model
    wt_k  = x_k^q / sum_j x_j^q
    w_t   = beta wt + (1 - beta) w_{t-1},   w_1 = wt_1
    w^{t+1} = sum_k w_{t,k} w_k

The search radius rho(t) = rho_max (t/T)^tau belongs to the trainer and the probe, which know t and T. The papers give
FedISM (constant) half of the radius that FedISM+ grows to; presets that set another keep that ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fairflare.aggregators.base import State, SummedRule, example_shares, shares
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, Weights
from fairflare.core.validation import within

FLOOR = 1e-10
"""Sharpness below this counts as this: it can be negative at a tiny rho (the authors clip likewise)."""

MOST_Q = 30
"""(1e-10)^30 and (1e6)^30 times any number of examples are doubles."""
RADIUS = {
    "rho_max": ("trainer.rho_max", "probe.sharpness.rho_max"),
    "rho_tau": ("trainer.rho_tau", "probe.sharpness.rho_tau"),
}
"""One search radius: the state of convergence is measured where the steps look."""
REFERENCE = {"probe_transform": "train"}


@method(
    "fedism",
    title="FedISM",
    summary="Matches sharpness across sites at one fixed search radius; for image-quality shift.",
    paper="Wu et al.: From Optimization to Generalization: Fair Federated Learning against Quality Shift via "
    "Inter-Client Sharpness Matching. IJCAI 2024. https://arxiv.org/abs/2404.17805",
    trainer="gsam",
    probes=("sharpness",),
    settings={"rho_max": 0.05, "rho_tau": 0.0},
    reference=REFERENCE,
    shared=RADIUS,
)
@dataclass(frozen=True)
class FedISM(SummedRule):
    """Weights from each site's sharpness or perturbed loss (Wu et al., arXiv:2503.09587, Eq. 16 and 17).

    Args:
        state: "S" weighs by sharpness (Eq. 16), "L" by perturbed loss (Eq. 17).
        q: exponent >= 0; 0 gives every site the same weight.
        beta: share of this round's weights in the moving average, in [0, 1]; 1 forgets the past.
        weighting: "state" as above; "examples" is n_k / n, the GSAM-only ablation (no probe runs then).
        prior: "examples" multiplies x_k^q by n_k; "none" as in the paper.
        variant: "reference" adds 1e-10 to the normalised sharpness before the power, as the authors' code does.
    """

    n_terms, counted = 4, 3
    state: Literal["S", "L"] = "S"
    q: float = 2.0
    beta: float = 0.5
    weighting: Literal["state", "examples"] = "state"
    prior: Literal["none", "examples"] = "none"
    variant: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        within(self, q="[0, inf)", beta="[0, 1]")

    @property
    def wanted(self) -> tuple[str, ...]:
        if self.weighting == "examples":
            return ()
        return ("sharpness",) if self.state == "S" else ("perturbed_loss",)

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """Moving average of w~.

        A site that was away keeps its share of the average and joins again from there; one that is new joins with the
        mean share, 1/K, and the others divide the rest as before.
        """
        if self.weighting == "examples":
            return example_shares(replies), state
        scores = {r.site: r.scalars[self.wanted[0]] for r in replies}
        priors = {r.site: float(r.n_examples) if self.prior == "examples" else 1.0 for r in replies}
        fresh = power_shares(scores, self.q, priors, offset=FLOOR if self.variant == "reference" else 0.0)
        known = {site: kept for site, kept in state.get("weights", {}).items() if site in fresh}
        mass, new, n = sum(known.values()), len(fresh) - len(known), len(fresh)
        found = {site: self._averaged(share, known.get(site), mass, new, n) for site, share in fresh.items()}
        kept = {site: keep for site, (_, keep) in found.items()}
        return {site: w for site, (w, _) in found.items()}, {"weights": {**state.get("weights", {}), **kept}}

    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        """x_k^q, what was kept (0 for a new site), 1 for a new site (else 0), and 1."""
        amount = max(scalars[self.wanted[0]], FLOOR) ** self.q
        if self.prior == "examples":
            amount *= n_examples
        return amount, kept or 0.0, float(kept is None), 1.0

    def own_weight(self, terms: Sequence[float], kept: float | None, sums: Sequence[float]) -> tuple[float, float]:
        amount, (total, mass, new, n) = terms[0], sums
        # Counts may come decrypted, and a sum is never less than a summand.
        n = max(round(n), 1)
        new = min(max(round(new), int(kept is None)), n - int(kept is not None))
        return self._averaged(amount / max(total, amount), kept, max(mass, kept or 0.0), new, n)

    def unsummable(self) -> str:
        """The reference's offset needs every site's normalised value, and powers must stay within doubles."""
        if self.weighting == "examples":
            return "weighting=examples needs no number beside n_k"
        if self.variant == "reference":
            return "variant=reference adds to normalised values, which needs a sum before the sum"
        return f"q={self.q:g} is above {MOST_Q}, where x^q leaves the range of doubles" if self.q > MOST_Q else ""

    def _averaged(self, fresh: float, kept: float | None, mass: float, new: int, n: int) -> tuple[float, float]:
        """A site's weight and what is kept of it, from its w~ and what was kept, None for a new site.

        ``mass`` is the sum of what was kept of the sites of this round, ``new`` how many of these ``n`` are new.
        """
        if new == n or not mass:
            return fresh, fresh
        rest = (n - new) / n
        past = 1 / n if kept is None else rest * kept / mass
        weight = self.beta * fresh + (1 - self.beta) * past
        return weight, weight * mass / rest


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


method(
    "fedism-plus",
    title="FedISM+",
    summary="Matches sharpness (S) or perturbed loss (L) at a radius that grows over the rounds; for quality shift.",
    rule="fedism",
    paper="Wu et al.: Fair Federated Medical Image Classification Against Quality Shift via Inter-Client Progressive "
    "State Matching. arXiv 2025. https://arxiv.org/abs/2503.09587",
    trainer="gsam",
    probes=("sharpness",),
    settings={"rho_max": 0.1, "rho_tau": 0.5},
    reference=REFERENCE,
    shared=RADIUS,
)
