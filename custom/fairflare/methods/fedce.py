# SPDX-License-Identifier: Apache-2.0
"""FedCE: contribution estimation."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

FEDCE = Paper(
    authors="Jiang et al.",
    title="Fair Federated Medical Image Segmentation via Client Contribution Estimation",
    venue="CVPR",
    year=2023,
    url="https://arxiv.org/abs/2303.16520",
)


method(
    "fedce",
    title="FedCE",
    summary="Weighs sites by estimated contribution: novel updates, and loss of accuracy without them.",
    rule="fedce",
    paper=FEDCE,
    probes=("leave-one-out", "local-error"),
    shared={"score_metric": ("probe.leave-one-out.score_metric", "probe.local-error.score_metric")},
)
