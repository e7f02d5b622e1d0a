# SPDX-License-Identifier: Apache-2.0
"""Sites dealt over domains (kinds of images): each domain in turn at as many sites; and how FedHEAL moves and flips
their training images. Its Office-Caltech: ten classes from a shop, the web, a webcam and a camera."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairflare.core.errors import DataError, UserError
from fairflare.core.execution import moved
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, Training
from fairflare.data.readers.datalist import Item
from fairflare.data.readers.geometry import NATURAL
from fairflare.data.readers.pictures import Reader
from fairflare.data.tensors import TensorData, normalised
from fairflare.datasets.on_disk import ImagesOnDisk
from fairflare.datasets.partition import ATTEMPTS, SMALLEST_SITE, dirichlet_by_label, redrawn
from fairflare.networks import builtin as networks
from fairflare.tasks.base import PARTITION, SPLIT, Preset, Task, expect, expect_choices, site_index

SMALL = Training(rounds=20, epochs=2, batch_size=32, optimizer="sgd", lr=0.02, momentum=0.9, weight_decay=1e-5)
"""FedHEAL's rate of 0.001 is for 2,000 local epochs; this is its optimizer at 40 of them."""
PAPER = Training(rounds=200, epochs=10, batch_size=64, optimizer="sgd", lr=1e-3, momentum=0.9, weight_decay=1e-5)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation per channel on [0, 1], which FedHEAL takes, too."""


@dataclass(frozen=True)
class OverDomains(Task):
    """What a task's sites hold, for a frozen dataclass whose ``n_sites`` is a multiple of its domains.

    Attributes:
        domain_names: in the order of the sites.
        most_sites: that there may be.
        n_sites: in all.
        alpha: concentration of a Dirichlet label skew between the sites of a domain; 0: none.
    """

    headline = "accuracy"
    domain_names: ClassVar[Sequence[str]]
    most_sites: ClassVar[int] = 40
    alpha = 0.0  # no field: a task that has the option declares it

    n_sites: int = 20
    model: Literal["small-cnn", "small-cnn-bn", "resnet10", "resnet18"] = "small-cnn"
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        fits = len(self.domain_names) <= self.n_sites <= self.most_sites and self.n_sites % len(self.domain_names) == 0
        multiple = f"a multiple of {len(self.domain_names)} in {len(self.domain_names)}..{self.most_sites}"
        expect("n_sites", fits, multiple, self.n_sites)
        expect("alpha", 0 <= self.alpha < math.inf, "a number above 0, or 0 for no label skew", self.alpha)
        limit = getattr(self, "limit", None)
        expect("limit", limit is None or limit >= 2, "at least 2, or none", limit)
        expect("data_seed", 0 <= self.data_seed < 2**32, "0..2**32-1", self.data_seed)

    def network(self) -> nn.Module:
        return networks.build(self.model, len(IMAGENET[0]), len(self.classes))

    def drawn(self) -> tuple[str, ...]:
        return PARTITION, SPLIT

    @property
    def _per_domain(self) -> int:
        return self.n_sites // len(self.domain_names)

    def sites(self) -> dict[str, str]:
        skew = f"; label skew, alpha {self.alpha:g}" if self.alpha else ""
        kinds = [domain + skew for domain in self.domain_names for _ in range(self._per_domain)]
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def domains(self) -> dict[str, str]:
        return {site: self.domain(site) for site in self.sites()}

    def domain(self, site: str) -> str:
        return self.domain_names[site_index(site, self.sites()) // self._per_domain]

    def dealt(self, domain: str, labels: np.ndarray) -> np.ndarray:
        """int64 (N,): which of its sites, from 0, has each image of a domain with such ``labels``, by a label skew."""
        seed = derive(self.data_seed, self.name, "skew", domain) % 2**32
        n_sites = self._per_domain
        draw = partial(dirichlet_by_label, labels, n_sites, self.alpha)
        return redrawn(draw, labels, n_sites, seed, minimum=SMALLEST_SITE)

    def parts(self, site: str, members: np.ndarray) -> dict[str, np.ndarray]:
        """Split -> those of ``members``, what the site has of its domain, in random order: 10, 30 and 60 per cent."""
        seed = derive(self.data_seed, self.name, "split", site_index(site, self.sites()))
        n_val, n_test = round(0.1 * len(members)), round(0.3 * len(members))
        shuffled = np.split(np.random.default_rng(seed).permutation(members), (n_val, n_val + n_test))
        return dict(zip(("val", "test", "train"), shuffled))


def images_in(folders: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """The PNG and JPEG files of ``folders``, in each of them by name.

    Args:
        folders: class k is the k-th.

    Returns:
        Paths (N,) of dtype object, and int64 (N,) classes.

    Raises:
        DataError: "missing_file": a folder without an image.
    """
    found = [sorted(p for p in folder.iterdir() if p.suffix.lower() in NATURAL) for folder in folders]
    for folder, paths in zip(folders, found):
        if not paths:
            raise DataError("missing_file", f"{folder}: expected {', '.join(NATURAL)} images, found none")
    labels = np.repeat(np.arange(len(folders)), [len(paths) for paths in found])
    return np.array([path for paths in found for path in paths], dtype=object), labels


PAD = 4
"""Black pixels around an image before a piece of its own size is cut out."""


class CroppedData(TensorData):
    """``TensorData`` of colour images, each of which is moved by -4..4 pixels along either axis in training."""

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(derive(seed, "crop"))
        black = normalised(torch.zeros(1, 3, 1, 1, device=self.device), self.mean, self.std)
        for batch in super().training(batch_size, seed):
            yield batch._replace(inputs=cropped(batch.inputs, black, generator))


def cropped(images: Tensor, fill: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of (N, C, H, W) moved at random by up to ``PAD`` pixels along either axis.

    Args:
        images: float32.
        fill: (1, C, 1, 1), the colour beyond an image's border.
        generator: of the 2 N offsets.
    """
    (n, _, height, width), device = images.shape, images.device
    # Where nothing is padded the images keep their bits: adding and taking away ``fill`` would not see to that.
    inside = F.pad(torch.ones(1, 1, height, width, device=device), (PAD,) * 4).bool()
    canvas = torch.where(inside, F.pad(images, (PAD,) * 4), fill)
    y, x = moved(torch.randint(2 * PAD + 1, (2, n, 1), generator=generator), device)
    rows, columns = y + torch.arange(height, device=device), x + torch.arange(width, device=device)
    which = torch.arange(n, device=device)[:, None, None]
    return canvas[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


class FlippedData(TensorData):
    """``TensorData`` of images with a class each, half of which are mirrored left to right in training."""

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(derive(seed, "flip"))
        for batch in super().training(batch_size, seed):
            yield batch._replace(inputs=flipped(batch.inputs, generator))


def flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image of (N, C, H, W) mirrored left to right with probability 1/2."""
    chosen = moved(torch.rand(len(images), generator=generator) < 0.5, images.device)
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(-1), images)


FOLDER = "office_caltech_10"
CLASSES = "back_pack bike calculator headphones keyboard laptop_computer monitor mouse mug projector"
DOMAINS = ("caltech", "amazon", "webcam", "dslr")
CYCLE, TRAIN = 10, 8
"""The first ``TRAIN`` of every ``CYCLE`` images of a domain, in their stored order, are its training part."""
MOST = 0.8
"""The sites of a domain train on this share of its training part at most; they validate and test on the rest."""
VAL = 0.25
"""Share of a site's validation split in what it does not train on."""


@dataclass(frozen=True)
class OfficeCaltech(OverDomains, ImagesOnDisk):
    """Domain shift as in FedHEAL's Office-Caltech (Chen et al., CVPR 2024, arXiv:2405.16585).

    A quarter of the sites holds each domain, in the order of ``DOMAINS``. A domain's images are numbered by class and
    file name; number i belongs to the training part where i mod 10 is at most 7, and to the shared test set otherwise.
    Every site trains on ``share`` of the training part, no image twice; for a class that it has not drawn, one image is
    swapped with the rest. What no site trains on is dealt evenly to the validation and test splits of the domain's
    sites, which the paper does not have. Training images are flipped at random.

    Args:
        n_sites: a multiple of 4 in 4..40; the paper has 20.
        share: of a domain's training part that one site trains on, above 0, for all sites of the domain together at
            most 0.8; the paper has 0.1.
        size: edge in pixels that images are resampled to, 32..512; the paper has 192.
        model: "small-cnn", "small-cnn-bn" (BatchNorm), "resnet10" (the paper's) or "resnet18".
        limit: the most images of each split of a site and of each shared test set, at least 2; none: all.
        data_seed: of who has which image, 0..2**32-1.
    """

    name = "office-caltech"
    shown_tree = """
    office_caltech_10/caltech/CLASS/*.jpg
    office_caltech_10/amazon/CLASS/*.jpg
    office_caltech_10/webcam/CLASS/*.jpg
    office_caltech_10/dslr/CLASS/*.jpg
"""
    title = "Objects of four domains"
    real = "everything: your copy of Office-Caltech"
    simulated = "the sites"
    classes = tuple(CLASSES.split())
    presets = {
        "small": Preset(
            "8 sites, 2 per domain, 64 pixels, a small CNN; minutes on a laptop",
            {"n_sites": 8, "share": 0.3, "size": 64},
            replace(SMALL, batch_size=16),
        ),
        "paper": Preset(
            "the paper's setting: 20 sites, 5 per domain, 192 pixels, ResNet-10, 200 rounds of 10 epochs; for a GPU",
            {"n_sites": 20, "share": 0.1, "size": 192, "model": "resnet10"},
            replace(PAPER, batch_size=16),
        ),
    }
    mean, std = IMAGENET
    data_kind = FlippedData

    domain_names = DOMAINS
    share: float = 0.1
    size: int = 64
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        most = MOST / self._per_domain
        expect("share", 0 < self.share <= most, f"above 0 and at most {most:g} for {self.n_sites} sites", self.share)
        expect("size", 32 <= self.size <= 512, "32..512", self.size)

    def reader(self) -> Reader:
        return Reader(self.size, len(self.mean))

    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        """ "train", "val" and "test" -> the site's images, a part of its domain's training images.

        Which, follows from ``data_seed``. Of those that are not trained on, a share of ``VAL`` is for validation.
        Raises MissingData without the domain's folder.
        """
        which, place = divmod(site_index(site, self.sites()), self._per_domain)
        domain = DOMAINS[which]
        found = self.listed(root, domain)["train"]
        labels, seed = np.array([item.label for item in found]), derive(self.data_seed, self.name, domain)
        train, held_out = dealt(labels, self._per_domain, self.share, len(self.classes), seed, domain)[place]
        n_val = round(VAL * len(held_out))
        rows = {"train": train, "val": held_out[:n_val], "test": held_out[n_val:]}
        return {split: [found[i] for i in part] for split, part in rows.items()}

    def shared_items(self, root: Path) -> Mapping[str, tuple[bool, Sequence[Item]]]:
        """Each domain's test part, in an order of ``data_seed``, so that a limit leaves out no class."""
        found = {}
        for domain in DOMAINS:
            items = self.listed(root, domain)["test"]
            rng = np.random.default_rng(derive(self.data_seed, self.name, "test", domain))
            found[domain] = (False, [items[i] for i in rng.permutation(len(items))])
        return found

    def check_data(self) -> None:
        for domain in DOMAINS:
            self.listed(self.root(), domain)

    def listed(self, root: Path, domain: str) -> dict[str, list[Item]]:
        """ "train" and "test" -> the domain's images by class and file name.

        Raises:
            MissingData: a class has no folder.
            DataError: a class has no image, or there are further classes, e.g. those of Office-31.
        """
        folder = self.needed(root / FOLDER / domain)
        paths, labels = images_in([self.needed(folder / name) for name in self.classes])
        own = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
        further = sorted(own - set(self.classes))
        if further:
            raise DataError("label", f"{folder}: expected the folders of {len(self.classes)} classes, got {further[0]}")
        items = [Item(path, int(label)) for path, label in zip(paths, labels)]
        return {
            "train": [item for i, item in enumerate(items) if i % CYCLE < TRAIN],
            "test": [item for i, item in enumerate(items) if i % CYCLE >= TRAIN],
        }


def dealt(
    labels: np.ndarray, n_sites: int, share: float, n_classes: int, seed: int, name: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every site, the examples that it trains on, with every class among them, and those that it is tested on.

    Args:
        labels: (N,) in 0..n_classes-1.
        n_sites: K.
        share: each site trains on floor(share N).
        n_classes: C.
        seed: of all draws.
        name: of the domain, for errors.

    Returns:
        K pairs of positions in ``labels``; each is in one array of one pair.

    Raises:
        UserError: a site's share has no room for every class, or a class has too few examples for all sites.
    """
    each = int(share * len(labels))
    if each < n_classes:
        least = f"share: expected at least {n_classes} training images per site, one of each class"
        raise UserError(f"{least}, got {each} of the {len(labels)} of {name}")
    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng(derive(seed, attempt))
        drawn = _drawn(labels, n_sites, each, n_classes, rng)
        if drawn is not None:
            trains, rest = drawn
            return list(zip(trains, np.array_split(rest, n_sites)))
    rarest = int(np.bincount(labels, minlength=n_classes).argmin())
    n = int((labels == rarest).sum())
    raise UserError(f"n_sites: {name} has {n} training images of class {rarest}: too few for {n_sites} of its sites")


def _drawn(
    labels: np.ndarray, n_sites: int, each: int, n_classes: int, rng: np.random.Generator
) -> tuple[list[np.ndarray], np.ndarray] | None:
    """Every site's training examples and, in random order, the rest; None when a class runs out."""
    trains, free = [], np.arange(len(labels))
    for _ in range(n_sites):
        taken, free = np.split(rng.permutation(free), [each])
        for missing in np.setdiff1d(np.arange(n_classes), labels[taken]):
            wanted = np.flatnonzero(labels[free] == missing)
            if not len(wanted):
                return None
            spare = np.flatnonzero(np.bincount(labels[taken])[labels[taken]] >= 2)
            given, got = rng.choice(spare), rng.choice(wanted)
            taken[given], free[got] = free[got], taken[given]
        trains.append(taken)
    return trains, rng.permutation(free)
