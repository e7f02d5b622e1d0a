# SPDX-License-Identifier: Apache-2.0
"""FedCostWAvg: half of a site's weight is its share of the examples, half how much its cost fell.

p_j = alpha n_j / n + (1 - alpha) k_j / sum_i k_i,   k_j = c_j^{t-1} / c_j^t        c_j^t the site's cost in round t
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fairflare.aggregators.base import State, SummedRule
from fairflare.core.registry import method
from fairflare.core.types import Info, Paper, Reply, Weights
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
    paper=Paper.cited(
        "Maechler et al.: FedCostWAvg: A New Averaging for Better Federated Learning. BrainLes 2021. "
        "https://arxiv.org/abs/2111.08649"
    ),
    probes=("trained-loss", "local-error"),
)
@dataclass(frozen=True)
class FedCostWAvg(SummedRule):
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

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
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
