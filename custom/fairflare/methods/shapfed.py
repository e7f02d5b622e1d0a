# SPDX-License-Identifier: Apache-2.0
"""ShapFed: class-wise contributions."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

SHAPFED = Paper(
    authors="Tastan et al.",
    title="Redefining Contributions: Shapley-Driven Federated Learning",
    venue="IJCAI",
    year=2024,
    url="https://arxiv.org/abs/2406.00569",
)


method(
    "shapfed",
    title="ShapFed",
    summary="Weighs sites by how their last layer's update agrees with the sum, class by class; can reward sites.",
    rule="shapfed",
    paper=SHAPFED,
    probes=("held-classes",),
)
