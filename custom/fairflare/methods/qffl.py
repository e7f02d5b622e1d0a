# SPDX-License-Identifier: Apache-2.0
"""q-FedAvg, and q-FFL as weights."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

QFFL = Paper(
    authors="Li et al.",
    title="Fair Resource Allocation in Federated Learning",
    venue="ICLR",
    year=2020,
    url="https://arxiv.org/abs/1905.10497",
)


method(
    "qfedavg",
    title="q-FedAvg",
    summary="Weighs sites by their loss to the power q, with a step that shrinks where the losses are steep.",
    rule="qfedavg",
    paper=QFFL,
    probes=("loss",),
)

method(
    "qffl",
    title="q-FFL (weights)",
    summary="Weighs sites by their number of examples and their loss to the power q.",
    rule="qffl",
    paper=QFFL,
    probes=("loss",),
    reference={"prior": "none"},
)
