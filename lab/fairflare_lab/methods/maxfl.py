# SPDX-License-Identifier: Apache-2.0
"""MaxFL: weigh most the sites for which the shared model is about as good as what they require of it.

q_k = s (1 - s),  s = sigmoid(F_k(w^t) - rho_k)      rho_k: the loss that site k requires
p_k = q_k / sum_j q_j
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairflare.aggregators.base import State, SummedRule, shares
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, Weights

APPEAL = "appeal"


@method(
    "maxfl",
    title="MaxFL",
    summary="Weighs most the sites that the shared model is about to win or to lose against their own; for its appeal.",
    probes=("appeal",),
    paper="Cho et al.: Maximizing Global Model Appeal in Federated Learning. TMLR 2024. "
    "https://arxiv.org/abs/2205.14840",
)
@dataclass(frozen=True)
class MaxFL(SummedRule):
    """The gradient's weights of sum_k sigmoid(F_k(w) - rho_k), a smooth count of the sites that the model fails.

    Cho et al., TMLR 2024, https://arxiv.org/abs/2205.14840, Algorithm 1. Sites count alike, whatever their n_k, and
    each reports a number in [0, 1/4]. Where all of them are 0 the weights are uniform.
    """

    n_terms, counted = 2, 1
    wanted = (APPEAL,)

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        return shares({r.site: r.scalars[APPEAL] for r in replies}), state

    def terms(self, scalars: Mapping[str, float], n_examples: int, kept: float | None) -> tuple[float, ...]:
        return scalars[APPEAL], 1.0
