# SPDX-License-Identifier: Apache-2.0
"""A site: receives a model, measures, trains, measures again and answers. The same object serves every transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from fairflare.contracts import LocalWork, SiteData, SplitName, StateDict, Training
from fairflare.federation.messages import Answer, Instruction
from fairflare.probes.base import Probe
from fairflare.seeds import derive, seed_everything
from fairflare.trainers.base import Trainer

EVALUATION_BATCH = 128


class Metrics(Protocol):
    """Logits (N, C) and targets (N,) -> named numbers."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """The metrics that are defined on these examples."""


@dataclass
class Site:
    """One hospital's side of a federation.

    Attributes:
        name: the site's name.
        data: its data.
        network: overwritten by every received model; sites in one process may share it.
        trainer: how it trains.
        probes: what it measures; those of the received model run before training, the others after.
        training: local training settings.
        metrics: how the task scores outputs.
        seed: the run's seed.
        device: where it computes.
        stop_if_aborted: called once per batch.
    """

    name: str
    data: SiteData
    network: nn.Module
    trainer: Trainer
    probes: Sequence[Probe]
    training: Training
    metrics: Metrics
    seed: int
    device: torch.device = torch.device("cpu")
    stop_if_aborted: Callable[[], None] = field(default=lambda: None)

    def handle(self, instruction: Instruction) -> Answer:
        """Do what the instruction says; errors go to the caller, which turns them into codes."""
        if instruction.task == "declare":
            return Answer(site=self.name, round=instruction.round.number, n_examples=self.data.size("train"))
        work = {"train": self._train, "evaluate": self._evaluate}
        if instruction.task not in work:
            raise ValueError(f"unknown task {instruction.task!r}; known: declare, {', '.join(work)}")
        seed = derive(self.seed, instruction.task, self.name, instruction.round.number)
        seed_everything(seed)
        self.network.to(self.device)
        self.network.load_state_dict(instruction.model)
        return work[instruction.task](instruction, seed)

    def _train(self, instruction: Instruction, seed: int) -> Answer:
        work = LocalWork(
            self.network,
            self.data,
            self.training,
            instruction.round,
            seed,
            instruction.orders,
            self.device,
            self.stop_if_aborted,
        )
        clock = _Clock()
        metrics = self._score("val")
        clock.lap("validate")
        scalars = self._measure(work, "received")
        clock.lap("probe")
        train_loss = self.trainer.train(work)
        clock.lap("train")
        scalars |= self._measure(work, "trained")
        update = difference(self.network, instruction.model)
        clock.lap("report")
        return Answer(
            site=self.name,
            round=instruction.round.number,
            update=update,
            n_examples=self.data.size("train"),
            scalars=scalars,
            metrics=metrics | {"train_loss": train_loss},
            seconds=clock.laps,
        )

    def _evaluate(self, instruction: Instruction, seed: int) -> Answer:
        splits = {split: self._score(split) for split in ("val", "test")}
        splits["n"] = {split: float(self.data.size(split)) for split in ("val", "test")}
        return Answer(
            site=self.name, round=instruction.round.number, n_examples=self.data.size("train"), metrics=splits
        )

    def _measure(self, work: LocalWork, when: str) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for probe in self.probes:
            if probe.when == when:
                numbers |= probe.measure(work)
        return numbers

    def _score(self, split: SplitName) -> dict[str, float]:
        if not self.data.size(split):
            return {}
        batches = self.data.fixed(split, EVALUATION_BATCH)
        return self.metrics(*predict(self.network, batches, self.device, self.stop_if_aborted))


@torch.no_grad()
def predict(network: nn.Module, batches, device: torch.device, stop_if_aborted=lambda: None) -> tuple[Tensor, Tensor]:
    """Logits (N, C) in float32 and targets (N,) over ``batches``, in evaluation mode, on the CPU."""
    network.eval()
    outputs, targets = [], []
    for inputs, labels in batches:
        stop_if_aborted()
        outputs.append(network(inputs.to(device)).float().cpu())
        targets.append(labels)
    return torch.cat(outputs), torch.cat(targets)


def difference(network: nn.Module, received: StateDict) -> StateDict:
    """D_k = w_k - w^t on the CPU for every floating-point entry; integer buffers stay at the site."""
    return {
        key: value.detach().cpu() - received[key].cpu()
        for key, value in network.state_dict().items()
        if value.is_floating_point()
    }


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name], self._last = now - self._last, now
