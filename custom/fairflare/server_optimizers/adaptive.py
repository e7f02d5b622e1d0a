# SPDX-License-Identifier: Apache-2.0
"""Server optimizers with memory: FedAvgM's momentum, and FedAdam.

    m <- beta m + Delta          (FedAvgM, "undamped", the paper)      m <- beta m + (1 - beta) Delta     ("damped")
    w <- w + eta m

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
https://arxiv.org/abs/1909.06335.

    m <- b1 m + (1 - b1) Delta
    v <- b2 v + (1 - b2) Delta^2
    w <- w + eta m / (sqrt v + tau)

m starts at 0 and v at tau^2; no bias correction. Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
https://arxiv.org/abs/2003.00295, Algorithm 2. Delta is the update that the rule has combined.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from fairflare.core.registry import method, server_optimizer
from fairflare.core.types import StateDict
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


HSU = (
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


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """What FedAdam shares with optimizers that differ in the second moment.

    Args:
        lr: eta > 0, the server's learning rate; choose it by a grid (the paper: 10^-3 to 10).
        beta1: b1 in [0, 1), how much of the direction before is kept.
        tau: > 0, adaptivity: larger values step more like plain momentum; updates far below it move the model little.
        v_start: what v starts at, "tau" (tau^2, the paper) or "zero" (other packages).
    """

    lr: Annotated[float, Range(0, 1e6)] = 0.01
    beta1: Annotated[float, Range(0, 1)] = 0.9
    tau: Annotated[float, Range(0, 1e6)] = 1e-3
    v_start: Literal["tau", "zero"] = "tau"

    def __post_init__(self) -> None:
        for name in ("lr", "tau"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name, 0) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")

    @abstractmethod
    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """The next v from v and Delta^2."""

    def change(self, update: StateDict, state: State) -> tuple[StateDict, State]:
        start = self.tau**2 if self.v_start == "tau" else 0.0
        first, second = state.get("m", {}), state.get("v", {})
        m, v, change = {}, {}, {}
        for key, delta in update.items():
            m[key] = self.beta1 * first.get(key, torch.zeros_like(delta)) + (1 - self.beta1) * delta
            v[key] = self.second_moment(second.get(key, torch.full_like(delta, start)), delta.square())
            change[key] = self.lr * m[key] / (v[key].sqrt() + self.tau)
        return change, {"m": m, "v": v}


@server_optimizer("adam")
@dataclass(frozen=True)
class Adam(Adaptive):
    """FedAdam: v is a moving average of squared updates.

    Args:
        beta2: b2 in [0, 1).
    """

    beta2: Annotated[float, Range(0, 1)] = 0.99

    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """b2 v + (1 - b2) Delta^2."""
        return self.beta2 * v + (1 - self.beta2) * square


REDDI = "Reddi et al.: Adaptive Federated Optimization. ICLR 2021. https://arxiv.org/abs/2003.00295"

SCALED = "FedAvg whose server scales every position of its step by {}."

method(
    "fedadam",
    title="FedAdam",
    summary=SCALED.format("a moving average of squared updates"),
    paper=REDDI,
    rule="fedavg",
    server_optimizer="adam",
)
