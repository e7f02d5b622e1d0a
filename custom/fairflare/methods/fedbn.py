# SPDX-License-Identifier: Apache-2.0
"""FedBN and SiloBN: FedAvg whose sites keep their BatchNorm."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

FEDBN = Paper(
    authors="Li et al.",
    title="FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
    venue="ICLR",
    year=2021,
    url="https://arxiv.org/abs/2102.07623",
)
SILOBN = Paper(
    authors="Andreux et al.",
    title="Siloed Federated Learning for Multi-centric Histopathology Datasets",
    venue="DART",
    year=2020,
    url="https://arxiv.org/abs/2008.07424",
)


method(
    "fedbn",
    title="FedBN",
    summary="FedAvg over all layers but BatchNorm, of which every site has its own; for feature shift.",
    rule="fedavg",
    trainer="fedbn",
    paper=FEDBN,
)

method(
    "silobn",
    title="SiloBN",
    summary="FedAvg whose sites keep BatchNorm's running statistics and share its scale and shift; for feature shift.",
    rule="fedavg",
    trainer="silobn",
    paper=SILOBN,
)
