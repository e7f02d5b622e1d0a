# SPDX-License-Identifier: Apache-2.0
"""AFL: agnostic federated learning."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

method(
    "afl",
    title="AFL",
    summary="Weighs sites for the worst mixture of them: weights climb with the losses, projected on the simplex.",
    rule="afl",
    paper=Paper(
        authors="Mohri et al.",
        title="Agnostic Federated Learning",
        venue="ICML",
        year=2019,
        url="https://arxiv.org/abs/1902.00146",
    ),
    probes=("loss",),
)
