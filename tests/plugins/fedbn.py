# SPDX-License-Identifier: Apache-2.0
"""FedBN: every site keeps its own BatchNorm layers, and all other layers are averaged."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.core.errors import UserError
from fairflare.core.layers import layers_of
from fairflare.core.registry import method, trainer
from fairflare.core.types import Paper, StateDict
from fairflare.trainers.sgd import PlainTrainer

PAPER = Paper(
    "Li et al.",
    "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
    "ICLR",
    2021,
    "https://arxiv.org/abs/2102.07623",
)


@trainer("fedbn")
@dataclass(frozen=True)
class FedBN(PlainTrainer):
    """Plain training; scale, shift and running statistics of BatchNorm stay at the site (Algorithm 1)."""

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        """All entries of the layers that have running statistics.

        Raises:
            UserError: the model has no such layer.
        """
        layers = [keys for keys in layers_of(model).values() if any(key.endswith("running_mean") for key in keys)]
        if not layers:
            raise UserError("trainer fedbn: expected a network with BatchNorm, which this one has none of")
        return frozenset(key for keys in layers for key in keys)


method(
    "fedbn",
    title="FedBN",
    summary="FedAvg over all layers but BatchNorm, which every site has of its own.",
    paper=PAPER,
    rule="fedavg",
    trainer="fedbn",
)
