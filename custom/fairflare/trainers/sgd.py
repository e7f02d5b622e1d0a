# SPDX-License-Identifier: Apache-2.0
"""Plain mini-batch training with the task's optimizer: what FedAvg does at a site."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fairflare.core.objectives import Objective
from fairflare.core.registry import trainer
from fairflare.core.types import Batch, LocalWork
from fairflare.trainers.base import Trainer


@trainer("sgd")
@dataclass(frozen=True)
class PlainTrainer(Trainer):
    """One gradient per batch, one optimizer step (SGD or Adam, as the task's training settings say).

    A trainer that only adds terms to the gradient derives from it and implements ``correct_gradients``.
    """

    def step(
        self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch
    ) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = self.backward(work, objective, batch)
        self.correct_gradients(work)
        optimizer.step()
        return loss

    def correct_gradients(self, work: LocalWork) -> None:
        """Called between the backward pass and the optimizer's step: change the gradients of ``work.network``."""
