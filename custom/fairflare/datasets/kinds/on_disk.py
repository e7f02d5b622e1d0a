# SPDX-License-Identifier: Apache-2.0
"""Tasks on published data sets, in the folders as their users have them on disk; nothing is ever downloaded."""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from fairflare.core.errors import MissingData, UserError
from fairflare.data.checks import expect
from fairflare.data.inputs import ImageInputs
from fairflare.data.readers.datalist import Item
from fairflare.data.readers.pictures import Reader
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.tasks.base import DATA_FOLDER, Task, TestSet
from fairflare.tasks.images import image_data, resolved, test_set


class OnDisk(Task):
    """A task whose files lie below one folder: a site's ``data_root``, or the one that ``FAIRFLARE_DATA`` names.

    The module of a concrete task shows, indented in its docstring, the tree that it reads; so do its error messages.
    """

    def root(self, own: SiteConfig | None = None) -> Path:
        """The folder below which the tree lies; UserError when none is named."""
        if own is not None and own.data_root:
            return Path(own.data_root)
        folder = os.environ.get(DATA_FOLDER)
        if not folder:
            raise MissingData(f"task {self.name}: name the folder of its data in {DATA_FOLDER}", self.tree())
        return Path(folder)

    @classmethod
    def tree(cls) -> str:
        """The indented lines of the module's docstring."""
        lines = (sys.modules[cls.__module__].__doc__ or "").splitlines()
        return "\n".join(line for line in lines if line.startswith("    "))

    def needed(self, path: Path) -> Path:
        """``path``, which must exist; MissingData names it and shows the tree."""
        if not path.exists():
            raise MissingData(f"task {self.name}: no such file or folder: {path}; expected:", self.tree())
        return path


class ImagesOnDisk(OnDisk):
    """2D images of a published data set; a concrete task says which are whose.

    A concrete task is a frozen dataclass with a field ``limit``: the most examples of a split, None for all.
    """

    limit: int | None
    augment: bool = False
    mean: ClassVar[tuple[float, ...]] = ()
    std: ClassVar[tuple[float, ...]] = ()
    """Per channel on [0, 1]."""
    data_kind: ClassVar[type[TensorData]] = TensorData

    @abstractmethod
    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        """ "train", "val" and "test" -> what ``site`` has, in an order that depends on names and seeds alone.

        Only the files of ``site`` need to be there, as far as the layout allows. Raises MissingData, DataError.
        """

    @abstractmethod
    def reader(self) -> Reader:
        """How an item becomes tensors."""

    def shared_items(self, root: Path) -> Mapping[str, tuple[bool, Sequence[Item]]]:
        """Name of a shared test set -> whether its images are corrupted, and the images."""
        return {}

    def site_data(self, site: str) -> TensorData:
        return self.local_data(site, None)

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        expect("site", site in self.sites(), f"one of {', '.join(self.sites())}", site)
        items = {split: self.limited(part) for split, part in self.items(self.root(own), site).items()}
        reader, mean, std, kind = self.reader(), self.mean, self.std, self.data_kind
        return image_data(items, self, reader, own=own, augment=self.augment, mean=mean, std=std, kind=kind)

    def image_inputs(self) -> ImageInputs:
        reader = self.reader()
        return ImageInputs(reader, *resolved(reader, self.mean, self.std))

    def check_data(self) -> None:
        for site in self.sites():
            if not self.items(self.root(), site).get("train"):
                raise UserError(f"task {self.name}: {site} has no training images in {self.root()}")

    def test_sets(self) -> tuple[TestSet, ...]:
        return tuple(
            test_set(name, corrupted, self.limited(items), self.reader(), self.mean, self.std)
            for name, (corrupted, items) in self.shared_items(self.root()).items()
        )

    def limited(self, items: Sequence[Item]) -> Sequence[Item]:
        return items if self.limit is None else items[: self.limit]
