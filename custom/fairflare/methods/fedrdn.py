# SPDX-License-Identifier: Apache-2.0
"""FedRDN: random normalisation across sites."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

method(
    "fedrdn",
    title="FedRDN",
    summary="FedAvg on images normalised with the statistics of drawn sites; for scanners that differ.",
    rule="fedavg",
    trainer="fedrdn",
    paper=Paper(
        authors="Yan et al.",
        title="A Simple Data Augmentation for Feature Distribution Skewed Federated Learning",
        venue="CVPR",
        year=2025,
        url="https://arxiv.org/abs/2306.09363",
    ),
)
