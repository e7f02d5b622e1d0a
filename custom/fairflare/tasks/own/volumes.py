# SPDX-License-Identifier: Apache-2.0
"""Classification and segmentation of a user's own volumes, on one grid for all sites."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor, nn

from fairflare.core.errors import UserError
from fairflare.core.types import Training
from fairflare.core.validation import Names, Range
from fairflare.data.inputs import ImageInputs
from fairflare.data.readers.datalist import Source, read_datalist
from fairflare.data.readers.stored import FILE, ends_of
from fairflare.data.readers.volumes import LONGEST, SHORTEST, VolumeData, VolumeReader, looked_at
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.networks import own as own_network
from fairflare.networks import volumes
from fairflare.tasks.base import Preset, expect
from fairflare.tasks.kinds.masks import VOLUME_MASKS, of_volumes, structure_values
from fairflare.tasks.kinds.own import OwnData
from fairflare.tasks.kinds.own_images import image_data, resolved, scaling_of

FEWEST, MOST = 16, 512
"""Voxels along an edge."""
MOST_VOXELS = 2**25
"""Of a volume as the network's inputs are kept, a byte each."""


@dataclass(frozen=True)
class OwnVolumes(OwnData):
    """A task on volumes (NIfTI, or a file of a DICOM series), which are turned and resampled to one grid.

    Args:
        datalists: folder with one datalist per site on this machine; paths in them are relative to it.
        spacing: edges of a voxel in millimetres to the right, the front and above, separated by commas.
        shape: voxels along these axes, 16..512 each; volumes are cut or filled up around their centre.
        mean: of the voxels on [0, 1]; 0.5 when empty.
        std: of the voxels; 0.25 when empty.
        window: what values are scaled by: "CENTRE,WIDTH" in the files' own units (Hounsfield units for CT), or
            "percentiles" (of each volume); empty: -1000 to 1000 for Hounsfield units, else percentiles.
    """

    datalists: str = ""
    site_names: Names = ""
    labels: Names = "2"
    attribute_values: str = ""
    spacing: str = "2,2,2"
    shape: str = "64,64,64"
    mean: str = ""
    std: str = ""
    window: str = ""
    build_data: str = ""
    model: str = ""
    norm: str = ""

    @property
    def edges(self) -> tuple[float, ...]:
        """Millimetres of a voxel."""
        return three("spacing", self.spacing, float, SHORTEST, LONGEST)

    @property
    def voxels(self) -> tuple[int, ...]:
        """Of a volume along each axis."""
        return three("shape", self.shape, int, FEWEST, MOST)

    def reader(self) -> VolumeReader:
        return VolumeReader(self.edges, self.voxels, window=self.window)

    def made(self, **splits: Any) -> TensorData:
        return VolumeData(**splits)

    def read(self, own: SiteConfig) -> TensorData:
        root = Path(own.data_root)
        found = read_datalist(root / own.datalist, root, **self.kind.lists(self.classes), links=own.links)
        mean, std = scaling_of(self.mean, self.std, 1)
        return image_data(found, self, self.reader(), own=own, mean=mean, std=std, kind=self.made)

    def look(self, source: Source) -> Any:
        return looked_at(source, self.window)

    def image_inputs(self) -> ImageInputs | None:
        if self.build_data:
            return None
        reader = self.reader()
        return ImageInputs(reader, *resolved(reader, *scaling_of(self.mean, self.std, 1)), volumes=True)

    def _check_volumes(self, fewest: int) -> None:
        self._check_own(fewest)
        n = math.prod(self.voxels)
        expect("shape", n <= MOST_VOXELS, f"at most {MOST_VOXELS} voxels", f"{self.shape}, {n}")
        expect("spacing", bool(self.edges), "three numbers", self.spacing)
        expect("window", self.window != FILE, "CENTRE,WIDTH or percentiles for volumes", self.window)
        ends_of(self.window)  # raises where it cannot be read
        scaling_of(self.mean, self.std, 1)


def three(key: str, text: str, kind: Callable[[str], Any], low: float, high: float) -> tuple[Any, ...]:
    """Three numbers separated by commas; UserError where they are none of ``kind`` or out of range."""
    try:
        found = tuple(kind(part) for part in text.split(","))
    except ValueError:
        found = ()
    fits = len(found) == 3 and all(low <= one <= high for one in found)
    if not fits:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"{key}: expected three {what} of {low:g} to {high:g}, as in 2,2,2; got {text[:60]!r}")
    return found


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
        return volumes.classifier(self.model, self.voxels, len(self.classes), self.norm)


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
        return volumes.segmenter(self.model, self.window_shape, len(self.classes), self.norm)

    def reader(self) -> VolumeReader:
        values = structure_values(self.mask_values, self.classes)
        return VolumeReader(self.edges, self.voxels, *values, self.window)

    def made(self, **splits: Any) -> TensorData:
        return VolumeData(patch=self.window_shape, patches=self.patches, **splits)

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return of_volumes(outputs, targets, self.edges, self.tolerance)
