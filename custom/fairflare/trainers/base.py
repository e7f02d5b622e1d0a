# SPDX-License-Identifier: Apache-2.0
"""What every trainer is: an epoch loop around one step, the local optimizer and the local objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fairflare.contracts import Cost, LocalWork, Training
from fairflare.objectives import Objective, local_objective
from fairflare.seeds import derive


class Trainer(ABC):
    """A way of local training: a frozen dataclass of parameters; a concrete trainer implements ``step``."""

    cost: ClassVar[Cost] = Cost(forward=1, backward=1)

    def train(self, work: LocalWork) -> float:
        """Train ``work.network`` in place from the received model.

        The optimizer is new in every round, as in FedISM+ and FedHEAL.

        Returns:
            The mean training loss, each batch measured before its step.
        """
        work.network.train()
        optimizer = make_optimizer(work.network, work.training)
        objective = local_objective(work.data.class_counts.to(work.device), work.training.logit_tau)
        total, seen = torch.zeros((), device=work.device, dtype=torch.float64), 0
        for epoch in range(work.training.epochs):
            for inputs, targets in work.data.training(work.training.batch_size, derive(work.seed, "epoch", epoch)):
                work.stop_if_aborted()
                inputs, targets = inputs.to(work.device), targets.to(work.device)
                total += self.step(work, optimizer, objective, inputs, targets).detach() * len(targets)
                seen += len(targets)
        return float(total) / max(seen, 1)

    @abstractmethod
    def step(
        self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, inputs: Tensor, targets: Tensor
    ) -> Tensor:
        """One optimizer step on one batch; returns the batch's mean loss at the weights before it."""


def make_optimizer(network: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Adam with betas (.9, .999) or SGD over the trainable parameters, in torch's fused form (one pass over memory)."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    shared = {"lr": training.lr, "weight_decay": training.weight_decay, "fused": True}
    if training.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=training.momentum, **shared)
    return torch.optim.Adam(parameters, **shared)
