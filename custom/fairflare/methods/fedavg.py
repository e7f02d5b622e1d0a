# SPDX-License-Identifier: Apache-2.0
"""FedAvg: the baseline."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

method(
    "fedavg",
    title="FedAvg",
    summary="Averages the sites' models by their number of examples: the baseline.",
    rule="fedavg",
    paper=Paper(
        authors="McMahan et al.",
        title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
        venue="AISTATS",
        year=2017,
        url="https://arxiv.org/abs/1602.05629",
    ),
)
