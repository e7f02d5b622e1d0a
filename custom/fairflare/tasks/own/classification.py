# SPDX-License-Identifier: Apache-2.0
"""Classification of a user's own images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from fairflare.core.types import Training
from fairflare.core.validation import Names
from fairflare.data.readers.pictures import Reader
from fairflare.networks import own as own_network
from fairflare.tasks.base import Preset, expect, expect_choices
from fairflare.tasks.kinds.own_images import OwnImages


@dataclass(frozen=True)
class Classification(OwnImages):
    """2D images with one class each, from datalists as ``data.readers.datalist`` describes them.

    Args:
        datalists: folder with one datalist per site on this machine; paths in them are relative to it.
        site_names: the sites; filled from the folder.
        labels: number of classes, or their names.
        attribute_values: sensitive attributes and their values.
        size: edge in pixels that images are resampled to, 16..1024.
        channels: 1 (grey) or 3.
        build_data: "module.function" that builds a site's data in place of lists, see ``tasks.kinds.own``.
        mean: of each channel on [0, 1], separated by commas; 0.5 when empty.
        std: of each channel; 0.25 when empty.
        window: what values without a natural range (DICOM, NIfTI) are scaled by: "CENTRE,WIDTH" in the files' own units
            (Hounsfield units for CT), "file" (each file's own window) or "percentiles" (of each image); empty:
            -1000 to 1000 for Hounsfield units, else percentiles.
        model: "small-cnn", "resnet18", or a class of yours as {"class_path": "my_net.Net", "args": {...}}.
        norm: "group", "instance" or "batch" (the papers'); a class of yours has its own.
        augment: random rotation, shift and flip of training images.
        pretrained_weights: path of a state dict for resnet18, on the server's machine.
    """

    name = "classification"
    title = "Classification of your own images"
    headline = "balanced_accuracy"
    presets = {
        "small": Preset(
            "64 pixels and a small network; minutes on a laptop",
            {},
            Training(rounds=20, batch_size=16, optimizer="adam", lr=1e-3, weight_decay=5e-4),
        ),
        "paper": Preset(
            "224 pixels, ResNet-18, Adam at 3e-4, as FedISM+ trains; for a GPU",
            {"size": 224, "model": "resnet18", "norm": "batch", "augment": True},
            Training(rounds=300, batch_size=32, optimizer="adam", lr=3e-4, weight_decay=5e-4),
        ),
    }

    datalists: str = ""
    site_names: Names = ""
    labels: Names = "2"
    attribute_values: str = ""
    size: int = 64
    mean: str = ""
    std: str = ""
    window: str = ""
    channels: int = 3
    build_data: str = ""
    model: str = "small-cnn"
    norm: Literal["group", "instance", "batch"] = "group"
    augment: bool = False
    pretrained_weights: str | None = None

    def __post_init__(self) -> None:
        expect_choices(self)
        self._check_images(fewest=2)
        own_network.check_model(self.model, ("small-cnn", "resnet18"))
        if self.model == "resnet18":
            expect("size", self.size > 32, "above 32 for resnet18, whose last stage is then a single pixel", self.size)
        if self.pretrained_weights is not None:
            expect("pretrained_weights", self.model == "resnet18", "none unless model=resnet18", self.model)

    def network(self) -> nn.Module:
        options = {"pretrained_weights": self.pretrained_weights} if self.model == "resnet18" else {}
        shape = (self.channels, self.size, self.size)
        return own_network.build(self.model, shape, (len(self.classes),), norm=self.norm, **options)

    def reader(self) -> Reader:
        return Reader(self.size, self.channels, window=self.window)
