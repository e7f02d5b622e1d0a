# SPDX-License-Identifier: Apache-2.0
"""A site's data as batches of tensors: from memory, or from files that are read when a batch asks for them;
and which group an example belongs to: its class, the value of a sensitive attribute, or both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.core.errors import UserError
from fairflare.core.execution import moved
from fairflare.core.types import LABEL as LABEL
from fairflare.core.types import Batch, SplitName
from fairflare.core.validation import shown

if TYPE_CHECKING:
    from typing_extensions import Self

    from fairflare.data.inputs import Scaling  # of tables
    from fairflare.data.readers.files import FileSplit  # of images, and of bags
    from fairflare.data.readers.pictures import Reader
    from fairflare.data.readers.volumes import VolumeReader


ROTATION = 10.0
"""Largest random rotation in degrees, either way."""
TRANSLATION = 0.02
"""Largest random shift as a share of height or width, either way."""
READY = 2**25
"""Bytes of a split up to which a site keeps its normalised images in main memory, 3,600 grey ones of 48 pixels: larger
images take the network so long that normalising them in every epoch no longer matters."""
READY_SHARE = 0.25
"""The same as a share of what is free on a GPU, where it also saves the copying."""


@dataclass(frozen=True)
class Split:
    """Examples of one split in their stored order.

    Attributes:
        inputs: uint8 images (N, C, H, W), or float32 (N, features).
        targets: int64 (N,), or uint8 masks (N, C, H, W).
        attributes: name -> N values of a sensitive attribute, e.g. "sex"; "" where it is not known.
        patients: int64 (N,), equal where examples are of one patient; None: each example is another patient.
        identities: as of ``readers.datalist.identities_of``; None: nobody is named.
    """

    inputs: Tensor
    targets: Tensor
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    patients: npt.NDArray[np.int64] | None = None
    identities: npt.NDArray[np.uint64] | None = None

    def __post_init__(self) -> None:
        several = {"patients": self.patients, "identities": self.identities}
        for name, values in {"targets": self.targets, **self.attributes, **several}.items():
            if values is not None and (n := len(values)) != len(self.inputs):
                raise ValueError(f"{name}: expected {len(self.inputs)} values as there are inputs, got {n}")

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def labels(self) -> Tensor:
        """int64 (N,) classes; empty where targets are none."""
        classes = self.targets.dim() == 1 and not self.targets.is_floating_point()
        return self.targets if classes else torch.empty(0, dtype=torch.int64)

    @property
    def in_memory(self) -> bool:
        return True

    def read(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets of each batch of row numbers, as copies: a network may write into what it is given."""
        return ((self.inputs.index_select(0, rows), self.targets.index_select(0, rows)) for rows in batches)


class TensorData:
    """A site's three splits, as ``contracts.SiteData`` describes.

    Args:
        train: at least ``least`` examples.
        val: may be empty.
        test: may be empty.
        n_classes: C; 0 where targets are masks.
        mean: per channel on [0, 1], subtracted from images; empty: images stay in [0, 1]. Tables come standardised.
        std: per channel, > 0. A grey image becomes as many channels as mean and std have.
        augment: random rotation (+-10 degrees), shift (+-2 %) and left-right flip of training images.
    """

    least: ClassVar[int] = 2
    """Examples to train on; 1 where no network of the task has BatchNorm, which cannot train on one."""
    one_shape: ClassVar[bool] = True
    """Whether all examples have one."""
    scaling: Scaling | None = None
    """How a table's numbers were scaled; it stays at the site, which needs it for new patients."""
    filled: npt.NDArray[np.bool_] | None = None
    """(n, numbers): which numbers of the training rows a table holds; None: all of them. It stays at the site."""
    keyed: bool = False
    """Whether the site has a key of its patients' identities, which the server does not know."""
    conversion: Mapping[str, Any] = MappingProxyType({})
    """``SiteConfig.conversion`` by which a table's cells were converted; it stays at the site, too."""
    source: TensorData | None = None
    """The images whose features these are."""
    lone: bool = False
    """Whether a last batch of one example is a batch; else it joins the one before, for networks with BatchNorm."""

    def __init__(
        self,
        *,
        train: Split | FileSplit,
        val: Split | FileSplit,
        test: Split | FileSplit,
        n_classes: int,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        augment: bool = False,
    ) -> None:
        if len(train) < self.least:
            raise ValueError(f"train: expected at least {self.least} examples, got {len(train)}")
        self.splits: dict[str, Split | FileSplit] = {"train": train, "val": val, "test": test}
        self.mean, self.std, self.augment = tuple(mean), tuple(std), augment
        self.class_counts = torch.bincount(train.labels, minlength=n_classes) if n_classes else torch.empty(0)
        self.device = torch.device("cpu")
        self._ready: dict[str, Split | None] = {}
        self.grouped(Grouping())

    @classmethod
    def of(cls, splits: Mapping[str, Split | FileSplit], n_classes: int, mean: Any = (), std: Any = ()) -> Self:
        """The object of the splits "train", "val" and "test"; the other arguments are the constructor's."""
        parts: dict[str, Any] = dict(splits)
        return cls(**parts, n_classes=n_classes, mean=mean, std=std)

    def on(self, device: torch.device) -> TensorData:
        """This object, which from now on transforms batches on ``device`` and leaves them there."""
        self.device, self._ready = device, {}
        return self

    def grouped(self, grouping: Grouping) -> TensorData:
        """This object, whose batches from now on tell the groups of ``grouping`` apart."""
        self._groups = {name: grouping.index(len(s), s.labels, s.attributes) for name, s in self.splits.items()}
        train = self._groups["train"]
        self.group_counts = torch.bincount(train[train >= 0], minlength=len(grouping.names))
        return self

    def size(self, split: SplitName) -> int:
        return len(self.splits[split])

    def patients(self, split: SplitName) -> npt.NDArray[np.int64] | None:
        """(N,) whose each example of ``split`` is; None: each is another patient's."""
        return self.splits[split].patients

    def attributes(self, split: SplitName) -> Mapping[str, Sequence[str]]:
        """Sensitive attributes of ``split`` in its stored order; they stay at the site."""
        return self.splits[split].attributes

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One shuffled epoch with train transforms; bit for bit a function of ``seed``, whatever the global state."""
        batches, generator = self._order(batch_size, seed)
        yield from self._picked(batches, generator)

    def _order(self, batch_size: int, seed: int) -> tuple[list[Tensor], torch.Generator]:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(self.size("train"), generator=generator)
        return batches_of(order, batch_size, self.lone), generator

    @property
    def rows(self) -> Callable[[int, int], list[Tensor]] | None:
        """(batch size, seed) -> row numbers of each batch of ``training``, so that ``picked`` reads a round at once.

        None where training examples are changed at random or lie in files.
        """
        own = all(getattr(type(self), name) is getattr(TensorData, name) for name in ("training", "_picked", "_read"))
        whole = own and not self.augment and self.splits["train"].in_memory
        return (lambda batch_size, seed: self._order(batch_size, seed)[0]) if whole else None

    def picked(self, batches: Sequence[Tensor], seed: int) -> Iterator[Batch]:
        """The training examples of each batch of row numbers, with train transforms, which ``seed`` fixes."""
        return self._picked(batches, torch.Generator().manual_seed(seed))

    def _picked(self, batches: Sequence[Tensor], generator: torch.Generator) -> Iterator[Batch]:
        return self._augmented(batches, generator) if self.augment else self._read("train", batches)

    def fixed(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        """``split`` in its stored order with eval transforms only; ``at_most`` takes that many, evenly spaced."""
        rows = self.spaced(split, at_most)
        yield from self._read(split, rows.split(batch_size) if len(rows) else ())

    def spaced(self, split: SplitName, at_most: int | None) -> Tensor:
        """int64: the rows of ``split`` in their order; at most so many of them, evenly spaced."""
        n = self.size(split)
        some = at_most is not None and at_most < n
        return torch.linspace(0, n - 1, at_most).round().long() if some else torch.arange(n)

    def _augmented(self, batches: Sequence[Tensor], generator: torch.Generator) -> Iterator[Batch]:
        train, groups = self.splits["train"], self._groups["train"]
        for rows, (inputs, targets) in zip(batches, train.read(batches), strict=True):
            inputs, targets = as_float(moved(inputs, self.device)), moved(targets, self.device)
            inputs, targets = augmented(inputs, targets, generator)
            yield Batch(normalised(inputs, self.mean, self.std), targets, groups[rows])

    def _read(self, name: str, batches: Sequence[Tensor]) -> Iterator[Batch]:
        groups, ready = self._groups[name], self._at_hand(name)
        if ready is not None:
            there = [moved(rows, self.device) for rows in batches]
            for rows, (inputs, targets) in zip(batches, ready.read(there), strict=True):
                yield Batch(inputs, targets, groups[rows])
            return
        for rows, (inputs, targets) in zip(batches, self.splits[name].read(batches), strict=True):
            inputs = normalised(as_float(moved(inputs, self.device)), self.mean, self.std)
            yield Batch(inputs, moved(targets, self.device), groups[rows])

    def _at_hand(self, name: str) -> Split | None:
        """A split as the network takes it, where the network computes; None where that saves nothing or is too much."""
        split = self.splits[name]
        if name not in self._ready and split.in_memory:
            self._ready[name] = self._transformed(split) if self._fits(split) else None
        return self._ready.get(name)

    def _fits(self, split: Split | FileSplit) -> bool:
        """Whether the transformed split is another than the one that is there, and small enough to be kept too."""
        if not len(split):
            return False
        inputs, targets = next(split.read([torch.zeros(1, dtype=torch.int64)]))
        if inputs.dtype == torch.float32 and not self.mean and self.device.type == "cpu":
            return False
        pixels = inputs.numel() // inputs.shape[1] * max(inputs.shape[1], len(self.mean))
        return len(split) * (4 * pixels + targets.nbytes) <= _room(self.device)

    def _transformed(self, split: Split | FileSplit) -> Split:
        inputs, targets = next(split.read([torch.arange(len(split))]))
        inputs = normalised(as_float(moved(inputs, self.device)), self.mean, self.std)
        return Split(inputs, moved(targets, self.device))


@dataclass(frozen=True)
class ImageInputs:
    """How an image file becomes what the network takes.

    Attributes:
        reader: from a file to uint8 (channels, size, size), or (1, X, Y, Z) of volumes.
        mean: per channel on [0, 1]; as many as the network has channels.
        std: likewise, > 0.
        volumes: whether a file is one volume.
    """

    reader: Reader | VolumeReader
    mean: tuple[float, ...]
    std: tuple[float, ...]
    volumes: bool = False


def batches_of(order: Tensor, batch_size: int, lone: bool = False) -> list[Tensor]:
    """``order`` cut into batches; a last batch of one example joins the batch before it unless ``lone``."""
    if batch_size < 2:
        raise ValueError(f"batch_size: expected at least 2, got {batch_size}")
    batches = list(order.split(batch_size))
    if not lone and len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _room(device: torch.device) -> float:
    return READY_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else READY


def as_float(inputs: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1]; anything else as it is."""
    return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs


def normalised(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x - mean) / std per channel; without mean as it is. (N, 1, ...) becomes (N, len(mean), ...)."""
    if not mean:
        return images
    centre, scale = (_per_channel(tuple(values), images.ndim - 2, images.device) for values in (mean, std))
    return (images - centre) / scale


@lru_cache(maxsize=256)
def _per_channel(values: tuple[float, ...], axes: int, device: torch.device) -> Tensor:
    """float32 (C, 1, 1) for two ``axes``, made once: a GPU would wait while every new one is copied there."""
    return torch.tensor(values, device=device).view(-1, *(1,) * axes)


def augmented(images: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Each image of (N, C, H, W) rotated, shifted and flipped at random, black beyond its border; masks with it."""
    n = len(images)
    angle, dx, dy = (torch.rand(3, n, generator=generator) * 2 - 1).unbind()
    angle = angle * math.radians(ROTATION)
    flip = (torch.rand(n, generator=generator) < 0.5).float() * -2 + 1
    shift = torch.stack((dx, dy)) * 2 * TRANSLATION  # the grid runs from -1 to 1
    rows = (flip * angle.cos(), -angle.sin(), shift[0], flip * angle.sin(), angle.cos(), shift[1])
    theta = moved(torch.stack(rows, dim=1).view(n, 2, 3), images.device)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    turned = F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    if targets.dim() == 4:
        masks = F.grid_sample(targets.float(), grid, mode="nearest", padding_mode="zeros", align_corners=False)
        targets = masks.to(targets.dtype)
    return turned, targets


FORMAT = 1
MOST_IMAGES = 256
"""Images whose intensities are looked at: evenly spaced ones."""


def described(data: object) -> dict[str, Any]:
    """What a site keeps of its training inputs, for itself, as JSON: new ones are prepared and compared with them.

    A table's medians, means and spreads; of images the spread of their mean intensity, the range of their edges and
    what their pixels measure. It is written beside the site's memory and never sent.
    """
    if not isinstance(data, TensorData) or not data.one_shape:
        return {}
    data = data.source or data
    if data.scaling is not None:
        more = {"conversion": dict(data.conversion)} if data.conversion else {}
        return {"format": FORMAT, "kind": "table", "scaling": data.scaling.to_json(), **more}
    train = data.splits["train"]
    rows = torch.linspace(0, len(train) - 1, min(len(train), MOST_IMAGES)).round().long()
    means = []
    for inputs, _ in train.read(rows.split(16)):
        if inputs.dim() != 4:
            return {}
        means.append(as_float(inputs).mean((1, 2, 3)))
    intensity = torch.cat(means).double()
    found = {"mean": float(intensity.mean()), "std": float(intensity.std(correction=0)), "n": len(rows)}
    files = {} if isinstance(train, Split) else train.described(rows)
    return {"format": FORMAT, "kind": "images", "intensity": found, **files}


NONE = "none"
MOST_GROUPS = 10_000
LONGEST_NAME = 200
"""Characters of a class's or an attribute value's name: groups multiply them."""


@dataclass(frozen=True)
class Grouping:
    """A partition of examples into groups.

    Attributes:
        keys: what it goes by, e.g. ("label", "sex").
        values: for each key its values in order, as the data spell them; the classes' names for "label".
    """

    keys: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """One name per group, e.g. "died, female"."""
        return tuple(", ".join(cell) for cell in product(*self.values)) if self.keys else ()

    def index(self, n: int, labels: Tensor, attributes: Mapping[str, Sequence[str]]) -> Tensor:
        """int64 (N,): each example's place in ``names``; -1 where an attribute is unknown."""
        index = torch.full((n,), 0 if self.keys else -1)
        for key, values in zip(self.keys, self.values):
            if key == LABEL:
                place = labels.long()
            else:
                known = {value: k for k, value in enumerate(values)}
                place = torch.tensor([known.get(value, -1) for value in attributes[key]], dtype=torch.int64)
            index = torch.where((index < 0) | (place < 0), -1, index * len(values) + place)
        return index


def make_grouping(by: str, task: str, classes: Sequence[str], attributes: Mapping[str, Sequence[str]]) -> Grouping:
    """The grouping that ``by`` names: "none", "label", an attribute, or several joined with "+" as in "label+sex".

    ``classes`` are the classes' names, empty where examples have no single class; ``attributes`` name -> values of the
    task's sensitive attributes. UserError where the task has no such attribute.
    """
    if by == NONE:
        return Grouping()
    known = ({LABEL: tuple(classes)} if classes else {}) | {name: tuple(v) for name, v in attributes.items()}
    keys = tuple(key.strip() for key in by.split("+"))
    for key in keys:
        if key not in known:
            raise UserError(f"group_by: task {task} has no attribute {key!r}; it has: {', '.join(known) or NONE}")
    if len(set(keys)) < len(keys):
        raise UserError(f"group_by: expected different attributes, got {by!r}")
    for key in keys:
        for value in known[key]:
            if len(value) > LONGEST_NAME:
                raise UserError(f"group_by: expected names of at most {LONGEST_NAME} characters, got {shown(value)}")
    if math.prod(len(known[key]) for key in keys) > MOST_GROUPS:
        raise UserError(f"group_by: expected at most {MOST_GROUPS} groups, got more by {by!r}")
    return Grouping(keys, tuple(known[key] for key in keys))
