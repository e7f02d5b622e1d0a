# SPDX-License-Identifier: Apache-2.0
"""FedAvgM, FedAdam, FedYogi, FedAdagrad: FedAvg, and a server optimizer that steps along the mean update."""

from __future__ import annotations

from fairflare.core.registry import method
from fairflare.core.types import Paper

HSU = Paper(
    authors="Hsu et al.",
    title="Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
    venue="arXiv",
    year=2019,
    url="https://arxiv.org/abs/1909.06335",
)
REDDI = Paper(
    authors="Reddi et al.",
    title="Adaptive Federated Optimization",
    venue="ICLR",
    year=2021,
    url="https://arxiv.org/abs/2003.00295",
)

method(
    "fedavgm",
    title="FedAvgM",
    summary="FedAvg with momentum on the server: steps along the mean updates of all rounds so far.",
    paper=HSU,
    rule="fedavg",
    server_optimizer="momentum",
)

for id, title, optimizer, how in (
    ("fedadam", "FedAdam", "adam", "a moving average of squared updates"),
    ("fedyogi", "FedYogi", "yogi", "an average of squared updates that changes slowly"),
    ("fedadagrad", "FedAdagrad", "adagrad", "the sum of all squared updates"),
):
    method(
        id,
        title=title,
        summary=f"FedAvg whose server scales every position of its step by {how}.",
        paper=REDDI,
        rule="fedavg",
        server_optimizer=optimizer,
    )
