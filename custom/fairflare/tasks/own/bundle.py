# SPDX-License-Identifier: Apache-2.0
"""A MONAI bundle's task on a user's own files: its network, transforms, loss and inferer, from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairflare.core.errors import DataError
from fairflare.core.execution import moved
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, Objective, SiteData, Training
from fairflare.core.validation import Names
from fairflare.core.validation import expected as expect
from fairflare.data.readers.datalist import PATIENTS, Item, attribute_columns, patients_of, read_datalist
from fairflare.data.readers.files import FileSplit
from fairflare.data.readers.pictures import name_of, stored, structure_masks
from fairflare.data.readers.volumes import placed_as
from fairflare.data.readers.volumes import read as read_volume
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.networks import own as own_network
from fairflare.networks import own_class
from fairflare.networks import volumes as volume_networks
from fairflare.tasks.base import Preset, Task
from fairflare.tasks.bundle_parts import built, named, pipeline, read, steps
from fairflare.tasks.kind import Baseline
from fairflare.tasks.kinds.masks import Segmentation, VolumeMasks, of_volumes, structure_values
from fairflare.tasks.kinds.own import OwnData
from fairflare.tasks.kinds.own_images import room_of

CHANNELS = ("out_channels", "num_classes", "classes")
"""By which MONAI's networks call the number of their outputs."""
ALL_KEYS = ("image", "label")
PRESETS = {"bundle": Preset("as the bundle trains", {}, Training(batch_size=2, weight_decay=0.0))}


@dataclass(frozen=True)
class BundleReader:
    """Turns a datalist's item into what a bundle's transforms make of it, up to the first random one.

    Axes are those of MONAI's own readers: a picture's are (columns, rows), a volume's as they are stored.

    Args:
        prepare: a dictionary of MONAI's tensors "image" and, of masks, "label" (1, ...) with the file's values -> the
            same, changed.
        volumes: whether a file is a volume.
        channels: of an image, as the network takes it.
        values: structure -> the values that belong to it in a mask file; None: an item's label is its class.
        background: values of no structure.
        later: the random transforms that training applies; tried once here, so that preflight finds what they refuse.
    """

    prepare: Callable[[dict[str, Any]], Any]
    volumes: bool
    channels: int
    values: dict[str, tuple[int, ...]] | None = None
    background: Sequence[int] = (0,)
    later: Any = None

    def __call__(self, item: Item) -> tuple[Tensor, Tensor]:
        """float32 (channels, ...), and int64 () or uint8 (structures, ...) of 0 and 1.

        DataError as the readers', "bundle" (a transform failed, or the network takes another number of channels),
        "shape" or "mask_values".
        """
        name = name_of(item.image)
        example = {"image": self._loaded(item.image, False)}
        if self.values is not None:
            if isinstance(item.label, (int, float, tuple)):
                raise DataError("entry", f"{name}: expected a mask's file, got the class {item.label}")
            example["label"] = self._loaded(item.label, True)
            edges = [tuple(one.shape[1:]) for one in example.values()]
            if edges[0] != edges[1]:
                raise DataError("shape", f"{name}: {edges[0]} pixels, its mask has {edges[1]}")
        try:
            found = self.prepare(example)
            if self.later is not None:
                self.later(dict(found))
        except Exception as error:  # MONAI's own
            text = " ".join(str(error.__cause__ or error).split())[:200]
            raise DataError("bundle", f"{name}: the bundle's transforms failed: {text}") from error
        image = _plain(found["image"]).float().contiguous()
        if len(image) != self.channels:
            raise DataError(
                "bundle", f"{name}: expected {self.channels} channels as the network takes, got {len(image)}"
            )
        if self.values is None:
            return image, torch.tensor(item.label)
        masks = structure_masks(_plain(found["label"])[0].numpy(), self.values, self.background, name_of(item.label))  # type: ignore[arg-type]  # of masks the label is a file
        return image, masks.to(torch.uint8)

    def _loaded(self, source: Any, mask: bool) -> Any:
        if self.volumes:
            volume = read_volume(source, mask=mask)
            return placed_as(torch.from_numpy(volume.stored.pixels)[None].float(), volume.affine)
        pixels = torch.from_numpy(stored(source, mask=mask)).float().transpose(1, 2).contiguous()
        return placed_as(pixels, torch.eye(4, dtype=torch.float64).numpy())


def _plain(found: Any) -> Tensor:
    """MONAI's tensor without what it knows of its place."""
    plain: Tensor = found.as_tensor() if hasattr(found, "as_tensor") else torch.as_tensor(found)
    return plain


class BundleData(TensorData):
    """``TensorData`` whose examples may differ in shape, and whose training examples pass a bundle's random transforms.

    A batch of ``training`` has ``batch_size`` files, each with as many crops as the transforms make of it. Elsewhere a
    batch ends where the next example has another shape.

    Args:
        random: MONAI's transforms of "image" and, of masks, "label", one channel for the background first.
        plain: the training examples as they are looked at outside training; None: one fixed draw of ``random``.
        more: ``TensorData``'s arguments.
    """

    one_shape = False

    def __init__(self, *, random: Any, plain: FileSplit | None, **more: Any) -> None:
        super().__init__(**more)
        self.random, self.plain = random, plain

    def _picked(self, batches: Sequence[Tensor], generator: torch.Generator) -> Iterator[Batch]:
        for rows in batches:
            seeds = torch.randint(2**31, (len(rows),), generator=generator)
            drawn = [self._drawn(row, int(seed)) for row, seed in zip(rows.tolist(), seeds)]
            whose = torch.cat([rows[k].expand(len(one)) for k, one in enumerate(drawn)])
            inputs, targets = zip(*(pair for one in drawn for pair in one))
            if len({part.shape for part in inputs}) > 1:
                text = "expected training examples of one shape; crop or resize them, as with RandCropByPosNegLabeld"
                raise DataError("bundle", f"train#preprocessing: {text}")
            yield self._batch("train", whose, inputs, targets)

    def _drawn(self, row: int, seed: int) -> list[tuple[Tensor, Tensor]]:
        """The examples that the random transforms make of a training file, a function of the arguments alone."""
        image, target = self.splits["train"].example(row)  # type: ignore[union-attr]  # they are files
        if not self.random.transforms:
            return [(image, target)]
        example, masks = {"image": image.clone()}, target.dim() > 0
        if masks:
            example["label"] = torch.cat(((target.amax(0, keepdim=True) == 0).to(target.dtype), target))
        self.random.set_random_state(seed=seed)
        found = self.random(example)
        found = found if isinstance(found, list) else [found]
        label = (lambda one: _plain(one["label"])[1:].round().to(torch.uint8)) if masks else lambda one: target
        return [(_plain(one["image"]).float(), label(one)) for one in found]

    def _read(self, name: str, batches: Sequence[Tensor]) -> Iterator[Batch]:
        split: Any = self.plain if name == "train" and self.plain else self.splits[name]
        fixed = name == "train" and self.plain is None
        for rows in batches:
            ready: list[tuple[int, Tensor, Tensor]] = []
            for row in rows.tolist():
                pair = self._drawn(row, derive(0, "fixed", row) % 2**31)[0] if fixed else split.example(row)
                if ready and ready[0][1].shape != pair[0].shape:
                    yield self._batch(name, *_columns(ready))
                    ready = []
                ready.append((row, *pair))
            yield self._batch(name, *_columns(ready))

    def _batch(self, name: str, rows: Tensor, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Batch:
        images, answers = (moved(torch.stack(list(part)), self.device) for part in (inputs, targets))
        return Batch(images, answers, self._groups[name][rows])


def _columns(ready: list[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Any, Any]:
    rows, inputs, targets = zip(*ready)
    return torch.tensor(rows), inputs, targets


@dataclass(frozen=True)
class BundleTask(OwnData):
    """What a bundle says of a task, as JSON; ``fairflare run METHOD --bundle DIR`` fills these options.

    Args:
        datalists: folder with one datalist per site on this machine; paths in them are relative to it.
        model: the network as {"class_path": "monai.networks.nets.Name", "args": {...}}.
        loss: a loss of ``bundle_parts.HOMES`` with its arguments.
        transforms: those that images are scored with.
        train_transforms: those of training, random ones last.
        inferer: how an image becomes the network's output: SimpleInferer, or SlidingWindowInferer on large ones.
        shape: the network's input: channels and edges, "1,96,96,96"; empty: one channel, edges of 64.
        key_metric: the headline; empty: the kind's.
    """

    volumes: ClassVar[bool] = False
    masks: ClassVar[bool] = False
    presets = PRESETS

    datalists: str = ""
    site_names: Names = ""
    labels: Names = "2"
    attribute_values: str = ""
    model: str = '{"class_path": "monai.networks.nets.DenseNet121", "args": {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}}'  # noqa: E501
    loss: str = '{"_target_": "CrossEntropyLoss"}'
    transforms: Names = "[]"
    train_transforms: Names = "[]"
    inferer: str = '{"_target_": "SimpleInferer"}'
    shape: str = ""
    key_metric: str = ""

    def __post_init__(self) -> None:
        self._check_own(fewest=1 if self.masks else 2)
        if self.model != type(self).model:  # the default needs no look, which would import MONAI to list tasks
            own_network.check_model(self.model, ())
        expect("model", own_class.class_path(self.model).startswith("monai."), "a network of MONAI's", self.model)
        named("loss", read("loss", self.loss, dict), "loss")
        named("inferer", read("inferer", self.inferer, dict), "inferer")
        for key in ("transforms", "train_transforms"):
            steps(key, getattr(self, key), self.keys)
        dims = 1 + (3 if self.volumes else 2)
        fits = len(self.input_shape) == dims and all(1 <= n <= 512 for n in self.input_shape)
        expect("shape", fits, f"{dims} whole numbers of 1 to 512: channels and edges", self.shape)
        if self.key_metric:
            names = self.metrics
            expect("key_metric", self.key_metric in names, f"one of {', '.join(names)}", self.key_metric)
        if self.masks:
            n = len(self.classes)
            expect("model", self.outputs in (n, n + 1), f"{n} outputs, or {n + 1} with the background", self.outputs)

    @property
    def keys(self) -> tuple[str, ...]:
        """What transforms may change."""
        return ALL_KEYS if self.masks else ALL_KEYS[:1]

    @property
    def headline(self) -> str:  # type: ignore[override]  # depends on an option
        """The bundle's key metric; where it has none, the kind's."""
        return self.key_metric or self.kind.headline

    @property
    def input_shape(self) -> tuple[int, ...]:
        shape = self.shape or ",".join(("1", *["64"] * (3 if self.volumes else 2)))
        return tuple(int(part) if part.strip().isdigit() else 0 for part in shape.split(","))

    @property
    def outputs(self) -> int:
        """Channels that the network gives."""
        args = read("model", self.model, dict).get("args", {})
        return int(next((args[key] for key in CHANNELS if key in args), 0))

    @property
    def crops(self) -> bool:
        """Whether training makes several examples of a file."""
        listed = steps("train_transforms", self.train_transforms, self.keys)
        return any(one.get("num_samples", 1) != 1 for one in listed)

    def network(self) -> nn.Module:
        edges = self.input_shape[1:] if self.masks else ()
        network = own_network.build(self.model, self.input_shape, (self.outputs or len(self.classes), *edges))
        name, given = named("inferer", read("inferer", self.inferer, dict), "inferer")
        if name == "SimpleInferer":
            return network
        built("inferer", read("inferer", self.inferer, dict), "inferer")  # raises where the arguments do not fit
        roi = given["roi_size"] if isinstance(given["roi_size"], list) else [given["roi_size"]] * (len(edges))
        return volume_networks.Windowed(
            network, roi, float(given.get("overlap", 0.25)), str(given.get("mode", "constant"))
        )

    def read(self, own: SiteConfig) -> TensorData:
        root = Path(own.data_root)
        lists = read_datalist(root / own.datalist, root, **self.kind.lists(self.classes), links=own.links)
        before, random = pipeline("train_transforms", self.train_transforms, self.keys)
        same, later = pipeline("transforms", self.transforms, self.keys)
        expect("transforms", not later.transforms, "none that draws at random", self.transforms)
        room = room_of(own)

        def of(split: str, prepare: Any, later: Any = None) -> FileSplit:
            items = lists.get(split, ())
            labels = torch.tensor([one.label for one in items] if self.kind.has_classes else [], dtype=torch.int64)
            attributes, whose = (attribute_columns(items, list(keys)) for keys in (self.attributes, PATIENTS))
            how = own.cache_rate, 0, room, patients_of(whose)
            return FileSplit(items, replace(self.reader(prepare), later=later), labels, attributes, *how)

        splits = {"train": of("train", before, random), **{name: of(name, same) for name in ("val", "test")}}
        plain = None if self.masks else of("train", same)
        return BundleData(random=random, plain=plain, n_classes=self.kind.n_classes(self.classes), **splits)

    def reader(self, prepare: Any) -> BundleReader:
        return BundleReader(prepare, self.volumes, self.input_shape[0])

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        """The bundle's loss; a case's is that of a batch of its own."""
        expect("logit_tau", not logit_tau, "0 with a bundle's loss", logit_tau)
        content = read("loss", self.loss, dict)
        made, name = built("loss", content, "loss"), named("loss", content, "loss")[0]

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            found: Tensor = made.to(logits.device)(logits, self.as_taken(name, content, targets))
            return found

        def objective(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
            if reduction == "mean":
                return loss(logits, targets)
            return torch.stack([loss(logits[k : k + 1], targets[k : k + 1]) for k in range(len(logits))])

        return objective

    def as_taken(self, name: str, loss: dict[str, Any], targets: Tensor) -> Tensor:
        """Targets as a loss takes them: MONAI's with a channel, torch's without."""
        if name == "CrossEntropyLoss":
            return targets
        return targets[:, None] if loss.get("to_onehot_y") else F.one_hot(targets, len(self.classes)).float()


class BundleClassification(BundleTask):
    """2D images with one class each."""

    name = "bundle-classification"
    title = "A MONAI bundle's classification of your own images"


class BundleVolumeClassification(BundleTask):
    """Volumes with one class each."""

    name = "bundle-volume-classification"
    title = "A MONAI bundle's classification of your own volumes"
    volumes = True


class BundleMasks(Segmentation):
    """Masks of images that may differ in shape, for which no constant mask is an answer."""

    def baseline(self, task: Task, data: SiteData) -> Baseline | None:  # type: ignore[override]  # no answer is one
        return None


class BundleVolumeMasks(VolumeMasks):
    """The same of volumes."""

    def baseline(self, task: Task, data: SiteData) -> Baseline | None:  # type: ignore[override]  # no answer is one
        return None


@dataclass(frozen=True)
class BundleSegmentation(BundleTask):
    """2D images with masks, as the options of ``BundleTask`` and those below say.

    With one output more than there are structures, the first is the background's and structures exclude each other.

    Args:
        mask_values: structure -> values in the mask files, as of the task "segmentation".
    """

    name = "bundle-segmentation"
    title = "A MONAI bundle's segmentation of your own images"
    kind: ClassVar[Any] = BundleMasks()
    masks = True

    mask_values: str = ""

    def reader(self, prepare: Any) -> BundleReader:
        values = structure_values(self.mask_values, self.classes)
        return BundleReader(prepare, self.volumes, self.input_shape[0], *values)

    def as_taken(self, name: str, loss: dict[str, Any], targets: Tensor) -> Tensor:
        if self.outputs == len(self.classes):
            return targets.float()
        places = torch.arange(1, self.outputs, device=targets.device).view(-1, *[1] * (targets.dim() - 2))
        labels = (targets * places).amax(1, keepdim=True)
        if name == "CrossEntropyLoss":
            return labels[:, 0]
        return labels if loss.get("to_onehot_y") else torch.cat((labels == 0, targets > 0), 1).float()

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return self.kind.condense(self.as_masks(outputs), targets)

    def as_masks(self, outputs: Tensor) -> Tensor:
        """Logits (N, outputs, ...) -> (N, structures, ...), above 0 where a structure is the likeliest of all."""
        if self.outputs == len(self.classes):
            return outputs
        first = outputs.topk(2, dim=1).values
        others = torch.where(outputs == first[:, :1], first[:, 1:], first[:, :1])
        return (outputs - others)[:, 1:]


class BundleVolumeSegmentation(BundleSegmentation):
    """Volumes with masks; surface distances are in millimetres where ``transforms`` have a spacing, else in voxels."""

    name = "bundle-volume-segmentation"
    title = "A MONAI bundle's segmentation of your own volumes"
    kind = BundleVolumeMasks()
    volumes = True

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        spaced = [one["pixdim"] for one in steps("transforms", self.transforms, self.keys) if "pixdim" in one]
        edges = spaced[-1] if spaced and isinstance(spaced[-1], list) else [1.0] * 3
        return of_volumes(self.as_masks(outputs), targets, edges, 2.0)
