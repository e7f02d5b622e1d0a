# SPDX-License-Identifier: Apache-2.0
"""Classification of a user's own volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from fairflare.core.types import Training
from fairflare.networks import own as own_network
from fairflare.networks import volumes
from fairflare.tasks.base import Preset
from fairflare.tasks.kinds.own_volumes import OwnVolumes


@dataclass(frozen=True)
class VolumeClassification(OwnVolumes):
    """Volumes with one class each, as the options of ``OwnVolumes`` and those below say; training is on whole volumes.

    Args:
        model: "small-densenet3d", "densenet121-3d" (MONAI's), or a class, MONAI's or yours.
        norm: "group", "instance" or "batch"; a class has its own.
    """

    name = "volume-classification"
    title = "Classification of your own volumes"
    headline = "balanced_accuracy"
    presets = {
        "small": Preset(
            "64 voxels of 2 mm along each edge and a small DenseNet",
            {},
            Training(rounds=20, batch_size=4, optimizer="adam", lr=1e-3, weight_decay=5e-4),
        ),
        "large": Preset(
            "128 voxels of 1.5 mm along each edge and MONAI's DenseNet-121; for a GPU",
            {"shape": "128,128,128", "spacing": "1.5,1.5,1.5", "model": "densenet121-3d", "norm": "batch"},
            Training(rounds=100, batch_size=4, optimizer="adam", lr=1e-4, weight_decay=5e-4),
        ),
    }

    model: str = "small-densenet3d"
    norm: Literal["group", "instance", "batch"] = "group"

    def __post_init__(self) -> None:
        self._check_volumes(fewest=2)
        own_network.check_model(self.model, ("small-densenet3d", "densenet121-3d"))

    def network(self) -> nn.Module:
        return volumes.classifier(self.model, self.voxels, len(self.classes), self.norm, self.channels)
