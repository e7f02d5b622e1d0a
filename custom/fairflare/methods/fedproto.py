# SPDX-License-Identifier: Apache-2.0
"""FedProto: prototypes in place of models."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

FEDPROTO = Paper(
    authors="Tan et al.",
    title="FedProto: Federated Prototype Learning across Heterogeneous Clients",
    venue="AAAI",
    year=2022,
    url="https://arxiv.org/abs/2105.00243",
)


method(
    "fedproto",
    title="FedProto",
    summary="Own models, joined by the mean features of each class; with share=both the models are averaged too.",
    rule="fedavg",
    trainer="fedproto",
    paper=FEDPROTO,
)
