# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR: weights per layer."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

FEDLWR = Paper(
    authors="Yan et al.",
    title="A New Perspective to Boost Performance Fairness for Medical Federated Learning",
    venue="MICCAI",
    year=2024,
    url="https://arxiv.org/abs/2410.19765",
)


method(
    "fedlwr",
    title="Fed-LWR",
    summary="Weighs every layer by how far each site's features moved; for feature shift between scanners.",
    rule="fedlwr",
    paper=FEDLWR,
    probes=("layer-similarity",),
    shared={
        "scope": ("rule.scope", "probe.layer-similarity.scope"),
        "group": ("rule.group", "probe.layer-similarity.group"),
    },
    reference={"cka_split": "val", "cka_examples": 0, "keep_optimizer": True, "adam_beta2": 0.99},
)
