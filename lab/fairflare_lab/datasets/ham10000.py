# SPDX-License-Identifier: Apache-2.0
"""HAM10000: 10,015 dermatoscopic photographs of four sources, with diagnoses and outlines, which the user brings.

    ham10000/metadata.csv                  image_id,lesion_id,site,dx,age,sex
    ham10000/images/SITE/IMAGE.jpg
    ham10000/masks/SITE/IMAGE.png          for ham10000-masks: above 0 is lesion

SITE is rosendahl, vidir_modern, vidir_molemax or vienna_dias. Source: Tschandl, Rosendahl and Kittler, Scientific Data
5:180161 (2018), doi 10.1038/sdata.2018.161; masks: Tschandl et al., Nature Medicine (2020), doi
10.1038/s41591-020-0942-0. Terms: non-commercial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.core.errors import DataError
from fairflare.core.seeds import derive
from fairflare.core.types import Training
from fairflare.data.readers.datalist import PATIENTS, Item
from fairflare.data.readers.pictures import Reader
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.networks import images as networks
from fairflare.tasks.base import OPEN_SPLIT, Preset, Task, expect, expect_choices
from fairflare.tasks.kinds.classes import TWO_CLASSES
from fairflare.tasks.kinds.masks import SMALL
from fairflare.tasks.kinds.own_images import image_data
from fairflare_lab.datasets import on_disk
from fairflare_lab.datasets.domains import IMAGENET
from fairflare_lab.datasets.on_disk import ImagesOnDisk, MasksOnDisk, OnDisk, check_split, complete, dealt
from fairflare_lab.datasets.poor_images import MOTION_ANGLES, gaussian_noise, motion_blur

FOLDER = "ham10000"
SITES = {
    "rosendahl": "a practice in Queensland",
    "vidir_modern": "Vienna, newer camera",
    "vidir_molemax": "Vienna, older system, follow-up of moles",
    "vienna_dias": "Vienna, scanned slides",
}
DIAGNOSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
MALIGNANT = ("akiec", "bcc", "mel")
AGES = ("under 45", "45 to 64", "65 and over")
SEXES = ("female", "male")


def listed(task: OnDisk, root: Path, pictures: str = "all") -> dict[str, list[dict[str, str]]]:
    """Site -> rows of ``metadata.csv`` in the order of their names; with "one" only the first picture of a lesion.

    Raises MissingData without the file, DataError "column", "entry" (another site or diagnosis) or "patient_overlap".
    """
    path = task.needed(root / FOLDER / "metadata.csv")
    columns = ("image_id", "lesion_id", "site", "dx", "age", "sex")
    frame = on_disk.read(path)
    on_disk.need(frame, path.name, columns)
    for name, values in (("site", tuple(SITES)), ("dx", DIAGNOSES)):
        on_disk.codes(frame, path.name, name, values)
    cells = {name: on_disk.texts(frame, name) for name in columns}
    rows = sorted((dict(zip(columns, row)) for row in zip(*cells.values())), key=lambda row: row["image_id"])
    if twice := len(rows) - len({row["image_id"] for row in rows}):
        raise DataError("entry", f"{path.name}: image_id: expected each picture once, got {twice} again")
    seen: dict[str, str] = {}
    chosen: dict[str, list[dict[str, str]]] = {site: [] for site in SITES}
    for row in rows:
        first = row["lesion_id"] not in seen
        if seen.setdefault(row["lesion_id"], row["site"]) == row["site"] and (first or pictures == "all"):
            chosen[row["site"]].append(row)  # a lesion that two sites have counts at the first
    return chosen


def attributes_of(row: Mapping[str, str]) -> dict[str, str]:
    """Age group and sex where they are known, and the lesion in the place of the patient."""
    known = {"sex": row["sex"]} if row["sex"] in SEXES else {}
    if row["age"]:
        known["age"] = AGES[int(np.digitize(float(row["age"]), (45, 65)))]
    return {**known, PATIENTS[0]: row["lesion_id"]}


def in_splits(
    task: Ham10000 | Ham10000Masks, root: Path, site: str, pictures: str, item: Callable[[Mapping[str, str]], Item]
) -> Mapping[str, Sequence[Item]]:
    """Split -> items of the site in an order of ``data_seed``; all pictures of a lesion lie in one split."""
    rows, seed = listed(task, root, pictures)[site], derive(task.data_seed, task.name, site)
    lesions = dealt({row["lesion_id"] for row in rows}, task.val_fraction, task.test_fraction, seed)
    split_of = {lesion: split for split, names in lesions.items() for lesion in names}
    chosen: dict[str, list[Item]] = {split: [] for split in lesions}
    for k in np.random.default_rng(seed).permutation(len(rows)):
        chosen[split_of[rows[k]["lesion_id"]]].append(item(rows[k]))
    return complete(site, chosen)


@dataclass(frozen=True)
class PoorReader(Reader):
    """Spoils each picture as FedISM+ does before it is resampled; which noise a picture gets, its name decides."""

    corruption: str = "noise"
    severity: int = 3

    def __call__(self, item: Item) -> tuple[Tensor, Tensor]:
        image = Reader(self.size, self.channels).image(item.image)
        rng = np.random.RandomState(derive(0, FOLDER, self.corruption, Path(str(item.image)).stem) % 2**32)
        pixels = image.permute(1, 2, 0).numpy()
        if self.corruption == "noise":
            poor = gaussian_noise(pixels, self.severity, rng)
        else:
            poor = motion_blur(pixels, self.severity, rng.uniform(*MOTION_ANGLES), self.size / 224)
        return torch.from_numpy(poor).permute(2, 0, 1).contiguous(), torch.tensor(item.label)


class OfFourSources(Task):
    """What both tasks share: the four sources are the sites."""

    real = "the photographs, their diagnoses, outlines, ages and sexes (HAM10000), files that you bring"
    simulated = "nothing but what an option spoils; three of the four sites are one clinic's devices"
    attributes = {"sex": SEXES, "age": AGES}

    def sites(self) -> dict[str, str]:
        return dict(SITES)

    def drawn(self) -> tuple[str, ...]:
        return (OPEN_SPLIT,)

    def domains(self) -> dict[str, str]:
        return {site: site for site in SITES}


@dataclass(frozen=True)
class Ham10000(OfFourSources, ImagesOnDisk):
    """Which kind of lesion is it? Pictures of a lesion lie in one split of one site.

    Args:
        poor: sites whose pictures are spoilt, with + between them; "": none.
        corruption: "noise" (Gaussian) or "motion" (blur), as in FedISM+ (Wu et al., arXiv:2503.09587).
        severity: of the corruption, 1..5.
        pictures: "one" of each lesion, or "all".
        size: pixels along an edge, 32..512.
        model: "small-cnn", "small-cnn-bn" or "resnet18".
        augment: random rotation, shift and flip of training images.
        val_fraction: share of a site's lesions for validation, in (0, 0.4].
        test_fraction: share of a site's lesions for the test, in (0, 0.4].
        limit: the most pictures of each split, at least 2; None: all.
        data_seed: of the splits, 0..2**32-1.
    """

    name = "ham10000"
    title = "HAM10000: a skin lesion's diagnosis, four sources"
    classes: ClassVar[tuple[str, ...]] = DIAGNOSES
    headline = "auc_ovr"
    mean, std = IMAGENET
    presets = {
        "small": Preset(
            "64 pixels, at most 200 pictures a split, a small CNN; minutes on a laptop",
            {"limit": 200},
            Training(rounds=20, batch_size=32, optimizer="adam", lr=1e-3, weight_decay=5e-4, logit_tau=1.0),
        ),
        "full": Preset(
            "224 pixels, all pictures, ResNet-18, 300 rounds; for a GPU",
            {"size": 224, "model": "resnet18", "augment": True},
            Training(rounds=300, batch_size=32, optimizer="adam", lr=3e-4, weight_decay=5e-4, logit_tau=1.0),
        ),
    }

    poor: str = ""
    corruption: Literal["noise", "motion"] = "noise"
    severity: int = 3
    pictures: Literal["all", "one"] = "all"
    size: int = 64
    model: Literal["small-cnn", "small-cnn-bn", "resnet18"] = "small-cnn"
    augment: bool = False
    val_fraction: float = 0.15
    test_fraction: float = 0.25
    limit: int | None = None
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        expect("size", 32 <= self.size <= 512, "32..512", self.size)
        expect("severity", self.severity in range(1, 6), "1..5", self.severity)
        check_split(self)
        known = not self.poor or set(self.poor.split("+")) <= SITES.keys()
        expect("poor", known, f"of {', '.join(SITES)}, with + between them", self.poor)

    def network(self) -> nn.Module:
        return networks.build(self.model, len(self.mean), len(self.classes))

    def reader(self) -> Reader:
        return Reader(self.size, len(self.mean))

    def label(self, diagnosis: str) -> int:
        """The class of a picture with such a diagnosis."""
        return DIAGNOSES.index(diagnosis)

    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        def item(row: Mapping[str, str]) -> Item:
            path = self.needed(root / FOLDER / "images" / site / f"{row['image_id']}.jpg")
            return Item(path, self.label(row["dx"]), attributes_of(row))

        return in_splits(self, root, site, self.pictures, item)

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        if site not in self.poor.split("+"):
            return super().local_data(site, own)
        items = {split: self.limited(part) for split, part in self.items(self.root(own), site).items()}
        reader = PoorReader(self.size, len(self.mean), corruption=self.corruption, severity=self.severity)
        return image_data(items, self, reader, own=own, augment=self.augment, mean=self.mean, std=self.std)


@dataclass(frozen=True)
class Ham10000Malignant(Ham10000):
    """Is the lesion malignant: akiec, bcc or mel? The options are those of ``Ham10000``."""

    name = "ham10000-malignant"
    title = "HAM10000: is a skin lesion malignant? Four sources"
    kind = TWO_CLASSES
    classes = ("benign", "malignant")
    headline = "auc"

    def label(self, diagnosis: str) -> int:
        return int(diagnosis in MALIGNANT)


@dataclass(frozen=True)
class Ham10000Masks(OfFourSources, MasksOnDisk):
    """Where is the lesion? The options are those of ``MasksOnDisk`` and the one below.

    Args:
        pictures: "one" of each lesion, or "all".
    """

    name = "ham10000-masks"
    title = "HAM10000: outline of a skin lesion, four sources"
    classes = ("lesion",)
    mean, std = IMAGENET
    channels = 3
    presets = {"small": Preset("64 pixels, at most 150 pictures a split, a small U-Net", {"limit": 150}, SMALL)}

    pictures: Literal["all", "one"] = "all"

    def reader(self) -> Reader:
        return Reader(self.size, self.channels, {"lesion": (255, 1)})

    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        def item(row: Mapping[str, str]) -> Item:
            image, mask = (
                self.needed(root / FOLDER / kind / site / f"{row['image_id']}{suffix}")
                for kind, suffix in (("images", ".jpg"), ("masks", ".png"))
            )
            return Item(image, mask, attributes_of(row))

        return in_splits(self, root, site, self.pictures, item)
