# SPDX-License-Identifier: Apache-2.0
"""What a site reports of groups of patients: their losses.

Zhang et al. (FedUFO), Patterns 5, 2024, Algorithm 1: the received model's loss, over all examples, in evaluation mode
and with evaluation transforms. The authors' code drops the last, incomplete batch and with it every small group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fairflare.core import types
from fairflare.core.execution import no_grad
from fairflare.core.registry import probe
from fairflare.core.validation import Few
from fairflare.privacy.counts import released
from fairflare.probes.base import Probe


@probe("group-loss")
@dataclass(frozen=True)
class GroupLoss(Probe):
    """Mean loss of the site and, as far as the site's minimum count lets them leave, size and mean loss per group."""

    cost: ClassVar[types.Cost] = types.Cost(forward=1)
    reports: ClassVar[tuple[types.Number, ...]] = (
        types.Number("loss", 0.0, types.LARGEST_LOSS, "mean loss of the received model on the training split"),
    )

    probe_batch: Few = 64

    def scalars(self, outline: types.Outline) -> tuple[types.Number, ...]:
        found, most = list(self.reports), float(types.MOST_EXAMPLES)
        for name in outline.groups:
            meaning = f"mean loss of the received model on group {name}"
            found.append(types.Number(f"{types.GROUP_LOSS}/{name}", 0.0, types.LARGEST_LOSS, meaning))
            found.append(types.Number(f"{types.GROUP_COUNT}/{name}", 0.0, most, f"training examples of group {name}"))
        return tuple(found)

    @no_grad
    def measure(self, work: types.LocalWork) -> dict[str, float]:
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
                found |= {f"{types.GROUP_LOSS}/{name}": total / count, f"{types.GROUP_COUNT}/{name}": float(count)}
        return found
