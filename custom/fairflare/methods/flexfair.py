# SPDX-License-Identifier: Apache-2.0
"""FlexFair: a penalty on the variance of the losses of sites or groups."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

method(
    "flexfair",
    title="FlexFair",
    summary="FedAvg with a penalty on how much the losses of sites, or of groups of patients, differ.",
    rule="flexfair",
    trainer="weighted",
    probes=("group-loss",),
    paper=Paper(
        authors="Xing et al.",
        title="Achieving flexible fairness metrics in federated medical imaging",
        venue="Nature Communications",
        year=2025,
        url="https://doi.org/10.1038/s41467-025-58549-0",
    ),
)
