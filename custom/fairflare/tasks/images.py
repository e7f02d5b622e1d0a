# SPDX-License-Identifier: Apache-2.0
"""A site's data from lists of images, whoever wrote the lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from fairflare.core.errors import UserError
from fairflare.core.validation import expected as expect
from fairflare.data.readers.datalist import Item, attribute_columns
from fairflare.data.readers.files import FileSplit, Room
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData, as_float, normalised
from fairflare.tasks.base import Task, TestSet

if TYPE_CHECKING:  # external data may be tables
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
        items: "train", "val" and "test" -> the split's items; the last two may be missing.
        task: its classes, and which attributes it knows.
        reader: from item to tensors.
        own: the site's configuration: cache_rate, cache_gb, num_workers.
        mean: per channel on [0, 1]; 0.5 when empty.
        std: per channel; 0.25 when ``mean`` is empty.
        kind: what is made of the splits.
    """
    own = own or SiteConfig()
    room = None if own.cache_gb is None else Room(own.cache_gb * 1e9)
    mean, std = resolved(reader, mean, std)
    splits = {}
    for name in ("train", "val", "test"):
        chosen = items.get(name, ())
        labels = torch.tensor([item.label for item in chosen] if task.kind.has_classes else [], dtype=torch.int64)
        attributes = attribute_columns(chosen, list(task.attributes))
        splits[name] = FileSplit(chosen, reader, labels, attributes, own.cache_rate, own.num_workers, room)
    n_classes = task.kind.n_classes(task.classes)
    return kind(**splits, n_classes=n_classes, mean=mean, std=std, augment=augment)


def test_set(
    name: str,
    corrupted: bool,
    items: Sequence[Item],
    reader: Reader,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
) -> TestSet:
    """A shared test set of the images ``items``, read now; arguments as in ``image_data`` and ``TestSet``."""
    images, targets = (torch.stack(part) for part in zip(*map(reader, items)))
    return TestSet(name, corrupted, normalised(as_float(images), *resolved(reader, mean, std)), targets)


def resolved(
    reader: Reader | VolumeReader, mean: Sequence[float], std: Sequence[float]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel as they are used: what is given, or where nothing better is known."""
    return (tuple(mean), tuple(std)) if mean else ((MEAN,) * reader.channels, (STD,) * reader.channels)


def scaling_of(mean: str, std: str, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel as ``image_data`` takes them, from a task's options; raises UserError."""
    found = []
    for key, text in (("mean", mean), ("std", std)):
        try:
            found.append(tuple(float(part) for part in text.split(",")) if text else ())
        except ValueError:
            raise UserError(f"{key}: expected numbers separated by commas, got {text!r}") from None
        fits = len(found[-1]) in (0, channels) and all(map(math.isfinite, found[-1]))
        expect(key, fits, f"{channels} numbers, one per channel, or none", text)
    expect("std", len(found[0]) == len(found[1]) and min(found[1], default=1) > 0, "as mean, above 0", std)
    return found[0], found[1]
