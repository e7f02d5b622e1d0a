# SPDX-License-Identifier: Apache-2.0
"""A site's data from lists of images, and what the tasks on a user's own share: size, channels, shared test sets."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fairflare.core.errors import UserError
from fairflare.core.extras import need
from fairflare.core.validation import Names
from fairflare.data.readers.datalist import (
    MOST_CONTRASTS,
    PATIENTS,
    Item,
    attribute_columns,
    patients_of,
    read_datalist,
)
from fairflare.data.readers.files import MOST_KEPT, FileSplit, Room
from fairflare.data.readers.stored import ends_of
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import ImageInputs, TensorData, as_float, normalised
from fairflare.tasks.base import Task, TestSet, expect
from fairflare.tasks.kinds.own import OwnData, read_description

if TYPE_CHECKING:
    from fairflare.data.readers.pictures import Reader
    from fairflare.data.readers.volumes import VolumeReader

MEAN, STD = 0.5, 0.25
"""Of images on [0, 1] where nothing better is known."""


def image_data(
    items: Mapping[str, Sequence[Item]],
    task: Task,
    reader: Reader | VolumeReader,
    *,
    own: SiteConfig | None = None,
    augment: bool = False,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    kind: Callable[..., TensorData] = TensorData,
) -> TensorData:
    """The images of ``items``; none is read yet.

    Args:
        items: by split, some of which may be missing.
        own: the site's configuration: cache_rate, cache_gb, cache_folder, num_workers.
        mean: per channel on [0, 1]; 0.5, and a ``std`` of 0.25, when empty.
        kind: what is made of the splits.
    """
    own = own or SiteConfig()
    room = room_of(own)
    mean, std = resolved(reader, mean, std)
    splits = {}
    for name in ("train", "val", "test"):
        chosen = items.get(name, ())
        labels = torch.tensor([item.label for item in chosen] if task.kind.has_classes else [], dtype=torch.int64)
        attributes = attribute_columns(chosen, list(task.attributes))
        whose = patients_of(attribute_columns(chosen, PATIENTS))
        splits[name] = FileSplit(chosen, reader, labels, attributes, own.cache_rate, own.threads, room, whose)
    n_classes = task.kind.n_classes(task.classes)
    return kind(**splits, n_classes=n_classes, mean=mean, std=std, augment=augment)


def room_of(own: SiteConfig) -> Room | None:
    """What decoded images may take in memory, and where the others lie; None: the process's room."""
    if own.cache_gb is None and not own.cache_folder:
        return None
    return Room(MOST_KEPT if own.cache_gb is None else own.cache_gb * 1e9, own.cache_folder)


def resolved(
    reader: Reader | VolumeReader, mean: Sequence[float], std: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel as they are used: what is given, or where nothing better is known."""
    return (tuple(mean), tuple(std)) if mean else ((MEAN,) * reader.channels, (STD,) * reader.channels)


SMALLEST = 16
"""Edge in pixels that the networks' poolings leave something of."""
SHARED = "shared"
"""Folder beside the sites' lists that holds shared test sets, each a datalist whose images are under "testing"."""


class ImageFiles(Task):
    """A task whose examples are files with images or volumes, which are read when they are needed."""

    augment: bool = False
    volumes: ClassVar[bool] = False
    """Whether an example is a whole volume."""

    @abstractmethod
    def reader(self) -> Any:
        """How an item becomes tensors."""

    @abstractmethod
    def scaling(self) -> tuple[Sequence[float], Sequence[float]]:
        """Mean and std per channel on [0, 1], or () and ()."""

    def made(self, **splits: Any) -> TensorData:
        """A site's data of its splits."""
        return TensorData(**splits)

    def data_of(self, items: Mapping[str, Sequence[Item]], own: SiteConfig | None) -> TensorData:
        """A site's data of its items; none is read yet."""
        mean, std = self.scaling()
        how: dict[str, Any] = {"augment": self.augment, "mean": mean, "std": std, "kind": self.made}
        return image_data(items, self, self.reader(), own=own, **how)

    def image_inputs(self) -> ImageInputs | None:
        reader = self.reader()
        return ImageInputs(reader, *resolved(reader, *self.scaling()), volumes=self.volumes)

    def shared_set(self, name: str, corrupted: bool, items: Sequence[Item]) -> TestSet:
        """A shared test set of the images ``items``, read now."""
        reader = self.reader()
        images, targets = (torch.stack(part) for part in zip(*map(reader, items)))
        return TestSet(name, corrupted, normalised(as_float(images), *resolved(reader, *self.scaling())), targets)


class OwnFiles(ImageFiles, OwnData):
    """A task on images or volumes of one size, from datalists as ``data.readers.datalist`` describes them.

    A concrete task is a frozen dataclass with these options.

    Args:
        datalists: folder with one datalist per site on this machine; paths in them are relative to it.
        mean: of each channel on [0, 1], separated by commas; 0.5 when empty.
        std: of each channel; 0.25 when empty.
    """

    mean: str
    std: str
    window: str
    channels = 1

    def _check_own(self, fewest: int) -> None:
        need("images", f"task {self.name}")
        super()._check_own(fewest)

    def read(self, own: SiteConfig) -> TensorData:
        root = Path(own.data_root)
        lists = read_datalist(root / own.datalist, root, **self.kind.lists(self.classes), links=own.links)
        return self.data_of(lists, own)

    def scaling(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        found = []
        for key, text in (("mean", self.mean), ("std", self.std)):
            try:
                found.append(tuple(float(part) for part in text.split(",")) if text else ())
            except ValueError:
                raise UserError(f"{key}: expected numbers separated by commas, got {text!r}") from None
            fits = len(found[-1]) in (0, self.channels) and all(map(math.isfinite, found[-1]))
            expect(key, fits, f"{self.channels} numbers, one per channel, or none", text)
        expect("std", len(found[0]) == len(found[1]) and min(found[1], default=1) > 0, "as mean, above 0", self.std)
        return found[0], found[1]


@dataclass(frozen=True)
class OwnImages(OwnFiles):
    """A task on 2D images; the options are those of ``OwnFiles`` and those below.

    Args:
        size: edge in pixels that images are resampled to, 16..1024.
        window: what values without a natural range (DICOM, NIfTI) are scaled by: "CENTRE,WIDTH" in the files' own units
            (Hounsfield units for CT), "file" (each file's own window) or "percentiles" (of each image); empty:
            -1000 to 1000 for Hounsfield units, else percentiles.
        channels: 1 (grey), 3 (colours), or the number of contrasts.
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
    model: str = ""
    norm: str = ""
    augment: bool = False

    def test_sets(self) -> tuple[TestSet, ...]:
        if not self.has_test_sets:
            return ()
        folder = Path(self.datalists) / SHARED
        found = []
        for name, about in read_description(folder.parent)["shared"].items():
            lists = read_datalist(folder / f"{name}.json", folder, **self.kind.lists(self.classes))
            found.append(self.shared_set(about["name"], bool(about["corrupted"]), lists["test"]))
        return tuple(found)

    @property
    def has_test_sets(self) -> bool:
        return bool(self.datalists) and (Path(self.datalists) / SHARED).is_dir()

    def table_sets(self) -> dict[str, str]:
        return dict(read_description(Path(self.datalists)).get("table_sets", {})) if self.datalists else {}

    def _check_images(self, fewest: int) -> None:
        self._check_own(fewest)
        expect("size", SMALLEST <= self.size <= 1024, f"{SMALLEST}..1024", self.size)
        expect("channels", 1 <= self.channels <= MOST_CONTRASTS, f"1 to {MOST_CONTRASTS}", self.channels)
        ends_of(self.window)  # raises where it cannot be read
        self.scaling()
