# SPDX-License-Identifier: Apache-2.0
"""APFL: each site uses a mixture of the shared model and one of its own, which learns what the mixture lacks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import method
from fairflare.core.types import Batch, Cost, LocalWork, Objective
from fairflare.core.validation import Range
from fairflare.trainers.base import Optimizer, PlainTrainer, keep_optimizer_beside, optimizer_beside

LOCAL, ALPHA = "local model", "mixing weight"
"""Keys of a site's memory: v and alpha."""


@method(
    "apfl",
    title="APFL",
    summary="FedAvg, and at each site a mixture of the shared model with one of its own.",
    paper="Deng et al.: Adaptive Personalized Federated Learning. arXiv 2020. https://arxiv.org/abs/2003.13461",
)
@dataclass(frozen=True)
class APFL(PlainTrainer):
    """The shared model w trains as in FedAvg; v descends f(m) at the mixture m = alpha v + (1 - alpha) w.

    Deng et al., Algorithm 1. Every site's v begins as the first model that it receives. The personal model is m.

    Args:
        alpha: v's share of the mixture at first, in [0, 1]; 0 is FedAvg, 1 trains v alone.
        adapt: true moves alpha by -lr <v - w, gradient of f(m)>, once a round at its first batch, within [0, 1].
    """

    cost: ClassVar[Cost] = Cost(forward=2, backward=2)
    keeps_personal_model: ClassVar[bool] = True
    alpha: Annotated[float, Range(0, 1)] = 0.5
    adapt: bool = False

    def setup(self, work: LocalWork) -> None:
        """v and alpha as the last round left them, and m of them and w^t."""
        own, mixed = copy.deepcopy(work.network), copy.deepcopy(work.network)
        own.load_state_dict(work.memory.get(LOCAL, work.received))
        mixed.load_state_dict(work.personal or work.received)
        alpha = work.memory.get(ALPHA, torch.tensor(self.alpha, dtype=torch.float64)) if self.adapt else self.alpha
        alpha = torch.as_tensor(alpha, dtype=torch.float64).to(work.device)
        work.scratch.update(own=own, mixed=mixed, alpha=alpha)
        _mix(work)
        optimizer_beside(work, own)

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        """One step of w and one of v, both with gradients from before; returns w's loss."""
        own, mixed, alpha = (work.scratch[name] for name in ("own", "mixed", "alpha"))
        mixed.zero_grad(set_to_none=True)
        self.backward(work, objective, batch, mixed)
        for v, m in zip(own.parameters(), mixed.parameters(), strict=True):
            v.grad = None if m.grad is None else m.grad * alpha
        if self.adapt and not work.steps:
            work.scratch["alpha"] = (alpha - work.training.lr * _slope(work)).clamp(0, 1)
        loss = super().step(work, optimizer, objective, batch)
        work.scratch["beside"].step()
        _mix(work)
        return loss

    def finish(self, work: LocalWork) -> None:
        own, mixed = ({k: v.clone() for k, v in work.scratch[name].state_dict().items()} for name in ("own", "mixed"))
        work.personal, work.memory[LOCAL] = mixed, own
        if self.adapt:
            work.memory[ALPHA] = work.scratch["alpha"]
        keep_optimizer_beside(work)


@no_grad
def _mix(work: LocalWork) -> None:
    """m = alpha v + (1 - alpha) w, over parameters; running statistics are m's own."""
    networks = (work.scratch["mixed"], work.scratch["own"], work.network)
    for m, v, w in zip(*(network.parameters() for network in networks), strict=True):
        m.copy_(w + work.scratch["alpha"] * (v - w))


@no_grad
def _slope(work: LocalWork) -> torch.Tensor:
    """<v - w, gradient of f(m)>, the derivative of f(m) by alpha."""
    networks = (work.scratch["mixed"], work.scratch["own"], work.network)
    found = zip(*(network.parameters() for network in networks), strict=True)
    total = torch.zeros((), dtype=torch.float64, device=work.device)
    for m, v, w in found:
        if m.grad is not None:
            total += ((v - w) * m.grad).double().sum()
    return total
