# SPDX-License-Identifier: Apache-2.0
"""FedCI: Shapley values as weights."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.methods.fedce import FEDCE

method(
    "fedci",
    title="FedCI",
    summary="Weighs sites by Shapley values that all sites measure in every round; up to 2^K - 1 models are sent.",
    rule="fedci",
    paper=FEDCE,
    probes=("local-error", "coalition-error"),
    shared={"score_metric": ("probe.local-error.score_metric", "probe.coalition-error.score_metric")},
)
