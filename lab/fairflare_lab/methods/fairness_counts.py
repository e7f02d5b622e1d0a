# SPDX-License-Identifier: Apache-2.0
"""FairFed's and FairFedAvg's probe: how the received model decides for each group, as counts that add over sites.

From sums of these a server has the federation's true-positive rates, which no mean of sites' rates is.
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
