# SPDX-License-Identifier: Apache-2.0
"""FedFV: conflicting updates are projected."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

FEDFV = Paper(
    authors="Wang et al.",
    title="Federated Learning with Fair Averaging",
    venue="IJCAI",
    year=2021,
    url="https://arxiv.org/abs/2104.14937",
)


method(
    "fedfv",
    title="FedFV",
    summary="Removes from each update what points against the others' before averaging; badly served sites come last.",
    rule="fedfv",
    paper=FEDFV,
    probes=("group-loss",),
)
