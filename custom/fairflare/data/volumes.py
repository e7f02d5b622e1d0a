# SPDX-License-Identifier: Apache-2.0
"""A site's volumes as batches: patches around voxels of each structure to train on, whole volumes to be scored on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fairflare.core.execution import moved
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, SplitName
from fairflare.data.tensors import TensorData, as_float, batches_of, normalised

MOST = 8
"""Patches or whole volumes of a batch in evaluation, whatever is asked for: what bounds the memory of probes."""
Places = tuple[slice, ...]


class VolumeData(TensorData):
    """``TensorData`` of volumes (N, 1, X, Y, Z).

    Where ``patch`` is named, targets are masks and training is on patches. Their centres are drawn by MONAI as often
    from each structure as from the background, from seeds of this package. Probes that look at the training split see
    one fixed patch of each volume.

    Args:
        patch: voxels along each axis, at most those of the volumes; (): training is on whole volumes.
        patches: of each volume in an epoch.
        more: ``TensorData``'s arguments.
    """

    def __init__(self, *, patch: Sequence[int] = (), patches: int = 1, **more: Any) -> None:
        super().__init__(**more)
        self.patch, self.patches = tuple(patch), patches

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        if not self.patch:
            yield from super().training(batch_size, seed)
            return
        generator = torch.Generator().manual_seed(seed)
        order = torch.cat([torch.randperm(self.size("train"), generator=generator) for _ in range(self.patches)])
        batches = batches_of(order, batch_size, self.lone)
        yield from self._cut(batches, lambda batch, place, row: derive(seed, "patch", batch, place))

    def fixed(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        if not (self.patch and split == "train"):
            yield from super().fixed(split, min(batch_size, MOST), at_most)
            return
        rows = self.spaced(split, at_most).split(min(batch_size, MOST))
        yield from self._cut(rows, lambda batch, place, row: derive(0, "fixed patch", row))

    def whole(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        """Whole volumes of ``split``, the training split's too; arguments as in ``fixed``."""
        yield from super().fixed(split, min(batch_size, MOST), at_most)

    def _cut(self, batches: Sequence[Tensor], seed_of: Any) -> Iterator[Batch]:
        train, groups = self.splits["train"], self._groups["train"]
        for k, (rows, (inputs, targets)) in enumerate(zip(batches, train.read(batches), strict=True)):
            seeds = [seed_of(k, i, row) for i, row in enumerate(rows.tolist())]
            places = [patch_of(mask, self.patch, seed) for mask, seed in zip(targets, seeds, strict=True)]
            cut = (torch.stack([one[:, x, y, z] for one, (x, y, z) in zip(part, places)]) for part in (inputs, targets))
            patches, masks = (moved(part, self.device) for part in cut)
            yield Batch(normalised(as_float(patches), self.mean, self.std), masks, groups[rows])


def patch_of(mask: Tensor, patch: Sequence[int], seed: int) -> Places:
    """Where a patch lies, drawn by MONAI around a voxel of the background or a structure, each as often.

    Args:
        mask: (structures, X, Y, Z) of 0 and 1; what it does not show is not drawn.
        patch: voxels along each axis, at most the mask's.
        seed: the place is a function of the arguments alone.
    """
    from monai.transforms import RandCropByLabelClasses

    crop = RandCropByLabelClasses(list(patch), warn=False)
    crop.set_random_state(seed=seed % 2**32)
    crop.randomize(label=torch.cat((mask.amax(0, keepdim=True) == 0, mask > 0)))
    assert crop.centers is not None  # it has just drawn one
    return tuple(slice(int(c) - n // 2, int(c) - n // 2 + n) for c, n in zip(crop.centers[0], patch, strict=True))
