# SPDX-License-Identifier: Apache-2.0
"""FedBN and SiloBN: every site keeps its own BatchNorm, whole or its running statistics; the rest is averaged."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.core.errors import UserError
from fairflare.core.layers import layers_of
from fairflare.core.registry import method
from fairflare.core.types import Paper, StateDict
from fairflare.trainers.base import PlainTrainer

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Entries of a layer that are no parameters."""


@method(
    "fedbn",
    title="FedBN",
    summary="FedAvg over all layers but BatchNorm, of which every site has its own; for feature shift.",
    paper=Paper.cited(
        "Li et al.: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021. "
        "https://arxiv.org/abs/2102.07623"
    ),
)
@dataclass(frozen=True)
class FedBN(PlainTrainer):
    """Plain training; scale, shift and running statistics of BatchNorm stay at the site.

    Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021,
    https://arxiv.org/abs/2102.07623, Algorithm 1.
    """

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        """All entries of the layers that have running statistics (BatchNorm, and InstanceNorm that tracks them).

        Raises:
            UserError: the model has no such layer.
        """
        layers = [keys for keys in layers_of(model).values() if any(key.endswith("running_mean") for key in keys)]
        if not layers:
            raise UserError("trainer fedbn or silobn: expected a network with BatchNorm, which this one has none of")
        return frozenset(key for keys in layers for key in keys)


@method(
    "silobn",
    title="SiloBN",
    summary="FedAvg whose sites keep BatchNorm's running statistics and share its scale and shift; for feature shift.",
    paper=Paper.cited(
        "Andreux et al.: Siloed Federated Learning for Multi-centric Histopathology Datasets. DART 2020. "
        "https://arxiv.org/abs/2008.07424"
    ),
)
@dataclass(frozen=True)
class SiloBN(FedBN):
    """Plain training; BatchNorm's running statistics stay at the site, its scale and shift are averaged.

    Andreux et al., "Siloed Federated Learning for Multi-centric Histopathology Datasets", DART 2020,
    https://arxiv.org/abs/2008.07424.
    """

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        """The running statistics of the layers that have them, with their counters.

        Raises:
            UserError: the model has no such layer.
        """
        return frozenset(key for key in super().personal_entries(model) if key.endswith(STATISTICS))
