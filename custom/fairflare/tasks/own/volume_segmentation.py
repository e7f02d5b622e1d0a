# SPDX-License-Identifier: Apache-2.0
"""Segmentation of a user's own volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from fairflare.core.types import Training
from fairflare.core.validation import Names, Range
from fairflare.data.readers.volumes import VolumeData, VolumeReader
from fairflare.data.tensors import TensorData
from fairflare.networks import own as own_network
from fairflare.networks import volumes
from fairflare.tasks.base import Preset, expect
from fairflare.tasks.kinds.masks import VOLUME_MASKS, of_volumes, structure_values
from fairflare.tasks.kinds.own_volumes import FEWEST, MOST, OwnVolumes, three

SMALL = Training(rounds=12, batch_size=4, optimizer="adam", lr=5e-3, weight_decay=1e-4, adam_beta2=0.99)
"""For a small U-Net on a laptop."""
LARGE = Training(rounds=200, batch_size=4, optimizer="adam", lr=1e-3, weight_decay=1e-4, keep_optimizer=True)


@dataclass(frozen=True)
class VolumeSegmentation(OwnVolumes):
    """Volumes with masks, as the options of ``OwnVolumes`` and those below say; structures may overlap.

    Training is on patches, whose centres lie as often in each structure as in the background; whole volumes are
    segmented by a sliding window.

    Args:
        labels: the structures: their number, or their names.
        patch: voxels along each axis of a patch, at most those of the volumes.
        patches: of each training volume in an epoch.
        tolerance: millimetres that outlines may differ by for surface Dice.
        model: "small-unet3d", "unet3d", "small-unet-slices" (convolutions of one axial slice), or a class,
            MONAI's or yours.
        norm: "instance", "group" or "batch"; a class has its own.
        mask_values: structure -> values in the mask files, "liver=1; tumour=2|3"; the background is 0 unless given.
            Empty: 1 for the first structure, 2 for the second ..., and 1 or 255 for a single one.
    """

    name = "volume-segmentation"
    title = "Segmentation of your own volumes"
    kind = VOLUME_MASKS
    presets = {
        "small": Preset("64 voxels of 2 mm along each edge, patches of 32 and a small U-Net", {}, SMALL),
        "large": Preset(
            "160 voxels of 1 mm along each edge, patches of 96 and a U-Net of 4.8 million parameters; for a GPU",
            {"shape": "160,160,160", "spacing": "1,1,1", "patch": "96,96,96", "model": "unet3d"},
            LARGE,
        ),
    }

    labels: Names = "1"
    patch: str = "32,32,32"
    patches: Annotated[int, Range(1, 64)] = 2
    tolerance: Annotated[float, Range(0, 100)] = 2.0
    model: str = "small-unet3d"
    norm: Literal["instance", "group", "batch"] = "instance"
    mask_values: str = ""

    def __post_init__(self) -> None:
        self._check_volumes(fewest=1)
        own_network.check_model(self.model, ("small-unet3d", "unet3d", "small-unet-slices"))
        fits = all(n <= most for n, most in zip(self.window_shape, self.voxels))
        expect("patch", fits, f"at most the volumes' {self.shape}", self.patch)
        structure_values(self.mask_values, self.classes)

    @property
    def window_shape(self) -> tuple[int, ...]:
        """Voxels of a patch along each axis."""
        return three("patch", self.patch, int, FEWEST, MOST)

    def network(self) -> nn.Module:
        return volumes.segmenter(self.model, self.window_shape, len(self.classes), self.norm, self.channels)

    def reader(self) -> VolumeReader:
        values = structure_values(self.mask_values, self.classes)
        return VolumeReader(self.edges, self.voxels, *values, self.window, self.channels)

    def made(self, **splits: Any) -> TensorData:
        return VolumeData(patch=self.window_shape, patches=self.patches, **splits)

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return of_volumes(outputs, targets, self.edges, self.tolerance)
