# SPDX-License-Identifier: Apache-2.0
"""Classification of a user's own images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from fairflare.core.types import Training
from fairflare.data.readers.pictures import Reader
from fairflare.networks import images  # noqa: F401  (a job carries them)
from fairflare.networks import own as own_network
from fairflare.tasks.base import Preset, expect
from fairflare.tasks.kinds.own import OwnGrades
from fairflare.tasks.kinds.own_images import OwnImages


@dataclass(frozen=True)
class Classification(OwnImages):
    """2D images with one class each, as the options of ``OwnImages`` and those below say.

    Args:
        model: "small-cnn", "resnet18", or a class of yours as {"class_path": "my_net.Net", "args": {...}}.
        norm: "group", "instance" or "batch" (the papers'); a class of yours has its own.
    """

    name = "classification"
    title = "Classification of your own images"
    headline = "balanced_accuracy"
    fewest: ClassVar[int] = 2
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

    model: str = "small-cnn"
    norm: Literal["group", "instance", "batch"] = "group"

    def __post_init__(self) -> None:
        self._check_images(self.fewest)
        own_network.check_model(self.model, ("small-cnn", "resnet18"))
        if self.model == "resnet18":
            expect("size", self.size > 32, "above 32 for resnet18, whose last stage is then a single pixel", self.size)

    def network(self) -> nn.Module:
        shape, (outputs, options) = (self.channels, self.size, self.size), self.kind.head(self.classes)
        return own_network.build(self.model, shape, (outputs,), norm=self.norm, **options)

    def reader(self) -> Reader:
        return Reader(self.size, self.channels, window=self.window)


@dataclass(frozen=True)
class ImageOrdinal(OwnGrades, Classification):
    """2D images, as ``Classification`` describes them, whose classes have an order."""

    name = "image-ordinal"
    title = "Classes in an order on your own images"
