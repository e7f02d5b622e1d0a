# SPDX-License-Identifier: Apache-2.0
"""FedDyn: dynamic regularisation."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

method(
    "feddyn",
    title="FedDyn",
    summary="Each site's objective is corrected by its own history, so that all sites' optima agree.",
    rule="fedavg",
    trainer="feddyn",
    settings={"rule.weighting": "uniform"},
    paper=Paper(
        authors="Acar et al.",
        title="Federated Learning Based on Dynamic Regularization",
        venue="ICLR",
        year=2021,
        url="https://arxiv.org/abs/2111.04263",
    ),
)
