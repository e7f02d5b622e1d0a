# SPDX-License-Identifier: Apache-2.0
"""A trainer that fills a field of the train answer which the schema has been given, and a rule that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fairflare.aggregators.base import State, WeighingRule, shares
from fairflare.core.registry import method, rule, trainer
from fairflare.core.types import Batch, Info, LocalWork, Objective, Paper, Reply, Weights
from fairflare.trainers.base import Trainer

PAPER = Paper("Nobody", "A field", "Nowhere", 2020, "https://example.org")


@trainer("counting")
@dataclass(frozen=True)
class Counting(Trainer):
    """Plain training that counts examples, an example as often as it is seen."""

    def step(self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch) -> Tensor:
        """One optimizer step."""
        optimizer.zero_grad(set_to_none=True)
        loss = self.backward(work, objective, batch)
        optimizer.step()
        work.measured["seen"] = work.measured.get("seen", 0) + len(batch.targets)
        return loss


@rule("counting")
@dataclass(frozen=True)
class BySeen(WeighingRule):
    """Weighs by what sites have seen."""

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """Shares of the counts."""
        return shares({reply.site: reply.measured["seen"] for reply in replies}), state


method("counting", title="C", summary="Weighs by a new field.", paper=PAPER, rule="counting", trainer="counting")
