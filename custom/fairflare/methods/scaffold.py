# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD: control variates against client drift."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

SCAFFOLD = Paper(
    authors="Karimireddy et al.",
    title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    venue="ICML",
    year=2020,
    url="https://arxiv.org/abs/1910.06378",
)


method(
    "scaffold",
    title="SCAFFOLD",
    summary="Control variates take each site's own drift out of its local steps; for SGD and many local steps.",
    rule="fedavg",
    trainer="scaffold",
    settings={"weighting": "uniform"},
    shared={"weighting": ("rule.weighting", "trainer.weighting")},
    paper=SCAFFOLD,
)
