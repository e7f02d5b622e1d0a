# SPDX-License-Identifier: Apache-2.0
"""FedAvg averages the local models, weighted by how many examples each site holds; in Solo every site trains alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fairflare.aggregators.base import Outcome, Rule, State, SummedRule, add_weighted, example_shares, uniform
from fairflare.core.registry import method
from fairflare.core.types import Info, Reply, StateDict, Weights


@method(
    "fedavg",
    title="FedAvg",
    summary="Averages the sites' models by their number of examples: the baseline.",
    paper="McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017. "
    "https://arxiv.org/abs/1602.05629",
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


@method(
    "solo",
    title="Solo",
    summary="Every site trains alone, with a model of its own: what it would have without the federation.",
    paper="McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017. "
    "https://arxiv.org/abs/1602.05629",
)
@dataclass(frozen=True)
class Solo(Rule):
    """Each site is given back the model that it has just trained; the shared one is their mean by n_k, and unused.

    All sites begin at the same model and train in as many rounds, with as many local steps, as in any other method.
    """

    own_models = counts_own = alone = True

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        own = {r.site: add_weighted(info.models.get(r.site, model), [r], {r.site: 1.0}) for r in replies}
        away = [replace(r, update={key: own[r.site][key] - model[key] for key in r.update}) for r in replies]
        weights = example_shares(replies)
        return Outcome(add_weighted(model, away, weights), weights, state, models=own)
