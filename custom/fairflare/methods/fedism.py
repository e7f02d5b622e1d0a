# SPDX-License-Identifier: Apache-2.0
"""FedISM and FedISM+: one rule, a constant and a growing search radius, which trainer and probe share."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

FEDISM = Paper(
    authors="Wu et al.",
    title="From Optimization to Generalization: Fair Federated Learning against Quality Shift via Inter-Client "
    "Sharpness Matching",
    venue="IJCAI",
    year=2024,
    url="https://arxiv.org/abs/2404.17805",
)
FEDISM_PLUS = Paper(
    authors="Wu et al.",
    title="Fair Federated Medical Image Classification Against Quality Shift via Inter-Client Progressive State "
    "Matching",
    venue="arXiv",
    year=2025,
    url="https://arxiv.org/abs/2503.09587",
)
REFERENCE = {"probe_transform": "train"}
RADIUS = {
    "rho_max": ("trainer.rho_max", "probe.sharpness.rho_max"),
    "rho_tau": ("trainer.rho_tau", "probe.sharpness.rho_tau"),
}
"""One search radius: the state of convergence is measured where the steps look."""


method(
    "fedism",
    title="FedISM",
    summary="Matches sharpness across sites at one fixed search radius; for image-quality shift.",
    rule="fedism",
    paper=FEDISM,
    trainer="gsam",
    probes=("sharpness",),
    settings={"rho_max": 0.05, "rho_tau": 0.0},
    reference=REFERENCE,
    shared=RADIUS,
)

method(
    "fedism-plus",
    title="FedISM+",
    summary="Matches sharpness (S) or perturbed loss (L) at a radius that grows over the rounds; for quality shift.",
    rule="fedism",
    paper=FEDISM_PLUS,
    trainer="gsam",
    probes=("sharpness",),
    settings={"rho_max": 0.1, "rho_tau": 0.5},
    reference=REFERENCE,
    shared=RADIUS,
)
