# SPDX-License-Identifier: Apache-2.0
"""Ditto: beside the shared model, each site trains one of its own that a proximal term ties to the shared one."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from fairflare.core.objectives import Objective
from fairflare.core.registry import method, trainer
from fairflare.core.types import Batch, Cost, LocalWork, Paper
from fairflare.functional.proximal import add_proximal
from fairflare.trainers.base import make_optimizer
from fairflare.trainers.sgd import PlainTrainer

PAPER = Paper(
    "Li et al.",
    "Ditto: Fair and Robust Federated Learning Through Personalization",
    "ICML",
    2021,
    "https://arxiv.org/abs/2012.04221",
)


@trainer("ditto")
@dataclass(frozen=True)
class Ditto(PlainTrainer):
    """The shared model trains as in FedAvg; v minimises f(v) + lam/2 ||v - w^t||^2 on the same batches (Algorithm 1).

    Every site's v begins as the first model that it receives, and has an optimizer of its own in each round.

    Args:
        lam: lambda >= 0; 0 trains v alone, a large one keeps it at w^t. The authors choose among 0.1, 1 and 2.
    """

    cost = Cost(forward=2, backward=2)
    keeps_personal_model = True
    lam: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.lam < float("inf"):
            raise ValueError(f"lam must be finite and >= 0, got {self.lam}")

    def setup(self, work: LocalWork) -> None:
        """Take up v where the last round left it, and keep w^t."""
        own = copy.deepcopy(work.network)
        own.load_state_dict(work.personal or work.received)
        anchor = [p.detach().clone() for p in work.network.parameters()]
        work.scratch.update(own=own, optimizer=make_optimizer(own, work.training), anchor=anchor)

    def step(self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch) -> Tensor:
        """One step of the shared model, then one of v; returns the shared model's loss."""
        loss = super().step(work, optimizer, objective, batch)
        own, own_optimizer, anchor = (work.scratch[name] for name in ("own", "optimizer", "anchor"))
        own_optimizer.zero_grad(set_to_none=True)
        self.backward(work, objective, batch, own)
        add_proximal(list(own.parameters()), anchor, self.lam)
        own_optimizer.step()
        return loss

    def finish(self, work: LocalWork) -> None:
        """v is the site's own model."""
        work.personal = work.scratch["own"].state_dict()


method(
    "ditto",
    title="Ditto",
    summary="FedAvg, and at each site a model of its own that is drawn towards the shared one.",
    paper=PAPER,
    rule="fedavg",
    trainer="ditto",
)
