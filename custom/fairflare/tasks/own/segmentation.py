# SPDX-License-Identifier: Apache-2.0
"""Segmentation of a user's own images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from fairflare.core.validation import Names
from fairflare.data.readers.pictures import Reader
from fairflare.networks import images  # noqa: F401  (a job carries them)
from fairflare.networks import own as own_network
from fairflare.tasks.base import Preset, expect
from fairflare.tasks.kinds.masks import MASKS, PAPER, SMALL, structure_values
from fairflare.tasks.kinds.own_images import OwnImages

MULTIPLE = 16
"""Of the edge in pixels that the U-Nets' four poolings divide."""


@dataclass(frozen=True)
class Segmentation(OwnImages):
    """2D images with masks, as the options of ``OwnImages`` and those below say; structures may overlap.

    Args:
        labels: the structures: their number, or their names.
        size: edge in pixels that images and masks are resampled to, 16..1024; the package's networks fill an edge that
            is no multiple of 16 up to one with zeros, inside, and cut their output back.
        model: "small-unet", "unet" (the papers'), or a class of yours as {"class_path": "my_net.Net", "args": {...}}.
        norm: "instance", "group" or "batch" (the papers'); a class of yours has its own.
        augment: random rotation, shift and flip of training images, masks with them.
        mask_values: structure -> pixel values in the mask files, "disc=128|0; cup=0; background=255"; the background is
            0 unless given. Empty: 1 for the first structure, 2 for the second ..., and 1 or 255 for a single one.
    """

    name = "segmentation"
    title = "Segmentation of your own images"
    kind = MASKS
    presets = {
        "small": Preset("64 pixels and a small U-Net; minutes on a laptop", {}, SMALL),
        "paper": Preset(
            "384 pixels and the papers' U-Net, as Fed-LWR trains; for a GPU",
            {"size": 384, "model": "unet", "norm": "batch"},
            PAPER,
        ),
    }

    labels: Names = "1"
    channels: int = 1
    model: str = "small-unet"
    norm: Literal["instance", "group", "batch"] = "instance"
    mask_values: str = ""

    def __post_init__(self) -> None:
        self._check_images(fewest=1)
        own_network.check_model(self.model, ("small-unet", "unet"))
        if self.model == "unet":
            words = f"above {MULTIPLE} for unet, whose last stage is then a pixel"
            expect("size", self.size > MULTIPLE, words, self.size)
        self.values()

    def values(self) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
        """Structure -> pixel values, and the background's, from ``mask_values``; UserError where one has none."""
        return structure_values(self.mask_values, self.classes)

    def network(self) -> nn.Module:
        edges = (self.size, self.size)
        shapes = (self.channels, *edges), (len(self.classes), *edges)
        return own_network.build(self.model, *shapes, norm=self.norm, padding=-self.size % MULTIPLE)

    def reader(self) -> Reader:
        return Reader(self.size, self.channels, *self.values(), self.window)
