# SPDX-License-Identifier: Apache-2.0
"""Segmentation of volumes: Dice as of images, and how far outlines are apart in millimetres, by MONAI."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fairflare.tasks.kinds.masks import MaskCases, Segmentation, condensed

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
    looked_at = (4, 32)

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return of_volumes(outputs, targets, self.spacing, self.tolerance)

    def cases(self, outputs: Tensor, targets: Tensor, classes: Sequence[str]) -> VolumeCases:
        return VolumeCases(outputs.cpu(), targets.cpu(), tuple(classes))


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
