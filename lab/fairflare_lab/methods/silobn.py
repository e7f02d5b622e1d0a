# SPDX-License-Identifier: Apache-2.0
"""SiloBN: sites keep BatchNorm's running statistics and share its scale and shift."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.core.registry import method
from fairflare.core.types import StateDict
from fairflare.trainers.fedper import FedBN

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Entries of a layer that are no parameters."""


@method(
    "silobn",
    title="SiloBN",
    summary="FedAvg whose sites keep BatchNorm's running statistics and share its scale and shift; for feature shift.",
    paper="Andreux et al.: Siloed Federated Learning for Multi-centric Histopathology Datasets. DART 2020. "
    "https://arxiv.org/abs/2008.07424",
)
@dataclass(frozen=True)
class SiloBN(FedBN):
    """Plain training; BatchNorm's running statistics stay at the site, its scale and shift are averaged."""

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        """The running statistics of the layers that have them, with their counters."""
        return frozenset(key for key in super().personal_entries(model) if key.endswith(STATISTICS))
