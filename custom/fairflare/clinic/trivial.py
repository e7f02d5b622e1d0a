# SPDX-License-Identifier: Apache-2.0
"""What needs no network: the answer to beat before a model has learned anything, computed at each site by itself.

Class labels: the site's own training shares of the classes as everybody's probabilities, so that the largest class is
named every time. Tables: logistic regression on the site's own training rows (scikit-learn's); its loss on a user's own
table is that of these shares: a regression on few rows and many columns has a worse one. Masks: one mask per structure
for all images, the best such on the training images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairflare.clinic.base import Task
from fairflare.clinic.kinds.own import OwnData
from fairflare.core.types import LARGEST_LOSS, SiteData, SplitName
from fairflare.privacy.counts import released

SPLITS: tuple[SplitName, ...] = ("val", "test")
BATCH = 16
MOST_MASKS = 256
"""Training masks that the constant one is made from, evenly spaced over the split."""
LEVELS = tuple(k / 10 for k in range(10))
"""Shares of training masks that a pixel must be above to be in the constant mask; a last candidate has no pixel."""
SURE = 20.0
"""A logit that is as good as certain."""
MOST_STEPS = 200
"""Of the logistic regression's solver."""

Answers = Callable[[Tensor], Tensor]
"""Inputs (N, ...) -> logits as a network would give them."""


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
    constant, answers = _answers(task, data)
    own = isinstance(task, OwnData) and task.class_labels and not constant
    counted = constant and task.class_labels
    if counted and not all(released([int(n) for n in data.class_counts.tolist()], min_count)):
        return {}
    found: dict[str, dict[str, float]] = {}
    for split in SPLITS:
        batches = list(data.fixed(split, BATCH))
        targets = torch.cat([batch.targets.cpu() for batch in batches]) if batches else torch.empty(0)
        if not batches or (counted and not _may_leave(targets, len(task.classes), min_count)):
            continue
        condensed = [task.condense(answers(batch.inputs.cpu()), batch.targets.cpu()) for batch in batches]
        outputs, truths = (torch.cat(parts) for parts in zip(*condensed))
        scores = task.evaluate(outputs, truths)
        found[split] = {name: value for name, value in scores.items() if _is_sound(name, value)}
        if own:
            found[split] = _with_loss_of_shares(task, data, found[split], targets, min_count)
    return found


def _with_loss_of_shares(
    task: Task, data: SiteData, scores: dict[str, float], targets: Tensor, min_count: int | None
) -> dict[str, float]:
    """``scores`` with the loss of the site's training shares of the classes; without one where counts may not leave."""
    others = {name: value for name, value in scores.items() if not name.endswith(("loss", "error"))}
    counts = [int(n) for n in data.class_counts.tolist()]
    if not (all(released(counts, min_count)) and _may_leave(targets, len(task.classes), min_count)):
        return others
    constant = task.evaluate(*task.condense(_shares(data).expand(len(targets), -1), targets))
    return others | {n: v for n, v in constant.items() if n.endswith(("loss", "error")) and _is_sound(n, v)}


def _shares(data: SiteData) -> Tensor:
    """Logits (C,) that say the site's training shares of the classes."""
    return data.class_counts.double().cpu().clamp(min=math.exp(-SURE)).log().float()


def _is_sound(name: str, value: float) -> bool:
    return math.isfinite(value) and (not name.endswith("loss") or abs(value) <= LARGEST_LOSS)


def _may_leave(targets: Tensor, n_classes: int, min_count: int | None) -> bool:
    return all(released(torch.bincount(targets, minlength=n_classes).tolist(), min_count))


def _answers(task: Task, data: SiteData) -> tuple[bool, Answers]:
    """Whether the answer is the same for every example, and the answer."""
    if not task.class_labels:
        mask = constant_mask(data)
        return True, lambda inputs: mask.expand(len(inputs), *mask.shape)
    first = next(iter(data.fixed("train", 1)))
    if first.inputs.dim() == 2 and (regression := _regression(task, data)):
        return False, regression
    shares = _shares(data)
    return True, lambda inputs: shares.expand(len(inputs), -1)


def _regression(task: Task, data: SiteData) -> Answers | None:
    """Logistic regression on the site's training rows; None where they are of one class or not finite."""
    from sklearn.linear_model import LogisticRegression

    batches = list(data.fixed("train", BATCH))
    x, y = (torch.cat([getattr(batch, name).cpu() for batch in batches]).numpy() for name in ("inputs", "targets"))
    if len(set(y.tolist())) < 2 or not torch.isfinite(torch.from_numpy(x)).all():
        return None
    model = _quietly(lambda: LogisticRegression(max_iter=MOST_STEPS).fit(x, y))

    def answers(inputs: Tensor) -> Tensor:
        found = torch.full((len(inputs), len(task.classes)), -SURE)
        known = torch.from_numpy(model.predict_proba(inputs.numpy())).clamp(min=math.exp(-SURE)).log().float()
        found[:, torch.from_numpy(model.classes_)] = known
        return found

    return answers


def _quietly(fit: Callable[[], Any]) -> Any:
    """A solver that stops before it has converged is good enough here, and no line of the run's output."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return fit()


def constant_mask(data: SiteData) -> Tensor:
    """Logits (C, H, W) of the one mask per structure that has the best mean Dice on the training images.

    Candidates are the pixels that lie in more than so many of the training masks (``LEVELS``), and no pixel at all.
    """
    masks = [batch.targets.cpu() > 0.5 for batch in data.fixed("train", BATCH, at_most=MOST_MASKS)]
    share = torch.stack([mask.float().sum(0) for mask in masks]).sum(0) / sum(map(len, masks))
    candidates = torch.stack([share > level for level in (*LEVELS, 1.0)])
    sums = torch.stack([_dice(candidates, mask) for mask in masks]).sum(0)
    best = candidates.gather(0, sums.argmax(0)[None, :, None, None].expand(1, *share.shape))[0]
    return torch.where(best, SURE, -SURE)


def _dice(candidates: Tensor, masks: Tensor) -> Tensor:
    """float32 (K, C): sum over the masks (N, C, H, W) of the Dice with each candidate (K, C, H, W)."""
    ours, theirs = candidates.flatten(2).float(), masks.flatten(2).float()  # whole numbers below 2^24
    both = torch.einsum("kcp,ncp->kcn", ours, theirs)
    size = ours.sum(2)[:, :, None] + theirs.sum(2).T[None]
    return torch.where(size > 0, 2 * both / size.clamp(min=1), torch.ones_like(size)).sum(2)
