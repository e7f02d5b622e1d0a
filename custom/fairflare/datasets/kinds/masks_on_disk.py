# SPDX-License-Identifier: Apache-2.0
"""What tasks on published images with masks share: options, the network, and how a site's images are split."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import nn

from fairflare.core.errors import DataError
from fairflare.data.checks import expect, expect_choices
from fairflare.data.readers.datalist import Item
from fairflare.datasets.kinds.on_disk import ImagesOnDisk
from fairflare.networks import own as own_network
from fairflare.tasks.base import OPEN_SPLIT
from fairflare.tasks.kinds.masks import MASKS

LARGEST_SHARE = 0.4
"""Of a site's images in its validation or test split."""


@dataclass(frozen=True)
class MasksOnDisk(ImagesOnDisk):
    """Segmentation of a published data set; a concrete task says which images and masks are whose.

    Args:
        size: edge in pixels that images and masks are resampled to, a multiple of 16 in 32..1024.
        model: "small-unet", "unet" (the papers'), or a class of yours as {"class_path": "my_net.Net", "args": {...}}.
        norm: "instance", "group" or "batch" (the papers'); a class of yours has its own.
        augment: random rotation, shift and flip of training images, masks with them.
        val_fraction: share in the validation split where the data set does not say, in (0, 0.4].
        test_fraction: share in the test split where the data set does not say, in (0, 0.4].
        limit: the most images of each split, at least 2; None: all.
        data_seed: of the splits that the data set leaves open; 0..2**32-1.
    """

    kind = MASKS
    channels: ClassVar[int]
    """Of the images: 1 or 3."""

    size: int = 64
    model: str = "small-unet"
    norm: Literal["instance", "group", "batch"] = "instance"
    augment: bool = False
    val_fraction: float = 0.2
    test_fraction: float = 0.2
    limit: int | None = None
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        expect("size", 32 <= self.size <= 1024 and self.size % 16 == 0, "a multiple of 16 in 32..1024", self.size)
        own_network.check_model(self.model, ("small-unet", "unet"))
        for key in ("val_fraction", "test_fraction"):
            share = getattr(self, key)
            expect(key, 0 < share <= LARGEST_SHARE, f"a number in (0, {LARGEST_SHARE}]", share)
        expect("limit", self.limit is None or self.limit >= 2, "at least 2, or none", self.limit)
        expect("data_seed", 0 <= self.data_seed < 2**32, "0..2**32-1", self.data_seed)

    def drawn(self) -> tuple[str, ...]:
        return (OPEN_SPLIT,)

    def network(self) -> nn.Module:
        edges = (self.size, self.size)
        return own_network.build(self.model, (self.channels, *edges), (len(self.classes), *edges), norm=self.norm)


def dealt(names: Collection[str], val: float, test: float, seed: int) -> dict[str, list[str]]:
    """Split -> which of ``names`` it gets, sorted; a function of the names and the seed alone.

    Args:
        names: of cases or files.
        val: share for "val"; at least one name unless it is 0.
        test: share for "test"; likewise.
        seed: >= 0.
    """
    ordered = sorted(names)
    n_val, n_test = (max(1, round(share * len(ordered))) if share else 0 for share in (val, test))
    shuffled = [ordered[i] for i in np.random.default_rng(seed).permutation(len(ordered))]
    parts = {"train": shuffled[n_val + n_test :], "val": shuffled[:n_val], "test": shuffled[n_val : n_val + n_test]}
    return {split: sorted(part) for split, part in parts.items()}


def complete(site: str, splits: Mapping[str, Sequence[Item]]) -> Mapping[str, Sequence[Item]]:
    """``splits``; DataError unless there are two images to train on and one in every other split."""
    if len(splits["train"]) < 2:
        text = f"{site}: training: expected at least 2 images, got {len(splits['train'])}"
        raise DataError("few_examples", text)
    for split, name in (("val", "validation"), ("test", "testing")):
        if not splits[split]:
            raise DataError("empty_split", f"{site}: {name}: expected an image, got none")
    return splits
