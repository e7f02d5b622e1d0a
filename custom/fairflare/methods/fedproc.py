# SPDX-License-Identifier: Apache-2.0
"""FedProc: prototypical contrastive local training."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

method(
    "fedproc",
    title="FedProc",
    summary="FedAvg whose local features are drawn to the federation's class means, strongly at first.",
    rule="fedavg",
    trainer="fedproc",
    paper=Paper(
        authors="Mu et al.",
        title="FedProc: Prototypical Contrastive Federated Learning on Non-IID Data",
        venue="Future Generation Computer Systems",
        year=2023,
        url="https://arxiv.org/abs/2109.12273",
    ),
)
