# SPDX-License-Identifier: Apache-2.0
"""What every trainer is: an epoch loop around one step, the local optimizer and the local objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fairflare.core.execution import ahead
from fairflare.core.objectives import Objective
from fairflare.core.types import PERSONAL, Batch, Cost, LocalWork, Need, Number, Offer, StateDict, TensorSpec, Training
from fairflare.trainers.batches import local_batches
from fairflare.trainers.optimizers import SGD, Adam


class Trainer(ABC):
    """A way of local training: a frozen dataclass of parameters; a concrete trainer implements ``step``.

    In each round ``setup`` is called once, then ``step`` for every batch, then ``finish``. What one of them needs from
    another lies in ``work.scratch`` (this round only) or ``work.memory`` (the rounds to come).
    """

    cost: ClassVar[Cost] = Cost(forward=1, backward=1)
    sends: ClassVar[tuple[Number | TensorSpec, ...]] = ()
    """What ``work.send_numbers`` and ``work.send_tensors`` may hold after ``finish``; nothing else leaves a site."""
    receives: ClassVar[tuple[TensorSpec, ...]] = ()
    """What the rule may send in ``work.tensors`` beside the model."""
    keeps_personal_model: ClassVar[bool] = False
    """Whether every site has a whole model of its own, which ``finish`` leaves in ``work.personal``."""

    def train(self, work: LocalWork) -> float:
        """Train ``work.network`` in place from the model of the round; ``work.steps`` counts the optimizer steps.

        Returns:
            The mean training loss, each batch measured before its step.
        """
        try:
            return float(self._train(work))
        finally:
            work.scratch.clear()

    def _train(self, work: LocalWork) -> Tensor:
        """See ``train``; nothing in here reads a number from the device, so that a GPU always has work ahead."""
        work.network.train()
        optimizer = make_optimizer(work.network, work.training)
        if work.training.keep_optimizer and "optimizer" in work.memory:
            optimizer.load_state_dict(work.memory["optimizer"])
        work.steps = 0
        self.setup(work)
        objective = self.objective(work)
        total, seen = torch.zeros((), device=work.device, dtype=torch.float64), 0
        for batch in ahead(local_batches(work), work.device):
            work.stop_if_aborted()
            total += self.step(work, optimizer, objective, batch.to(work.device)).detach() * len(batch.targets)
            seen += len(batch.targets)
            work.steps += 1
        self.finish(work)
        if work.training.keep_optimizer:
            work.memory["optimizer"] = optimizer.state_dict()
        return total / max(seen, 1)

    def setup(self, work: LocalWork) -> None:  # noqa: B027  (most trainers prepare nothing)
        """Called before the first step of a round: put what the steps need into ``work.scratch``."""

    def finish(self, work: LocalWork) -> None:  # noqa: B027  (most trainers keep and send nothing)
        """Called after the last step of a round: fill ``work.memory``, ``work.send_numbers``, ``work.send_tensors``."""

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        """Names of the model's entries that stay at each site; none by default.

        No update of them leaves a site, and the server's model keeps their initial values.

        Args:
            model: a state dict; only names and shapes are looked at, so that server and sites agree.

        Raises:
            UserError: the model has nothing that this trainer could keep at the sites.
        """
        return frozenset()

    def site_model(self, received: StateDict, memory: Mapping[str, Any]) -> StateDict:
        """The model that a site measures and trains in a round.

        By default the received one, with the site's personal entries, once it has some, in place of the server's.

        Args:
            received: w^t as the server sent it.
            memory: what the site has kept from the rounds before.
        """
        own = memory.get(PERSONAL, {})
        return received | {key: own[key] for key in self.personal_entries(received) if key in own}

    def personal_model(self, received: StateDict, memory: Mapping[str, Any]) -> StateDict | None:
        """The model that is the site's own, evaluated beside the received one; None where it has none (yet)."""
        if PERSONAL not in memory:
            return None
        if self.keeps_personal_model:
            return dict(memory[PERSONAL])
        return self.site_model(received, memory) if self.personal_entries(received) else None

    def objective(self, work: LocalWork) -> Objective:
        """What the steps minimise: the task's objective with the site's own logit adjustment."""
        return work.loss(work.training.logit_tau)

    @property
    def needs(self) -> tuple[Need, ...]:
        """What it needs of every site's data beyond an example to train on; nothing by default."""
        return ()

    def missing(self, offer: Offer) -> str:
        """What the task lacks for this trainer, in words that end a sentence; empty when nothing is missing."""
        return ""

    def unsuited(self, network: nn.Module) -> str:
        """Why this trainer cannot train ``network``, in words that end a sentence; empty where it can."""
        return ""

    def backward(self, work: LocalWork, objective: Objective, batch: Batch, network: nn.Module | None = None) -> Tensor:
        """Add the gradient of the batch's mean loss to the network's gradients; returns that loss.

        Args:
            work: the round's.
            objective: see ``objective``.
            batch: on the device.
            network: another one than ``work.network``, e.g. the site's personal model.
        """

        def part(outputs: Tensor, rows: slice) -> Tensor:
            return objective(outputs, batch.targets[rows]) * (len(outputs) / len(batch.targets))

        return work.execution.backward(network or work.network, batch.inputs, part)

    @abstractmethod
    def step(self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch) -> Tensor:
        """One optimizer step on one batch; returns the batch's mean loss at the weights before it."""


def make_optimizer(network: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Adam with betas (.9, adam_beta2) or SGD over the trainable parameters, fused: one pass over memory."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    shared: dict[str, Any] = {"lr": training.lr, "weight_decay": training.weight_decay, "fused": True}
    if training.optimizer == "sgd":
        return SGD(parameters, momentum=training.momentum, **shared)
    return Adam(parameters, betas=(0.9, training.adam_beta2), **shared)
