# SPDX-License-Identifier: Apache-2.0
"""A model's mean loss on a site's own data, one number: F_k(w^t) of the received one, F_k(w_k) of the trained one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import probe
from fairflare.core.types import LARGEST_LOSS, Cost, LocalWork, Need, Number, SplitName
from fairflare.core.validation import Few
from fairflare.probes.base import Probe


@probe("loss")
@dataclass(frozen=True)
class Loss(Probe):
    """Mean of the task's loss in evaluation mode and with evaluation transforms, without logit adjustment.

    Args:
        loss_split: the split that is measured.
        probe_batch: examples per forward pass; changes memory and rounding only.
    """

    cost: ClassVar[Cost] = Cost(forward=1)
    reports: ClassVar[tuple[Number, ...]] = (
        Number("loss", 0.0, LARGEST_LOSS, "mean loss of the received model on one split of the site's data"),
    )

    loss_split: Literal["train", "val"] = "train"
    probe_batch: Few = 64

    def __post_init__(self) -> None:
        if self.probe_batch < 1:
            raise ValueError(f"probe_batch must be at least 1, got {self.probe_batch}")

    def measure(self, work: LocalWork) -> dict[str, float]:
        return {"loss": mean_loss(work, self.loss_split, self.probe_batch)}

    @property
    def needs(self) -> tuple[Need, ...]:
        return needs_of(self.loss_split)


@probe("trained-loss")
@dataclass(frozen=True)
class TrainedLoss(Loss):
    """As ``Loss``, after local training.

    Args:
        loss_split: as in ``Loss``.
        probe_batch: as in ``Loss``.
    """

    reports: ClassVar[tuple[Number, ...]] = (
        Number("trained_loss", 0.0, LARGEST_LOSS, "mean loss of the site's trained model on one split of its own data"),
    )
    when = "trained"

    def measure(self, work: LocalWork) -> dict[str, float]:
        return {"trained_loss": mean_loss(work, self.loss_split, self.probe_batch)}


def needs_of(split: SplitName) -> tuple[Need, ...]:
    """An example in ``split``; a site always has one to train on."""
    return () if split == "train" else (Need(split, 1, "the method weighs sites by the loss on it"),)


@no_grad
def mean_loss(work: LocalWork, split: SplitName, batch_size: int) -> float:
    """The mean loss of ``work.network`` over ``split``, summed in float64.

    Args:
        work: of the round.
        split: with at least one example.
        batch_size: examples per forward pass, >= 1.
    """
    network, objective = work.network.eval(), work.loss()
    total = torch.zeros((), dtype=torch.float64, device=work.device)
    for batch in work.data.fixed(split, batch_size):
        work.stop_if_aborted()
        there = batch.to(work.device)
        total += objective(network(there.inputs), there.targets, reduction="none").double().sum()
    return float(total) / work.data.size(split)
