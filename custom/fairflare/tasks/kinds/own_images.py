# SPDX-License-Identifier: Apache-2.0
"""What the tasks on a user's own images share: size and channels, datalists, shared test sets."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from fairflare.core.validation import Names
from fairflare.data.inputs import ImageInputs
from fairflare.data.readers.datalist import Source, read_datalist
from fairflare.data.readers.pictures import Looked, Reader, looked_at
from fairflare.data.readers.stored import ends_of
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.tasks.base import TestSet, expect
from fairflare.tasks.images import image_data, resolved, scaling_of, test_set
from fairflare.tasks.kinds.own import OwnData, read_description

SMALLEST = 16
"""Edge in pixels that the networks' poolings leave something of."""
SHARED = "shared"
"""Folder beside the sites' lists that holds shared test sets, each a datalist whose images are under "testing"."""


@dataclass(frozen=True)
class OwnImages(OwnData):
    """A task on 2D images of one size, from datalists as ``data.readers.datalist`` describes them.

    Args:
        datalists: folder with one datalist per site on this machine; paths in them are relative to it.
        size: edge in pixels that images are resampled to, 16..1024.
        mean: of each channel on [0, 1], separated by commas; 0.5 when empty.
        std: of each channel; 0.25 when empty.
        window: what values without a natural range (DICOM, NIfTI) are scaled by: "CENTRE,WIDTH" in the files' own units
            (Hounsfield units for CT), "file" (each file's own window) or "percentiles" (of each image); empty:
            -1000 to 1000 for Hounsfield units, else percentiles.
        channels: 1 (grey) or 3.
        augment: random rotation, shift and flip of training images.
    """

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
    model: str = ""
    norm: str = ""
    augment: bool = False

    @abstractmethod
    def reader(self) -> Reader:
        """How an item becomes tensors."""

    def read(self, own: SiteConfig) -> TensorData:
        root = Path(own.data_root)
        found = read_datalist(root / own.datalist, root, **self.kind.lists(self.classes), links=own.links)
        mean, std = self._scaling()
        return image_data(found, self, self.reader(), own=own, augment=self.augment, mean=mean, std=std)

    def look(self, source: Source) -> Looked:
        return looked_at(source, self.window)

    def image_inputs(self) -> ImageInputs | None:
        if self.build_data:
            return None
        reader = self.reader()
        return ImageInputs(reader, *resolved(reader, *self._scaling()))

    def test_sets(self) -> tuple[TestSet, ...]:
        if not self.has_test_sets:
            return ()
        folder = Path(self.datalists) / SHARED
        found = []
        for name, about in read_description(folder.parent)["shared"].items():
            lists = read_datalist(folder / f"{name}.json", folder, **self.kind.lists(self.classes))
            corrupted = bool(about["corrupted"])
            found.append(test_set(about["name"], corrupted, lists["test"], self.reader(), *self._scaling()))
        return tuple(found)

    @property
    def has_test_sets(self) -> bool:
        return bool(self.datalists) and (Path(self.datalists) / SHARED).is_dir()

    def table_sets(self) -> dict[str, str]:
        return dict(read_description(Path(self.datalists)).get("table_sets", {})) if self.datalists else {}

    def _scaling(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std per channel, as ``image_data`` takes them."""
        return scaling_of(self.mean, self.std, self.channels)

    def _check_images(self, fewest: int) -> None:
        self._check_own(fewest)
        expect("size", SMALLEST <= self.size <= 1024, f"{SMALLEST}..1024", self.size)
        expect("channels", self.channels in (1, 3), "1 or 3", self.channels)
        ends_of(self.window)  # raises where it cannot be read
        self._scaling()
