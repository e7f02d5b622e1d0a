# SPDX-License-Identifier: Apache-2.0
"""FedAvgM: momentum on the server.

    m <- beta m + Delta          ("undamped", the paper)      m <- beta m + (1 - beta) Delta     ("damped")
    w <- w + eta m

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
https://arxiv.org/abs/1909.06335.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from fairflare.core.registry import method, server_optimizer
from fairflare.core.types import Paper, StateDict
from fairflare.core.validation import Range
from fairflare.server_optimizers.base import ServerOptimizer, State


@server_optimizer("momentum")
@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """Server momentum; lr = 1 and beta = 0 add the combined update, as without a server optimizer (up to rounding).

    Args:
        lr: eta > 0, the server's learning rate.
        beta: in [0, 1), how much of the direction before is kept.
        damped: True multiplies the new update by 1 - beta.
    """

    lr: Annotated[float, Range(0, 1e6)] = 1.0
    beta: Annotated[float, Range(0, 1)] = 0.9
    damped: bool = False

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"lr must be > 0, got {self.lr}")
        if not 0 <= self.beta < 1:
            raise ValueError(f"beta must be in [0, 1), got {self.beta}")

    def change(self, update: StateDict, state: State) -> tuple[StateDict, State]:
        before, share = state.get("m", {}), 1 - self.beta if self.damped else 1.0
        m = {key: self.beta * before.get(key, torch.zeros_like(d)) + share * d for key, d in update.items()}
        return {key: self.lr * value for key, value in m.items()}, {"m": m}


HSU = Paper.cited(
    "Hsu et al.: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification. arXiv "
    "2019. https://arxiv.org/abs/1909.06335"
)

method(
    "fedavgm",
    title="FedAvgM",
    summary="FedAvg with momentum on the server: steps along the mean updates of all rounds so far.",
    paper=HSU,
    rule="fedavg",
    server_optimizer="momentum",
)
