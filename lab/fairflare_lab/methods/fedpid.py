# SPDX-License-Identifier: Apache-2.0
"""FedCostWAvg, FedPIDAvg and FedPID: a site's weight is made of its size, of how its cost fell, and of earlier costs.

p_j = alpha n_j / n + (1 - alpha) k_j / sum_i k_i,   k_j = c_j^{t-1} / c_j^t     (FedCostWAvg)

p_j = alpha n_j / n + beta k_j / K + gamma m_j / I,   k_j = c_j^{t-1} - c_j^t,   K = sum_j k_j,   I = sum_j m_j
m_j = c_j^t + ... + c_j^{t-5}   (FedPIDAvg)   or   c_j^1 - c_j^t   (FedPID)        c_j^t the site's cost in round t
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fairflare.aggregators import base
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Weights
from fairflare.core.validation import Range

COSTS: dict[str, str] = {"loss": "trained_loss", "error": "trained_error"}
"""Setting ``cost`` -> the number that a site sends."""
FLOOR = 1e-10
"""A cost below this counts as this."""
STEEPEST = 1e3
"""The largest k: a cost that fell to nothing is one good round, not all of the model."""


@method(
    "fedcostwavg",
    title="FedCostWAvg",
    summary="Weighs sites by their number of examples and by how much their cost fell.",
    paper="Maechler et al.: FedCostWAvg: A New Averaging for Better Federated Learning. BrainLes 2021. "
    "https://arxiv.org/abs/2111.08649",
    probes=("trained-loss", "local-error"),
)
@dataclass(frozen=True)
class FedCostWAvg(base.SummedRule):
    """Weights from examples and from the ratio of two costs (Maechler et al., https://arxiv.org/abs/2111.08649).

    A site without a cost of an earlier round takes its share of the examples there, so that the first round is FedAvg.

    Args:
        alpha: the examples' share of a weight, in [0, 1]; 1 is FedAvg.
        cost: of the site's trained model: its "loss", or its "error", 1 minus the metric, on the validation split.
    """

    n_terms, counted = 5, 4
    alpha: Annotated[float, Range(0, 1)] = 0.5
    cost: Literal["loss", "error"] = "loss"

    @property
    def wanted(self) -> tuple[str, ...]:
        return (COSTS[self.cost],)

    def weigh(self, replies: Sequence[Reply], state: base.State, info: Info) -> tuple[Weights, base.State]:
        before = state.get("costs", {})
        terms = {r.site: self.terms(r.scalars, r.n_examples, before.get(r.site)) for r in replies}
        sums = [sum(column) for column in zip(*terms.values())]
        found = {site: self.own_weight(own, before.get(site), sums) for site, own in terms.items()}
        kept = {site: keep for site, (_, keep) in found.items()}
        return {site: weight for site, (weight, _) in found.items()}, {"costs": {**before, **kept}}

    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        """n_k, the same for a new site (else 0), k_k for one that is not new (else 0), the cost, and 1."""
        cost = max(scalars[self.wanted[0]], FLOOR)
        if kept is None:
            return float(n_examples), float(n_examples), 0.0, cost, 1.0
        return float(n_examples), 0.0, min(max(kept, FLOOR) / cost, STEEPEST), cost, 1.0

    def own_weight(self, terms: Sequence[float], kept: float | None, sums: Sequence[float]) -> tuple[float, float]:
        size, new, ratio, cost, _ = terms
        total = max(sums[0], size)
        examples, newcomers = size / total, min(max(sums[1], new), total) / total
        if kept is None:
            return examples, cost
        fallen = (1 - newcomers) * ratio / max(sums[2], ratio)
        return self.alpha * examples + (1 - self.alpha) * fallen, cost


WINDOW = 6
"""Costs that the integral is made of, this round's among them."""
FIRST = "first"
"""Key of a site's first cost among those that are kept; the others are "0" for the last one, "1" for the one before."""

PROBES = ("trained-loss", "local-error")


@method(
    "fedpid",
    title="FedPID",
    summary="As FedPIDAvg, with the progress since the first round in place of the sum of costs.",
    paper="Maechler et al.: FedPID: An Aggregation Method for Federated Learning. arXiv 2024. "
    "https://arxiv.org/abs/2411.02152",
    probes=PROBES,
    settings={"integral": "progress"},
)
@dataclass(frozen=True)
class FedPID(base.WeighingRule):
    """Weights by a PID controller (Maechler et al., https://arxiv.org/abs/2304.12117 and arXiv:2411.02152).

    A term that has no positive value takes the shares of the examples; so does, within a term, a site that is new.

    Args:
        integral: "sum" of the last six costs (FedPIDAvg), or "progress" since the first (FedPID).
        alpha: share of the examples.
        beta: share of the last fall of the cost.
        gamma: share of the integral; the three must sum to 1, and beta = gamma = 0 is FedAvg.
        cost: of the site's trained model: its "loss", or its "error", 1 minus the metric, on the validation split.
        clamp: k_j, and the m_j of "progress", of at least 0; false takes them as the paper writes them: then a site
            whose cost rose has a negative part of the model, or all others have.
        variant: "reference" is the code that Manthe et al. published: costs before the first are 1, and where no cost
            fell K is 1 and the weights sum to less than 1.
    """

    notes = (Note("factor", "Factor of the update", chart="table", meaning="What the update is multiplied with."),)
    integral: Literal["sum", "progress"] = "sum"
    alpha: Annotated[float, Range(0, 1)] = 0.45
    beta: Annotated[float, Range(0, 1)] = 0.45
    gamma: Annotated[float, Range(0, 1)] = 0.1
    cost: Literal["loss", "error"] = "loss"
    clamp: bool = True
    variant: Literal["paper", "reference"] = "paper"

    def __post_init__(self) -> None:
        if abs(self.alpha + self.beta + self.gamma - 1) > 1e-9:
            raise ValueError(f"gamma must be 1 - alpha - beta, got {self.gamma}")

    @property
    def caps(self) -> bool:  # type: ignore[override]  # depends on options
        return self.clamp and self.variant != "reference"

    @property
    def wanted(self) -> tuple[str, ...]:
        return (COSTS[self.cost],)

    def weigh(self, replies: Sequence[Reply], state: base.State, info: Info) -> tuple[Weights, base.State]:
        factors, following = self._factors(replies, state)
        return base.convex(factors, replies), following

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: base.State, info: Info) -> base.Outcome:
        factors, following = self._factors(replies, state)
        weights = base.convex(factors, replies)
        if self.variant == "reference":
            total, trainable = sum(factors.values()), replies[0].trainable  # the weights need not sum to 1
            model = {key: total * value if key in trainable else value for key, value in model.items()}
        elif self.clamp:
            factors = weights = base.limited(weights, info.cap)
        return base.Outcome(base.add_factors(model, replies, factors, weights), weights, following, {"factor": factors})

    def _factors(self, replies: Sequence[Reply], state: base.State) -> tuple[dict[str, float], base.State]:
        known, examples = state.get("costs", {}), base.example_shares(replies)
        pasts = {r.site: self._appended(known.get(r.site), r.scalars[self.wanted[0]]) for r in replies}
        fell = {site: past["1"] - past["0"] for site, past in pasts.items() if "1" in past}
        following = {"costs": {**known, **pasts}}
        if not fell:
            return dict(examples), following
        derivative, integral = self._term(fell, examples), self._term(self._integrals(pasts), examples)
        of = (self.alpha, self.beta, self.gamma)
        return {s: of[0] * examples[s] + of[1] * derivative[s] + of[2] * integral[s] for s in examples}, following

    def _integrals(self, pasts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        if self.integral == "progress":
            return {site: past[FIRST] - past["0"] for site, past in pasts.items() if "1" in past}
        return {site: sum(past[str(k)] for k in range(WINDOW) if str(k) in past) for site, past in pasts.items()}

    def _term(self, values: Mapping[str, float], examples: Weights) -> dict[str, float]:
        """Shares of ``values``; a site that has none takes its share of the examples, as all do if nothing is left."""
        found = {site: max(value, 0.0) if self.clamp else value for site, value in values.items()}
        total = sum(found.values())
        if not total:
            return dict.fromkeys(examples, 0.0) if self.variant == "reference" and self.clamp else dict(examples)
        rest = 1 - sum(share for site, share in examples.items() if site not in found)
        return {s: rest * found[s] / total if s in found else share for s, share in examples.items()}

    def _appended(self, past: Mapping[str, float] | None, cost: float) -> dict[str, float]:
        """The last costs of a site, newest first, and its first one."""
        if past is None:
            ones = {str(k): 1.0 for k in range(1, WINDOW)} if self.variant == "reference" else {}
            return {FIRST: cost, "0": cost, **ones}
        older = {str(k + 1): past[str(k)] for k in range(WINDOW - 1) if str(k) in past}
        return {FIRST: past[FIRST], "0": cost, **older}


method(
    "fedpidavg",
    title="FedPIDAvg",
    summary="Weighs sites by their size, the last fall of their cost and the sum of their last costs.",
    rule="fedpid",
    paper="Maechler et al.: FedPIDAvg: A PID Controller Inspired Aggregation Method for Federated Learning. BrainLes "
    "2022. https://arxiv.org/abs/2304.12117",
    probes=PROBES,
)
