# SPDX-License-Identifier: Apache-2.0
"""What a site tells of groups of patients, and of classes: losses, and counts that can be added over sites.

The received model's loss: Zhang et al. (FedUFO), Patterns 5, 2024, Algorithm 1; over all examples, in evaluation mode
and with evaluation transforms, where the authors' code drops the last, incomplete batch and with it every small group.

How the received model decides for each group: examples of the positive class and those found among them, of the other
classes and those taken for the positive one. From sums of these a server has the federation's true-positive rates,
which no mean of sites' rates is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch

from fairflare.core import types
from fairflare.core.errors import UserError
from fairflare.core.execution import no_grad
from fairflare.core.registry import probe
from fairflare.core.validation import Few, Range
from fairflare.functional.group_rates import CORRECT, FAMILIES, SEEN
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


MEANINGS = (
    "examples of the positive class in group {}",
    "those of them that the received model calls positive, group {}",
    "examples of the other classes in group {}",
    "those of them that the received model calls positive, group {}",
)
"""Of each of ``FAMILIES``."""
VALIDATION = 10.0
"""Validation examples per training example that the server believes: it knows no site's number of these."""


@probe("fairness-counts")
@dataclass(frozen=True)
class FairnessCounts(Probe):
    """Right answers over all, and four counts of every group whose numbers may leave the site.

    A group's counts leave together or not at all. They stay when it has some examples of either kind, but fewer than
    the site's minimum, and when the counts of such a group would follow from them by subtraction.

    Args:
        positive: index of the positive class.
        count_split: the split that is counted.
    """

    cost: ClassVar[types.Cost] = types.Cost(forward=1)
    reports: ClassVar[tuple[types.Number, ...]] = (
        types.Number(CORRECT, 0.0, float(types.MOST_EXAMPLES), "examples that the received model gets right"),
        types.Number(SEEN, 0.0, float(types.MOST_EXAMPLES), "examples that it was asked for"),
    )

    positive: Annotated[int, Range(0, 9_999)] = 1
    count_split: Literal["train", "val"] = "train"
    probe_batch: Few = 64

    def scalars(self, outline: types.Outline) -> tuple[types.Number, ...]:
        if outline.classes > 1 and self.positive >= outline.classes:
            raise UserError(f"positive: expected a class from 0 to {outline.classes - 1}, got {self.positive}")
        per_group = [
            types.Number(f"{family}/{name}", 0.0, float(types.MOST_EXAMPLES), meaning.format(name))
            for name in outline.groups
            for family, meaning in zip(FAMILIES, MEANINGS)
        ]
        most = 1.0 if self.count_split == "train" else VALIDATION
        return tuple(replace(number, of_examples=most) for number in (*self.reports, *per_group))

    def measure(self, work: types.LocalWork) -> dict[str, float]:
        called, right, actual, members = self._decisions(work)
        found = {CORRECT: float(right.sum()), SEEN: float(len(right))}
        rows = [members == g for g in range(len(work.groups))]
        cells = [(int(actual[row].sum()), int((~actual[row]).sum())) for row in rows]
        for name, row, (positives, negatives), free in zip(work.groups, rows, cells, self._free(cells, actual, work)):
            if free and positives + negatives:
                hits, alarms = int((called & actual)[row].sum()), int((called & ~actual)[row].sum())
                counts = (positives, hits, negatives, alarms)
                found |= {f"{family}/{name}": float(count) for family, count in zip(FAMILIES, counts)}
        return found

    @no_grad
    def _decisions(self, work: types.LocalWork) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of every example: whether it is called positive, whether its class is right, is positive; its group."""
        network, parts = work.network.eval(), []
        for batch in work.data.fixed(self.count_split, self.probe_batch):
            work.stop_if_aborted()
            there = batch.to(work.device)
            top = network(there.inputs).argmax(1).cpu()
            targets = there.targets.cpu()
            parts.append((top == self.positive, top == targets, targets == self.positive, batch.groups))
        called, right, actual, members = (torch.cat(column) for column in zip(*parts))
        return called, right, actual, members

    def _free(self, cells: list[tuple[int, int]], actual: torch.Tensor, work: types.LocalWork) -> list[bool]:
        """Which groups' counts may leave: as positives, as negatives and as groups."""
        totals = (int(actual.sum()), int((~actual).sum()))
        lists = [([cell[k] for cell in cells], totals[k]) for k in (0, 1)] + [([sum(c) for c in cells], sum(totals))]
        verdicts = [released(counts, work.min_count, unknown=total - sum(counts)) for counts, total in lists]
        return [all(verdict) for verdict in zip(*verdicts)]

    @property
    def needs(self) -> tuple[types.Need, ...]:
        words = "the method counts right and wrong answers on it"
        return () if self.count_split == "train" else (types.Need(self.count_split, 1, words),)

    def missing(self, offer: types.Offer) -> str:
        return "" if offer.has_classes else "it counts right and wrong answers, which needs one class per example"


@probe("held-classes")
@dataclass(frozen=True)
class HeldClasses(Probe):
    """Per class 1 where the training split has examples of it, at least the site's minimum count, and 0 where not.

    A class of fewer examples looks like one that is not there. A site that lets no group's numbers leave says nothing.
    """

    cost: ClassVar[types.Cost] = types.Cost()

    def scalars(self, outline: types.Outline) -> tuple[types.Number, ...]:
        meaning = "1 if the site's training split holds the class, 0 if not"
        return tuple(types.Number(f"{types.HELD}/{c}", 0.0, 1.0, meaning) for c in range(outline.classes))

    def measure(self, work: types.LocalWork) -> dict[str, float]:
        if work.min_count is None:
            return {}
        least = max(work.min_count, 1)
        return {f"{types.HELD}/{c}": float(n >= least) for c, n in enumerate(work.data.class_counts.tolist())}
