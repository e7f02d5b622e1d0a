# SPDX-License-Identifier: Apache-2.0
"""FedUFO: distributionally robust weights of sites and groups."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

FEDUFO = Paper(
    authors="Zhang et al.",
    title="Unified fair federated learning for digital healthcare",
    venue="Patterns",
    year=2024,
    url="https://doi.org/10.1016/j.patter.2023.100907",
)


method(
    "fedufo",
    title="FedUFO",
    summary="Raises the weight of sites and groups of patients with larger losses; for subpopulations.",
    rule="fedufo",
    paper=FEDUFO,
    trainer="weighted",
    probes=("group-loss",),
    reference={"apply": "local", "weight_sum": "batch", "radius": 0.0, "keep_optimizer": True},
)
