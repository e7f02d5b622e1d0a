# SPDX-License-Identifier: Apache-2.0
"""What needs no network: the answer to beat before a model has learned anything, computed at each site by itself.

The task's kind makes it of the site's training examples (``TaskKind.baseline``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairflare.core.metric import finite
from fairflare.core.types import SiteData, SplitName
from fairflare.privacy.counts import released
from fairflare.tasks.base import Task

SPLITS: tuple[SplitName, ...] = ("val", "test")
BATCH = 16


def trivial_results(task: Task, data: SiteData, min_count: int | None) -> dict[str, dict[str, float]]:
    """Split ("val", "test") -> the task's metrics of the trivial answer there; splits that hold nothing are left out.

    What a constant answer scores follows from the counts of the classes alone, of the split and, since its loss says
    how sure it is, of the training split. So a split's numbers are there only where every one of these counts may leave
    the site. Those of a regression are a model's metrics as any other.

    Args:
        task: how outputs are scored.
        data: the site's.
        min_count: the fewest examples whose number may leave the site; None: none.
    """
    baseline = task.kind.baseline(task, data)
    if baseline is None:
        return {}
    counted = baseline.counted
    if counted and not all(released([int(n) for n in data.class_counts.tolist()], min_count)):
        return {}
    found: dict[str, dict[str, float]] = {}
    for split in SPLITS:
        batches = list(data.fixed(split, BATCH))
        targets = torch.cat([batch.targets.cpu() for batch in batches]) if batches else torch.empty(0)
        if not batches or (counted and not _may_leave(targets, len(task.classes), min_count)):
            continue
        answers = [(baseline.answers(batch.inputs.cpu()), batch.targets.cpu()) for batch in batches]
        outputs, truths = (torch.cat(parts) for parts in zip(*(task.condense(*pair) for pair in answers)))
        found[split] = finite(task.evaluate(outputs, truths))
    return found


def _may_leave(targets: Tensor, n_classes: int, min_count: int | None) -> bool:
    return all(released(torch.bincount(targets, minlength=n_classes).tolist(), min_count))
