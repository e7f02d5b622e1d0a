# SPDX-License-Identifier: Apache-2.0
"""What the tasks on a user's own images share: size and channels, datalists, shared test sets."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from fairflare.clinic.base import TestSet
from fairflare.clinic.checks import expect
from fairflare.clinic.datalist import read_datalist
from fairflare.clinic.images import image_data, test_set
from fairflare.clinic.own import OwnData, read_description
from fairflare.clinic.pictures import Reader
from fairflare.clinic.tensors import TensorData
from fairflare.site_config import SiteConfig

SHARED = "shared"
"""Folder beside the sites' lists that holds shared test sets, each a datalist whose images are under "testing"."""


class OwnImages(OwnData):
    """A task on images of one size."""

    size: int
    channels: int
    augment: bool

    @abstractmethod
    def reader(self) -> Reader:
        """How an item becomes tensors."""

    def read(self, own: SiteConfig) -> TensorData:
        """The images of the site's datalist."""
        root = Path(own.data_root)
        found = read_datalist(root / own.datalist, root, masks=not self.class_labels, n_classes=len(self.classes))
        return image_data(found, self, self.reader(), own=own, augment=self.augment)

    def test_sets(self) -> tuple[TestSet, ...]:
        """The shared test sets that ``fairflare prepare`` put beside the sites' lists, read now."""
        folder = Path(self.datalists) / SHARED
        if not self.datalists or not folder.is_dir():
            return ()
        found, masks = [], not self.class_labels
        for name, about in read_description(folder.parent)["shared"].items():
            lists = read_datalist(folder / f"{name}.json", folder, masks=masks, n_classes=len(self.classes))
            found.append(test_set(about["name"], bool(about["corrupted"]), lists["test"], self.reader()))
        return tuple(found)

    def _check_images(self, fewest: int, multiple: int = 1) -> None:
        self._check_own(fewest)
        fits = 32 <= self.size <= 1024 and self.size % multiple == 0
        expect("size", fits, f"a multiple of {multiple} in 32..1024" if multiple > 1 else "32..1024", self.size)
        expect("channels", self.channels in (1, 3), "1 or 3", self.channels)
