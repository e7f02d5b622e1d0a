# SPDX-License-Identifier: Apache-2.0
"""Site data that fit in memory: small images and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.contracts import Batch, SplitName

ROTATION = 10.0
"""Largest random rotation in degrees, either way."""
TRANSLATION = 0.02
"""Largest random shift as a share of height or width, either way."""


@dataclass(frozen=True)
class Split:
    """Examples of one split in their stored order.

    Attributes:
        inputs: uint8 images (N, C, H, W), or float32 (N, features).
        targets: int64 (N,).
        attributes: name -> N values of a sensitive attribute, e.g. "sex"; "" where it is not known.
    """

    inputs: Tensor
    targets: Tensor
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {"targets": len(self.targets)} | {name: len(v) for name, v in self.attributes.items()}
        for name, length in lengths.items():
            if length != len(self.inputs):
                raise ValueError(f"{name}: expected {len(self.inputs)} values as there are inputs, got {length}")

    def __len__(self) -> int:
        return len(self.targets)


class TensorData:
    """A site's three splits in memory, as ``contracts.SiteData`` describes.

    Args:
        train: at least two examples.
        val: may be empty.
        test: may be empty.
        n_classes: C.
        mean: per channel on [0, 1], subtracted from images; empty: images stay in [0, 1]. Tables come standardised.
        std: per channel, > 0. A grey image becomes as many channels as mean and std have.
        augment: random rotation (+-10 degrees), shift (+-2 %) and left-right flip of training images.
    """

    def __init__(
        self,
        *,
        train: Split,
        val: Split,
        test: Split,
        n_classes: int,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        augment: bool = False,
    ) -> None:
        if len(train) < 2:
            raise ValueError(f"train: expected at least 2 examples, got {len(train)}")
        self.splits: dict[str, Split] = {"train": train, "val": val, "test": test}
        self.mean, self.std, self.augment = tuple(mean), tuple(std), augment
        self.class_counts = torch.bincount(train.targets, minlength=n_classes)

    def size(self, split: SplitName) -> int:
        """Number of examples in ``split``."""
        return len(self.splits[split])

    def attributes(self, split: SplitName) -> Mapping[str, Sequence[str]]:
        """Sensitive attributes of ``split`` in its stored order; they stay at the site."""
        return self.splits[split].attributes

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One shuffled epoch with train transforms; bit for bit a function of ``seed``, whatever torch's global state.

        Raises:
            ValueError: ``batch_size`` < 2.
        """
        generator = torch.Generator().manual_seed(seed)
        train = self.splits["train"]
        order = torch.randperm(len(train), generator=generator)
        for rows in batches_of(order, batch_size):
            inputs = as_float(train.inputs[rows])
            if self.augment:
                inputs = augmented(inputs, generator)
            yield normalised(inputs, self.mean, self.std), train.targets[rows]

    def fixed(self, split: SplitName, batch_size: int) -> Iterator[Batch]:
        """``split`` in its stored order with eval transforms only."""
        chosen = self.splits[split]
        if not len(chosen):
            return
        for inputs, targets in zip(chosen.inputs.split(batch_size), chosen.targets.split(batch_size)):
            yield normalised(as_float(inputs), self.mean, self.std), targets


def batches_of(order: Tensor, batch_size: int) -> list[Tensor]:
    """``order`` cut into batches; a last batch of one example joins the batch before it."""
    if batch_size < 2:
        raise ValueError(f"batch_size: expected at least 2, got {batch_size}")
    batches = list(order.split(batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def as_float(inputs: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1]; anything else as it is."""
    return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs


def normalised(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std per channel; without mean as it is. (N, 1, H, W) becomes (N, len(mean), H, W)."""
    if not mean:
        return images
    return (images - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of (N, C, H, W) rotated, shifted and flipped at random, black beyond its border."""
    n = len(images)
    angle, dx, dy = (torch.rand(3, n, generator=generator) * 2 - 1).unbind()
    angle = angle * math.radians(ROTATION)
    flip = (torch.rand(n, generator=generator) < 0.5).float() * -2 + 1
    shift = torch.stack((dx, dy)) * 2 * TRANSLATION  # the grid runs from -1 to 1
    rows = (flip * angle.cos(), -angle.sin(), shift[0], flip * angle.sin(), angle.cos(), shift[1])
    theta = torch.stack(rows, dim=1).view(n, 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
