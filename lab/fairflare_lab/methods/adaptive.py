# SPDX-License-Identifier: Apache-2.0
"""FedAdagrad and FedYogi: server optimizers that differ from FedAdam in their second moment.

    v <- v + Delta^2                              Adagrad
    v <- v - (1 - b2) Delta^2 sign(v - Delta^2)   Yogi

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, https://arxiv.org/abs/2003.00295, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from fairflare.core.registry import method, server_optimizer
from fairflare.core.validation import Range
from fairflare.server_optimizers.adaptive import REDDI, SCALED, Adaptive


@server_optimizer("adagrad")
@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad: v is the sum of all squared updates; without momentum, as in the paper."""

    beta1: Annotated[float, Range(0, 1)] = 0.0

    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """v + Delta^2."""
        return v + square


@server_optimizer("yogi")
@dataclass(frozen=True)
class Yogi(Adaptive):
    """FedYogi: v moves towards the squared update by at most (1 - b2) Delta^2.

    Args:
        beta2: b2 in [0, 1).
    """

    beta2: Annotated[float, Range(0, 1)] = 0.99

    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """v - (1 - b2) Delta^2 sign(v - Delta^2)."""
        return v - (1 - self.beta2) * square * torch.sign(v - square)


method(
    "fedyogi",
    title="FedYogi",
    summary=SCALED.format("an average of squared updates that changes slowly"),
    paper=REDDI,
    rule="fedavg",
    server_optimizer="yogi",
)


method(
    "fedadagrad",
    title="FedAdagrad",
    summary=SCALED.format("the sum of all squared updates"),
    paper=REDDI,
    rule="fedavg",
    server_optimizer="adagrad",
)
