# SPDX-License-Identifier: Apache-2.0
"""What every trainer is: an epoch loop around one step, the local optimizer and the local objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fairflare.contracts import Batch, Cost, LocalWork, Offer, Training
from fairflare.objectives import Objective
from fairflare.seeds import derive


class Trainer(ABC):
    """A way of local training: a frozen dataclass of parameters; a concrete trainer implements ``step``."""

    cost: ClassVar[Cost] = Cost(forward=1, backward=1)

    def train(self, work: LocalWork) -> float:
        """Train ``work.network`` in place from the received model.

        Returns:
            The mean training loss, each batch measured before its step.
        """
        work.network.train()
        optimizer = make_optimizer(work.network, work.training)
        if work.training.keep_optimizer and "optimizer" in work.memory:
            optimizer.load_state_dict(work.memory["optimizer"])
        objective = self.objective(work)
        total, seen = torch.zeros((), device=work.device, dtype=torch.float64), 0
        for epoch in range(work.training.epochs):
            for batch in work.data.training(work.training.batch_size, derive(work.seed, "epoch", epoch)):
                work.stop_if_aborted()
                total += self.step(work, optimizer, objective, batch.to(work.device)).detach() * len(batch.targets)
                seen += len(batch.targets)
        if work.training.keep_optimizer:
            work.memory["optimizer"] = optimizer.state_dict()
        return float(total) / max(seen, 1)

    def objective(self, work: LocalWork) -> Objective:
        """What the steps minimise: the task's objective with the site's own logit adjustment."""
        return work.loss(work.training.logit_tau)

    def missing(self, offer: Offer) -> str:
        """What the task lacks for this trainer, in words that end a sentence; empty when nothing is missing."""
        return ""

    def backward(self, work: LocalWork, objective: Objective, batch: Batch) -> Tensor:
        """Add the gradient of the batch's mean loss to the network's gradients; returns that loss."""

        def part(outputs: Tensor, rows: slice) -> Tensor:
            return objective(outputs, batch.targets[rows]) * (len(outputs) / len(batch.targets))

        return work.execution.backward(work.network, batch.inputs, part)

    @abstractmethod
    def step(self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch) -> Tensor:
        """One optimizer step on one batch; returns the batch's mean loss at the weights before it."""


def make_optimizer(network: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Adam with betas (.9, adam_beta2) or SGD over the trainable parameters, fused: one pass over memory."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    shared = {"lr": training.lr, "weight_decay": training.weight_decay, "fused": True}
    if training.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=training.momentum, **shared)
    return torch.optim.Adam(parameters, betas=(0.9, training.adam_beta2), **shared)
