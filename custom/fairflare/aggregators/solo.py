# SPDX-License-Identifier: Apache-2.0
"""Solo: every site trains alone; what it would have without the federation, in the same tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, example_shares
from fairflare.core.registry import method
from fairflare.core.types import Info, Paper, Reply, StateDict


@method(
    "solo",
    title="Solo",
    summary="Every site trains alone, with a model of its own: what it would have without the federation.",
    paper=Paper.cited(
        "McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017. "
        "https://arxiv.org/abs/1602.05629"
    ),
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
