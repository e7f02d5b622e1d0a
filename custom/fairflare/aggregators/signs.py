# SPDX-License-Identifier: Apache-2.0
"""FedAvg whose rounds also measure signs of what another method may gain; ``report.advice`` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fairflare.aggregators.base import Notes, State, WeighingRule, add_weighted, example_shares
from fairflare.core.notes import Note
from fairflare.core.registry import method
from fairflare.core.types import GROUP_COUNT, GROUP_LOSS, Info, Reply, StateDict, Weights
from fairflare.functional.blocks import SIMILARITY
from fairflare.functional.novelty import novelty


@method(
    "signs",
    title="FedAvg with signs",
    summary="FedAvg that also measures which other method may gain; `fairflare run fedavg --advise` runs it.",
    paper="McMahan et al.: Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017. "
    "https://arxiv.org/abs/1602.05629",
    probes=("group-loss", "layer-similarity"),
)
@dataclass(frozen=True)
class Signs(WeighingRule):
    """p_k = n_k / n, as FedAvg; what sites and groups lose, and how alike updates and features are, changes nothing."""

    notes: ClassVar[tuple[Note, ...]] = (
        Note("agreement", "Agreement", chart="table", meaning="Cosine of the update with the other sites' mean."),
    )
    useful = ("loss", GROUP_LOSS, GROUP_COUNT, SIMILARITY)

    def anchor(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> StateDict:
        return add_weighted(model, replies, example_shares(replies))

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        return example_shares(replies), state

    def round_notes(self, weights: Weights, replies: Sequence[Reply], before: State, after: State, info: Info) -> Notes:
        return {"agreement": {site: 1 - new for site, new in novelty(replies, weights).items()}}
