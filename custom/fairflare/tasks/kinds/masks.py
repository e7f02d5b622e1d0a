# SPDX-License-Identifier: Apache-2.0
"""Segmentation: every case has masks, trained by soft Dice and scored by hard Dice; no class labels.

A channel of an example whose true mask is empty scores 1 when nothing is predicted there and 0 otherwise, in the metric
and nearly so in the loss. Of volumes also how far outlines are apart in millimetres, by MONAI.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fairflare.core.errors import UserError
from fairflare.core.metric import Metric
from fairflare.core.types import Batch, Objective, SiteData, Training
from fairflare.core.validation import expected as expect
from fairflare.tasks.kind import Baseline, Cases, TaskKind

if TYPE_CHECKING:
    from fairflare.tasks.base import Task


SMOOTH = 1e-5
"""Added to both sides of the soft ratio, in squared pixels of nothing: MONAI's default, far below one pixel."""


def dice_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """1 - (2 sum(p t) + s) / (sum p + sum t + s) of p = sigmoid(logits), averaged over channels (``monai``'s DiceLoss).

    Logits and targets, masks of 0 and 1, are (N, C, ...); channels may overlap. ``reduction``: "mean" over examples, or
    "none": (N,), each in [0, 1].
    """
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction: expected mean or none, got {reduction!r}")
    losses = _monai_loss()(logits, targets.to(logits.dtype)).flatten(1).mean(1)
    return losses.mean() if reduction == "mean" else losses


def condensed(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The pixel sums from which ``hard_dice`` and ``soft_loss`` follow, in place of full-size outputs (N, C, ...).

    A pixel is predicted where its logit is > 0, that is where p > 1/2.

    Returns:
        float64 (N, C, 4): predicted and true, predicted, sum of p t, sum of p (both nan where a logit is not finite).
        float64 (N, C): true pixels.
    """
    truth, predicted = targets > 0.5, logits > 0
    share = logits.sigmoid().masked_fill(~logits.isfinite(), float("nan"))
    parts = (predicted & truth, predicted, share * truth, share)
    sums = torch.stack([part.flatten(2).sum(2, dtype=torch.float64) for part in parts], dim=2)
    return sums, truth.flatten(2).sum(2, dtype=torch.float64)


def hard_dice(sums: Tensor, truth: Tensor) -> Tensor:
    """2 |A and B| / (|A| + |B|), float64 (N, C), from the sums of ``condensed``; 1 where both masks are empty."""
    both, size = sums[..., 0], sums[..., 1] + truth
    return torch.where(size > 0, 2 * both / size.clamp(min=1), torch.ones_like(size))


def soft_loss(sums: Tensor, truth: Tensor) -> Tensor:
    """``dice_loss`` per example from the sums of ``condensed``: float64 (N,), nan where a logit was not finite."""
    return (1 - (2 * sums[..., 2] + SMOOTH) / (sums[..., 3] + truth + SMOOTH)).mean(1)


@cache
def _monai_loss() -> nn.Module:
    from monai.losses import DiceLoss  # takes seconds to import

    return DiceLoss(sigmoid=True, reduction="none", smooth_nr=SMOOTH, smooth_dr=SMOOTH)


SMALL = Training(rounds=12, epochs=2, batch_size=8, optimizer="adam", lr=5e-3, weight_decay=1e-4, adam_beta2=0.99)
"""For a small U-Net on a laptop."""
PAPER = Training(
    rounds=200, batch_size=8, optimizer="adam", lr=1e-3, weight_decay=1e-4, adam_beta2=0.99, keep_optimizer=True
)
"""Fed-LWR's."""
LEVELS = tuple(k / 10 for k in range(10))
"""Shares of training masks that a pixel must be above to be in the constant mask; a last candidate has no pixel."""
SURE = 20.0
"""A logit that is as good as certain."""
BACKGROUND = "background"
STRUCTURE = "dice_"
"""Before a structure's name in the name of its own metric."""


@dataclass(frozen=True)
class MaskCases(Cases):
    """The sums of ``condensed`` and, of each structure, the true pixels."""

    @property
    def finite(self) -> bool:
        return bool(soft_loss(self.outputs, self.targets).mean().isfinite())

    @cached_property
    def dice(self) -> Tensor:
        """float64 (N, C): see ``hard_dice``."""
        return hard_dice(self.outputs, self.targets)

    @cached_property
    def means(self) -> Tensor:
        """float64 (C,): the mean over the cases."""
        return self.dice.mean(0)


@dataclass(frozen=True)
class Segmentation(TaskKind):
    """Masks (N, C, H, W), one channel for each of the task's structures; channels may overlap."""

    name: str = "segmentation"
    metrics: tuple[str, ...] = ("dice",)
    headline: str = "dice"
    score: str = "dice"

    has_masks: ClassVar[bool] = True
    case_type = MaskCases
    outputs: ClassVar[str] = "logits (N, C, H, W)"
    targets: ClassVar[str] = "masks (N, C, H, W)"
    looked_at: ClassVar[tuple[int, int]] = (16, 256)
    """Training masks at once, and in all, that the constant one is made from, evenly spaced over the split."""

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        """``dice_loss``, whatever the arguments: masks have no class prior to adjust logits by."""
        return dice_loss

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return condensed(outputs, targets)

    def loss(self, cases: MaskCases) -> float:
        return float(soft_loss(cases.outputs, cases.targets).mean())

    def names(self, classes: Sequence[str]) -> tuple[str, ...]:
        first, *others = super().names(classes)
        return (first, *(f"{STRUCTURE}{name}" for name in classes), *others)

    def metric(self, name: str) -> Metric:
        if not name.startswith(STRUCTURE):
            return super().metric(name)
        return Metric(name, value=partial(_of_structure, name.removeprefix(STRUCTURE)), kind=self.name)

    def baseline(self, task: Task, data: SiteData) -> Baseline:
        whole = getattr(data, "whole", data.fixed)  # where the training split is seen by patches
        mask = constant_mask(whole("train", *self.looked_at))
        return Baseline(lambda inputs: mask.expand(len(inputs), *mask.shape))


MASKS = Segmentation()


def structure_values(text: str, classes: Sequence[str]) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    """Structure -> the values of its pixels in mask files, and the background's.

    Args:
        text: "disc=128|0; cup=0; background=255"; "": 1 for the first structure, 2 for the second ..., and 1 or 255 for
            a single one.
        classes: the structures.

    Raises:
        UserError: ``text`` does not say it of each structure.
    """
    if not text:
        several: dict[str, tuple[int, ...]] = {name: (k,) for k, name in enumerate(classes, start=1)}
        return several if len(several) > 1 else {classes[0]: (1, 255)}, (0,)
    found = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, _, values = part.partition("=")
        try:
            found[name.strip()] = tuple(int(v) for v in values.split("|"))
        except ValueError:
            raise UserError(f"mask_values: expected NAME=NUMBER|NUMBER; ..., got {part!r}") from None
    background = found.pop(BACKGROUND, (0,))
    expect("mask_values", set(found) == set(classes), f"values of {', '.join(classes)}", text)
    return {name: found[name] for name in classes}, background


def _of_structure(name: str, cases: MaskCases) -> float | None:
    """The mean Dice of a structure; None where the outputs have no channel for it."""
    place = cases.classes.index(name) if name in cases.classes else len(cases.means)
    return float(cases.means[place]) if place < len(cases.means) else None


def constant_mask(batches: Iterable[Batch]) -> Tensor:
    """Logits (C, ...) of the one mask per structure that has the best mean Dice on the training images ``batches``.

    Candidates are the pixels that lie in more than so many of the training masks (``LEVELS``), and no pixel at all.
    """
    masks = [batch.targets.cpu() > 0.5 for batch in batches]
    share = torch.stack([mask.float().sum(0) for mask in masks]).sum(0) / sum(map(len, masks))
    candidates = torch.stack([share > level for level in (*LEVELS, 1.0)])
    sums = torch.stack([_dice(candidates, mask) for mask in masks]).sum(0)
    chosen = sums.argmax(0).view(1, -1, *(1 for _ in share.shape[1:]))
    best = candidates.gather(0, chosen.expand(1, *share.shape))[0]
    return torch.where(best, SURE, -SURE)


def _dice(candidates: Tensor, masks: Tensor) -> Tensor:
    """float32 (K, C): sum over the masks (N, C, ...) of the Dice with each candidate (K, C, ...)."""
    ours, theirs = candidates.flatten(2).float(), masks.flatten(2).float()  # whole numbers below 2^24
    both = torch.einsum("kcp,ncp->kcn", ours, theirs)
    size = ours.sum(2)[:, :, None] + theirs.sum(2).T[None]
    return torch.where(size > 0, 2 * both / size.clamp(min=1), torch.ones_like(size)).sum(2)


UNDEFINED = -1.0
"""In place of a surface's number that there is none of: what is condensed has to be finite."""
SUMS = 4
"""Numbers of ``condensed`` that come first."""
PERCENTILE = 0.95


@dataclass(frozen=True)
class VolumeCases(MaskCases):
    """The sums of ``condensed``, then surface Dice and HD95: outputs (N, C, 6)."""

    def of_surfaces(self, place: int) -> float | None:
        """The mean over cases and structures where it is defined; None where it is nowhere."""
        found = self.outputs[..., SUMS + place]
        known = found[found != UNDEFINED]
        return float(known.mean()) if len(known) else None


@dataclass(frozen=True)
class VolumeMasks(Segmentation):
    """Masks (N, C, X, Y, Z), one channel for each of the task's structures; channels may overlap.

    Attributes:
        spacing: edges of a voxel in millimetres; a task that knows them condenses with its own (``of_volumes``).
        tolerance: millimetres that outlines may differ by for surface Dice.
    """

    name: str = "volume-segmentation"
    metrics: tuple[str, ...] = ("dice", "surface_dice", "hd95")
    spacing: tuple[float, ...] = (1.0, 1.0, 1.0)
    tolerance: float = 1.0

    outputs: ClassVar[str] = "logits (N, C, X, Y, Z)"
    targets: ClassVar[str] = "masks (N, C, X, Y, Z)"
    case_type = VolumeCases
    looked_at = (4, 32)

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return of_volumes(outputs, targets, self.spacing, self.tolerance)


VOLUME_MASKS = VolumeMasks()


def of_volumes(logits: Tensor, targets: Tensor, spacing: Sequence[float], tolerance: float) -> tuple[Tensor, Tensor]:
    """``condensed`` of volumes, with two more numbers per case and structure; arguments as there, and ``surfaces``'.

    Returns:
        float64 (N, C, 6): the sums, surface Dice, HD95 in millimetres; the last two ``UNDEFINED`` where they are.
        float64 (N, C): true voxels.
    """
    sums, truth = condensed(logits, targets)
    pairs = zip((logits > 0).flatten(0, 1).cpu(), (targets > 0.5).flatten(0, 1).cpu())
    found = torch.tensor([surfaces(mine, true, spacing, tolerance) for mine, true in pairs], dtype=torch.float64)
    return torch.cat((sums, found.view(*truth.shape, 2).to(sums.device)), dim=2), truth


def surfaces(mine: Tensor, true: Tensor, spacing: Sequence[float], tolerance: float) -> tuple[float, float]:
    """Surface Dice in [0, 1] and HD95 in millimetres of two masks, from one pass over MONAI's distances.

    Neither is defined where both masks, bool (X, Y, Z), are empty; where one is, surface Dice is 0, HD95 not defined.
    Edges of a voxel and the tolerance, >= 0, are in millimetres.
    """
    if not (mine.any() and true.any()):
        return (0.0 if mine.any() or true.any() else UNDEFINED), UNDEFINED
    from monai.metrics.utils import get_edge_surface_distance

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an edge at the border is one all the same
        _, distances, _ = get_edge_surface_distance(mine, true, spacing=list(spacing), symmetric=True)
    near = sum(int((one <= tolerance).sum()) for one in distances)
    furthest = max(float(torch.quantile(one, PERCENTILE)) for one in distances)
    return near / sum(map(len, distances)), furthest
