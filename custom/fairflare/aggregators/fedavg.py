# SPDX-License-Identifier: Apache-2.0
"""FedAvg: average the local models, weighted by how many examples each site holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fairflare.aggregators.base import State, SummedRule, example_shares, uniform
from fairflare.core.registry import method
from fairflare.core.types import Info, Paper, Reply, Weights


@method(
    "fedavg",
    title="FedAvg",
    summary="Averages the sites' models by their number of examples: the baseline.",
    paper=Paper.cited(
        "McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017. "
        "https://arxiv.org/abs/1602.05629"
    ),
)
@dataclass(frozen=True)
class FedAvg(SummedRule):
    """p_k = n_k / n (McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1).

    Args:
        weighting: "examples" for n_k / n; "uniform" for 1 / K.
    """

    n_terms = 1

    weighting: Literal["examples", "uniform"] = "examples"

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        if self.weighting == "uniform":
            return uniform([r.site for r in replies]), state
        return example_shares(replies), state

    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        return (float(n_examples) if self.weighting == "examples" else 1.0,)

    def own_weight(self, terms: Sequence[float], kept: float | None, sums: Sequence[float]) -> tuple[float, float]:
        return terms[0] / max(sums[0], terms[0]), 0.0
