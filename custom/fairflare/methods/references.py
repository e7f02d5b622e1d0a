# SPDX-License-Identifier: Apache-2.0
"""What federated methods are held against: every site alone, and one model on all sites' data."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

MCMAHAN = Paper(
    authors="McMahan et al.",
    title="Communication-Efficient Learning of Deep Networks from Decentralized Data",
    venue="AISTATS",
    year=2017,
    url="https://arxiv.org/abs/1602.05629",
)

method(
    "solo",
    title="Solo",
    summary="Every site trains alone, with a model of its own: what it would have without the federation.",
    rule="solo",
    paper=MCMAHAN,
)

method(
    "pooled",
    title="Pooled",
    summary="One model trains on the training data of all sites; for public and simulated data alone.",
    rule="fedavg",
    selector="pool",
    paper=MCMAHAN,
)
