# SPDX-License-Identifier: Apache-2.0
"""FedCostWAvg, FedPIDAvg and FedPID: entries to the FeTS challenge that follow the sites' costs."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

PROBES = ("trained-loss", "local-error")


method(
    "fedcostwavg",
    title="FedCostWAvg",
    summary="Weighs sites by their number of examples and by how much their cost fell.",
    rule="fedcostwavg",
    paper=Paper(
        authors="Maechler et al.",
        title="FedCostWAvg: A New Averaging for Better Federated Learning",
        venue="BrainLes",
        year=2021,
        url="https://arxiv.org/abs/2111.08649",
    ),
    probes=PROBES,
)

method(
    "fedpidavg",
    title="FedPIDAvg",
    summary="Weighs sites by their size, the last fall of their cost and the sum of their last costs.",
    rule="fedpid",
    paper=Paper(
        authors="Maechler et al.",
        title="FedPIDAvg: A PID Controller Inspired Aggregation Method for Federated Learning",
        venue="BrainLes",
        year=2022,
        url="https://arxiv.org/abs/2304.12117",
    ),
    probes=PROBES,
)

method(
    "fedpid",
    title="FedPID",
    summary="As FedPIDAvg, with the progress since the first round in place of the sum of costs.",
    rule="fedpid",
    paper=Paper(
        authors="Maechler et al.",
        title="FedPID: An Aggregation Method for Federated Learning",
        venue="arXiv",
        year=2024,
        url="https://arxiv.org/abs/2411.02152",
    ),
    probes=PROBES,
    settings={"integral": "progress"},
)
