# SPDX-License-Identifier: Apache-2.0
"""Ditto: FedAvg, and a model of its own at every site."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

DITTO = Paper(
    authors="Li et al.",
    title="Ditto: Fair and Robust Federated Learning Through Personalization",
    venue="ICML",
    year=2021,
    url="https://arxiv.org/abs/2012.04221",
)


method(
    "ditto",
    title="Ditto",
    summary="FedAvg, and at each site a model of its own that is drawn towards the shared one.",
    rule="fedavg",
    trainer="ditto",
    paper=DITTO,
)
