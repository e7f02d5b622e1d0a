# SPDX-License-Identifier: Apache-2.0
"""FedProx: FedAvg with a proximal term at the sites."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

FEDPROX = Paper(
    authors="Li et al.",
    title="Federated Optimization in Heterogeneous Networks",
    venue="MLSys",
    year=2020,
    url="https://arxiv.org/abs/1812.06127",
)


method(
    "fedprox",
    title="FedProx",
    summary="FedAvg whose sites stay near the received model: a proximal term on top of the local objective.",
    rule="fedavg",
    trainer="fedprox",
    paper=FEDPROX,
)
