# SPDX-License-Identifier: Apache-2.0
"""What the tasks on a user's own volumes share: one grid for all sites, datalists, and how values are scaled."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairflare.core.errors import UserError
from fairflare.core.validation import Names
from fairflare.data.readers.datalist import MOST_CONTRASTS
from fairflare.data.readers.stored import FILE, ends_of
from fairflare.data.readers.volumes import LONGEST, SHORTEST, VolumeData, VolumeReader
from fairflare.data.tensors import TensorData
from fairflare.tasks.base import expect
from fairflare.tasks.kinds.own_images import OwnFiles

FEWEST, MOST = 16, 512
"""Voxels along an edge."""
MOST_VOXELS = 2**25
"""Of a volume as the network's inputs are kept, a byte each."""


@dataclass(frozen=True)
class OwnVolumes(OwnFiles):
    """A task on volumes (NIfTI, or a file of a DICOM series), which are turned and resampled to one grid.

    The options are those of ``OwnFiles`` and those below.

    Args:
        spacing: edges of a voxel in millimetres to the right, the front and above, separated by commas.
        shape: voxels along these axes, 16..512 each; volumes are cut or filled up around their centre.
        window: what values are scaled by: "CENTRE,WIDTH" in the files' own units (Hounsfield units for CT), or
            "percentiles" (of each volume); empty: -1000 to 1000 for Hounsfield units, else percentiles.
        channels: the number of contrasts of a volume, 1 to 8, each scaled by itself.
    """

    volumes = True

    datalists: str = ""
    site_names: Names = ""
    labels: Names = "2"
    attribute_values: str = ""
    spacing: str = "2,2,2"
    shape: str = "64,64,64"
    mean: str = ""
    std: str = ""
    window: str = ""
    channels: int = 1
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
        return VolumeReader(self.edges, self.voxels, window=self.window, channels=self.channels)

    def made(self, **splits: Any) -> TensorData:
        return VolumeData(**splits)

    def _check_volumes(self, fewest: int) -> None:
        self._check_own(fewest)
        n = math.prod(self.voxels)
        expect("shape", n <= MOST_VOXELS, f"at most {MOST_VOXELS} voxels", f"{self.shape}, {n}")
        expect("channels", 1 <= self.channels <= MOST_CONTRASTS, f"1 to {MOST_CONTRASTS}", self.channels)
        expect("spacing", bool(self.edges), "three numbers", self.spacing)
        expect("window", self.window != FILE, "CENTRE,WIDTH or percentiles for volumes", self.window)
        ends_of(self.window)  # raises where it cannot be read
        self.scaling()


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
