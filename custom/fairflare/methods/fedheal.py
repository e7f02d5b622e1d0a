# SPDX-License-Identifier: Apache-2.0
"""FedHEAL: consistent updates only, distance-driven weights."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

FEDHEAL = Paper(
    authors="Chen et al.",
    title="Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity",
    venue="CVPR",
    year=2024,
    url="https://arxiv.org/abs/2405.16585",
)


method(
    "fedheal",
    title="FedHEAL",
    summary="Ignores inconsistent parameter updates and favours sites far from the model; for domain skew.",
    rule="fedheal",
    paper=FEDHEAL,
)
