# SPDX-License-Identifier: Apache-2.0
"""How the server steps along the combined update: with it, with momentum (FedAvgM), or FedAdagrad, FedAdam, FedYogi.

    m <- beta m + Delta          (FedAvgM, "undamped", the paper)      m <- beta m + (1 - beta) Delta     ("damped")
    w <- w + eta m

Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
https://arxiv.org/abs/1909.06335.

    m <- b1 m + (1 - b1) Delta
    v <- v + Delta^2                              Adagrad
    v <- b2 v + (1 - b2) Delta^2                  Adam
    v <- v - (1 - b2) Delta^2 sign(v - Delta^2)   Yogi
    w <- w + eta m / (sqrt v + tau)

m starts at 0 and v at tau^2; no bias correction. Reddi et al., "Adaptive Federated Optimization", ICLR 2021,
https://arxiv.org/abs/2003.00295, Algorithm 2. Delta is the update that the rule has combined.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch

from fairflare.core.registry import method, server_optimizer
from fairflare.core.types import Paper, StateDict
from fairflare.core.validation import Range

__path__: list[str] = []  # plugins of 0.2 import `server_optimizers.base`, see `MOVED` in core.plugins
State = Mapping[str, Any]
"""Its memory: tensors by name and entry, saved with the model after every round."""


class ServerOptimizer(ABC):
    """A frozen dataclass of parameters whose methods are pure functions of their arguments.

    The combined update is Delta = w' - w^t, where w' is the rule's model. Only trainable floating-point entries are
    stepped: buffers (running statistics, counters) are as the rule made them.
    """

    @abstractmethod
    def change(self, update: StateDict, state: State) -> tuple[StateDict, State]:
        """w^{t+1} - w^t entry by entry, and the next state.

        Args:
            update: Delta of every trainable entry, in float32 or wider.
            state: what the last call returned; empty before the first round.
        """

    def step(
        self, model: StateDict, combined: StateDict, state: State, trainable: Collection[str]
    ) -> tuple[StateDict, State]:
        """w^{t+1} and the next state.

        Args:
            model: w^t.
            combined: w', what the rule made of this round.
            state: what the last step returned; empty before the first.
            trainable: names of the trainable entries.
        """
        moved = [key for key in model if key in trainable and key in combined and model[key].is_floating_point()]
        change, after = self.change({key: _wide(combined[key]) - _wide(model[key]) for key in moved}, state)
        return combined | {key: (_wide(model[key]) + change[key]).to(model[key].dtype) for key in moved}, after


@server_optimizer("none")
@dataclass(frozen=True)
class Add(ServerOptimizer):
    """w^{t+1} = w', bit for bit the rule's model."""

    def change(self, update: StateDict, state: State) -> tuple[StateDict, State]:
        return update, {}

    def step(
        self, model: StateDict, combined: StateDict, state: State, trainable: Collection[str]
    ) -> tuple[StateDict, State]:
        """``combined`` itself: w^t + (w' - w^t) would round."""
        return combined, {}


def _wide(value: torch.Tensor) -> torch.Tensor:
    """``value`` in float32 or its own wider type."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


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


@dataclass(frozen=True)
class Adaptive(ServerOptimizer):
    """What the three share.

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


@server_optimizer("adagrad")
@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad: v is the sum of all squared updates; without momentum, as in the paper."""

    beta1: Annotated[float, Range(0, 1)] = 0.0

    def second_moment(self, v: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """v + Delta^2."""
        return v + square


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


REDDI = Paper.cited("Reddi et al.: Adaptive Federated Optimization. ICLR 2021. https://arxiv.org/abs/2003.00295")

SCALED = "FedAvg whose server scales every position of its step by {}."

method(
    "fedadam",
    title="FedAdam",
    summary=SCALED.format("a moving average of squared updates"),
    paper=REDDI,
    rule="fedavg",
    server_optimizer="adam",
)
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
