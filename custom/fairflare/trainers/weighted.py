# SPDX-License-Identifier: Apache-2.0
"""Plain training in which every example's loss counts with a weight that the server sets for its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from fairflare.core.execution import moved
from fairflare.core.registry import trainer
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, LocalWork, Objective
from fairflare.trainers.base import Optimizer, Trainer


@trainer("weighted")
@dataclass(frozen=True)
class WeightedTrainer(Trainer):
    """loss = mean over the batch of s(x) f(x), where s = s_0 + s_g is ordered as "weight" and "weight/GROUP".

    With the order "relative" s is divided by its mean over the site's training examples, so that only differences
    between groups act here (FedUFO's server then weighs the site as a whole). Without orders every s is 1, which is
    plain training. Zhang et al. (FedUFO), Patterns 5, 2024, Algorithm 1.

    With the order "sampled" = beta each step draws for every group g whether its examples have the weight s_0 / beta
    (with probability beta) or s_g / (1 - beta), whose expectation is s (line 7).

    Args:
        weight_sum: "one" as above; "batch" takes s_0 mean f + a sum s_g f / sum s_g over the batch, with a the mean of
            s_g over the groups, as the authors' code does.
    """

    heeds = ("weight", "sampled")
    weight_sum: Literal["one", "batch"] = "one"

    def setup(self, work: LocalWork) -> None:
        shared, of_groups = self._weights(work)
        own = float(of_groups[:-1].mean()) if work.groups else 0.0
        work.scratch.update(shared=shared, groups=of_groups.to(work.device), own=own)

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        shared, of_groups, own = (work.scratch[name] for name in ("shared", "groups", "own"))
        if beta := work.orders.get("sampled", 0.0):
            draws = torch.Generator().manual_seed(derive(work.seed, "sampled", work.steps))
            by_site = (torch.rand(len(of_groups), generator=draws) < beta).to(work.device)
            shared, of_groups = 0.0, torch.where(by_site, shared / beta, of_groups / (1 - beta))
            own = of_groups[:-1].mean()
        # Index -1, an example in no group, falls on the last place.
        s = of_groups[moved(batch.groups % len(of_groups), work.device)]
        optimizer.zero_grad(set_to_none=True)
        total, plain = s.sum(), torch.zeros(len(s), dtype=torch.float64, device=work.device)

        def part(outputs: torch.Tensor, rows: slice) -> torch.Tensor:
            losses = objective(outputs, batch.targets[rows], reduction="none")
            plain[rows] = losses.detach().double()
            share = len(losses) / len(s)
            if self.weight_sum == "one":
                weighted: torch.Tensor = ((shared + s[rows]) * losses).mean() * share
            else:
                there = total > 0  # a tensor: no question to a GPU in a step
                grouped = torch.where(there, own * (s[rows] * losses).sum() / torch.where(there, total, 1.0), 0.0)
                weighted = shared * losses.mean() * share + grouped
            return weighted

        work.execution.backward(work.network, batch.inputs, part)
        optimizer.step()
        return plain.mean()

    def _weights(self, work: LocalWork) -> tuple[float, torch.Tensor]:
        """s_0 and float32 (M + 1,) s_g; the last one is for examples in no group.

        A group that the server sets no weight for, because its numbers do not leave the site, has the mean of the
        others at this site: whoever cannot be counted must not count for nothing.
        """
        shared = work.orders.get("weight", 1.0)
        counts = work.data.group_counts.double()
        known = torch.tensor([f"weight/{g}" in work.orders for g in work.groups], dtype=torch.bool)
        named = torch.tensor([work.orders.get(f"weight/{g}", 0.0) for g in work.groups], dtype=torch.float64)
        usual = _mean(named[known], counts[known]) if known.any() else 0.0
        named = torch.where(known, named, usual)
        mean = _mean(named, counts) if len(named) else 0.0
        whole = shared + mean if work.orders.get("relative") and shared + mean > 0 else 1.0
        return shared / whole, (torch.cat((named, torch.tensor([usual]).double())) / whole).float()


def _mean(values: torch.Tensor, counts: torch.Tensor) -> float:
    """The mean over examples; over groups where none of them has an example."""
    return float((values @ counts) / counts.sum()) if counts.sum() else float(values.mean())
