# SPDX-License-Identifier: Apache-2.0
"""MOON: model-contrastive local training."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

method(
    "moon",
    title="MOON",
    summary="FedAvg whose local features stay close to the shared model's and away from the site's last ones.",
    rule="fedavg",
    trainer="moon",
    paper=Paper(
        authors="Li et al.",
        title="Model-Contrastive Federated Learning",
        venue="CVPR",
        year=2021,
        url="https://arxiv.org/abs/2103.16257",
    ),
)
