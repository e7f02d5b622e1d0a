# SPDX-License-Identifier: Apache-2.0
"""FairFed and FairFedAvg: weights from how evenly the model decides among groups of patients."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

method(
    "fairfed",
    title="FairFed",
    summary="Weighs sites whose gap between groups is close to the federation's; for demographic groups.",
    rule="fairfed",
    paper=Paper(
        authors="Ezzeldin et al.",
        title="FairFed: Enabling Group Fairness in Federated Learning",
        venue="AAAI",
        year=2023,
        url="https://arxiv.org/abs/2110.00857",
    ),
    probes=("fairness-counts",),
    reference={"metric": "accuracy"},
)

method(
    "fairfedavg",
    title="FairFedAvg",
    summary="Weighs sites by their examples and by how evenly the model decides among their groups.",
    rule="fairfedavg",
    paper=Paper(
        authors="Poulain et al.",
        title="Improving Fairness in AI Models on Electronic Health Records: The Case for Federated Learning Methods",
        venue="FAccT",
        year=2023,
        url="https://arxiv.org/abs/2305.11386",
    ),
    probes=("fairness-counts",),
)
