# SPDX-License-Identifier: Apache-2.0
"""The received model's loss on a site's training data, altogether and per group of examples.

Zhang et al. (FedUFO), Patterns 5, 2024, Algorithm 1; over all examples, in evaluation mode and with evaluation
transforms, where the authors' code drops the last, incomplete batch and with it every small group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import probe
from fairflare.core.types import GROUP_COUNT, GROUP_LOSS, LARGEST_LOSS, MOST_EXAMPLES, Cost, LocalWork, Number, Outline
from fairflare.core.validation import Few
from fairflare.privacy.counts import released
from fairflare.probes.base import Probe


@probe("group-loss")
@dataclass(frozen=True)
class GroupLoss(Probe):
    """Mean loss of the site and, as far as the site's minimum count lets them leave, size and mean loss per group."""

    cost: ClassVar[Cost] = Cost(forward=1)
    reports: ClassVar[tuple[Number, ...]] = (
        Number("loss", 0.0, LARGEST_LOSS, "mean loss of the received model on the training split"),
    )

    probe_batch: Few = 64

    def scalars(self, outline: Outline) -> tuple[Number, ...]:
        per_group = [
            (
                Number(f"{GROUP_LOSS}/{name}", 0.0, LARGEST_LOSS, f"mean loss of the received model on group {name}"),
                Number(f"{GROUP_COUNT}/{name}", 0.0, float(MOST_EXAMPLES), f"training examples of group {name}"),
            )
            for name in outline.groups
        ]
        return (*self.reports, *(scalar for pair in per_group for scalar in pair))

    @no_grad
    def measure(self, work: LocalWork) -> dict[str, float]:
        """ "loss": the mean over the training split, >= 0; of each group that may leave its mean and its count.

        Examples in no group count in "loss" alone. Nothing of a group leaves whose size may not (``released``).
        """
        network, objective = work.network.eval(), work.loss()
        counts = work.data.group_counts.tolist()
        sums = torch.zeros(len(counts) + 1, dtype=torch.float64)
        for batch in work.data.fixed("train", self.probe_batch):
            work.stop_if_aborted()
            there = batch.to(work.device)
            losses = objective(network(there.inputs), there.targets, reduction="none").double().cpu()
            # Index -1, an example in no group, falls on the last place.
            sums.index_add_(0, batch.groups % len(sums), losses)
        n = work.data.size("train")
        found = {"loss": float(sums.sum()) / n}
        may_leave = released(counts, work.min_count, unknown=n - sum(counts))
        for name, total, count, free in zip(work.groups, sums.tolist(), counts, may_leave):
            if free and count:
                found |= {f"{GROUP_LOSS}/{name}": total / count, f"{GROUP_COUNT}/{name}": float(count)}
        return found
