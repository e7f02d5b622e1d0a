# SPDX-License-Identifier: Apache-2.0
"""Which object? Ten classes of Office-Caltech from a shop, the web, a webcam and a camera, as FedHEAL divides them.

Where the files are, for CLASS in back_pack, bike, calculator, headphones, keyboard, laptop_computer, monitor, mouse,
mug, projector:

    office_caltech_10/caltech/CLASS/*.jpg
    office_caltech_10/amazon/CLASS/*.jpg
    office_caltech_10/webcam/CLASS/*.jpg
    office_caltech_10/dslr/CLASS/*.jpg
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.seeds import derive
from fairflare.data.readers.datalist import Item
from fairflare.data.readers.pictures import Reader
from fairflare.datasets.partition import ATTEMPTS
from fairflare.tasks.base import Preset, expect, site_index
from fairflare_lab.datasets.domains import IMAGENET, PAPER, SMALL, FlippedData, OverDomains, images_in
from fairflare_lab.datasets.on_disk import ImagesOnDisk

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
    The options are those of ``OverDomains`` and those below.

    Args:
        share: of a domain's training part that one site trains on, above 0, for all sites of the domain together at
            most 0.8; the paper has 0.1.
        size: edge in pixels that images are resampled to, 32..512; the paper has 192.
        limit: the most images of each split of a site and of each shared test set, at least 2; none: all.
    """

    name = "office-caltech"
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

        Raises MissingData without a class's folder, DataError where it is empty or others are there, e.g. Office-31's.
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
    """For every site the positions in ``labels`` (N,) that it trains on, and those that it is tested on; none twice.

    Each trains on floor(share N), every class among them. ``name``: of the domain, for errors.

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
