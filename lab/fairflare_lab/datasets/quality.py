# SPDX-License-Identifier: Apache-2.0
"""Quality shift on published images, in the folders of FedISM and FedISM+: the last sites hold corrupted images.

Two data sets that the user brings: CT slices of the RSNA challenge of 2019 and photographs of the ISIC challenge of
2019. The tables, and facts on folders and seeds, come from the authors' repository (github.com/wnn2000/FFL4MIA), the
images from the challenges' pages. The split over sites and the shared test set are the authors'.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from PIL import Image
from torch import nn

from fairflare.core.errors import DataError, MissingData
from fairflare.core.seeds import derive
from fairflare.core.types import Training
from fairflare.data.readers.datalist import Item
from fairflare.data.readers.pictures import Reader
from fairflare.tasks.base import SPLIT, Preset, site_index
from fairflare_lab.datasets.on_disk import ImagesOnDisk
from fairflare_lab.datasets.poor_images import MOTION_ANGLES, RADIUS, PoorSites, gaussian_noise, motion_blur


@dataclass(frozen=True)
class Table:
    """What ``train.csv`` or ``test.csv`` lists, row by row.

    Attributes:
        ids: N names of images without suffix.
        labels: int64 (N,).
        attributes: of each image, as text.
        groups: int64 (N,): images with the same number show the same lesion and stay in one split.
    """

    ids: Sequence[str]
    labels: np.ndarray
    attributes: Sequence[dict[str, str]]
    groups: np.ndarray


def read_table(path: Path, n_classes: int) -> tuple[list[str], np.ndarray]:
    """Names and classes of the images that a CSV file with the columns ``id`` and ``class`` lists.

    Raises:
        DataError: "unreadable", "column", "entry" (a name is no plain file name, or there twice), "label" or
            "few_examples".
    """
    rows = read_rows(path, ("id", "class"))
    seen: set[str] = set()
    for line, row in enumerate(rows, start=2):
        name, label, where = row["id"], row["class"], f"{path.name}: line {line}"
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise DataError("entry", f"{where}: id: expected the name of an image, got {name!r}")
        if name in seen:
            raise DataError("entry", f"{where}: id: expected each image once, got {name!r} again")
        seen.add(name)
        if not (label.isascii() and label.isdigit() and int(label) < n_classes):
            raise DataError(
                "label", f"{where}: class: expected a whole number from 0 to {n_classes - 1}, got {label!r}"
            )
    if not rows:
        raise DataError("few_examples", f"{path.name}: expected rows, found none")
    return [row["id"] for row in rows], np.array([int(row["class"]) for row in rows], dtype=np.int64)


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file that has ``columns``, cells as stripped text; DataError where it is none."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError("unreadable", f"{path.name}: cannot be read as a table ({type(error).__name__})") from None
    header = [cell.strip() for cell in lines[0]] if lines else []
    for column in columns:
        if column not in header:
            raise DataError("column", f"{path.name}: expected a column {column!r}, got {', '.join(header) or 'none'}")
    rows = [line for line in lines[1:] if line]
    for row in rows:
        if len(row) != len(header):
            raise DataError("entry", f"{path.name}: expected {len(header)} cells in a row, got {','.join(row)!r}")
    return [dict(zip(header, map(str.strip, row))) for row in rows]


SITES_SEED = 2024
"""Of the split over sites; the papers'."""
NOISE_SEED = 0
"""Of the generator that corrupts all training images, and of the one for the test images; the papers'."""
VAL, TEST = 0.15, 0.15
"""Shares of a site's images in its validation and test splits."""
FOLDERS = {"noise": "gaussian", "motion": "motion"}
"""Corruption -> how the names of its folders begin."""
SEVERITIES = range(1, 6)
PRESETS = {
    "small": Preset(
        "64 pixels, 100 images of each split and a small CNN; minutes on a laptop",
        {"limit": 100},
        Training(rounds=20, batch_size=16, optimizer="adam", lr=1e-3, weight_decay=5e-4, logit_tau=1.0),
        **RADIUS,
    ),
    "paper": Preset(
        "the papers' setting: 224 pixels, ResNet-18 (they start from ImageNet weights), 300 rounds; for a GPU",
        {"size": 224, "model": "resnet18", "augment": True},
        Training(rounds=300, batch_size=32, optimizer="adam", lr=3e-4, weight_decay=5e-4, logit_tau=1.0),
    ),
}


@dataclass(frozen=True)
class QualityShift(PoorSites, ImagesOnDisk):
    """The setting of FedISM+ (Wu et al., arXiv:2503.09587): label skew, and poor images at the last sites.

    The training table is split over the sites by the papers' rule and seed. Upstream, sites have no validation or test
    images of their own; here 15 % of a site's share each are set aside, corrupted where the site is. Images are in a
    random order within a split, since the tables are sorted by class. The options are those of ``PoorSites`` and those
    below.

    Args:
        corruption: "noise" (Gaussian, the folders ``gaussian*``) or "motion" (blur, the folders ``motion*``).
        limit: the most images of a split, and of a shared test set, at least 2; None: all.
        data_seed: of the order and of what a site sets aside, 0..2**32-1.
    """

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)
    presets = PRESETS
    folder: ClassVar[str]
    suffix: ClassVar[str]

    n_sites: int = 20
    corrupted: int = 4
    size: int = 64
    limit: int | None = None

    def network(self) -> nn.Module:
        return self.built(len(self.mean))

    def drawn(self) -> tuple[str, ...]:
        return (SPLIT,)

    def reader(self) -> Reader:
        return Reader(self.size, len(self.mean))

    def check_data(self) -> None:
        super().check_data()
        self.shared_items(self.root())

    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        if self.is_clean(site):
            return self.clean_items(root, site)
        if self.lacks_corrupted(root):
            what = f"task {self.name}: no such folder: {self.variant(root)}, the images of the corrupted sites"
            made = f"`fairflare prepare {self.name} SOURCE DEST` makes them from train/clean"
            raise MissingData(f"{what}; {made}; expected:", self.tree())
        return self._items_in(root, site, self.variant(root))

    def clean_items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        """The same images as ``items``, from ``train/clean`` whatever the site."""
        return self._items_in(root, site, self.needed(root / self.folder / "train" / "clean"))

    def shared_items(self, root: Path) -> Mapping[str, tuple[bool, Sequence[Item]]]:
        """ "clean" and each severity whose folder ``root`` has -> whether it is corrupted, and its images.

        All list the same images in one order of ``data_seed``. Raises DataError where a training image is among them,
        and MissingData without the clean ones.
        """
        folders = {"clean": self.needed(root / self.folder / "test" / "clean")}
        every = {f"{self.corruption} {s}": self.test_folder(root, s) for s in SEVERITIES}
        folders |= {name: folder for name, folder in every.items() if folder.is_dir()}
        test = self.table(root, "test")
        both = set(test.ids) & set(self.table(root, "train").ids)
        if both:
            text = f"{self.folder}: {len(both)} images are in both train.csv and test.csv, e.g. {min(both)}"
            raise DataError("patient_overlap", text)
        rng = np.random.default_rng(derive(self.data_seed, self.name, "test order"))
        order = rng.permutation(len(test.ids))
        return {name: (name != "clean", self._listed(test, order, folder)) for name, folder in folders.items()}

    def is_clean(self, site: str) -> bool:
        """Whether ``site`` is none of the last ``corrupted`` ones."""
        return site_index(site, self.sites()) < self.n_sites - self.corrupted

    def variant(self, root: Path) -> Path:
        """The folder of the corrupted sites' images, e.g. ``train/gaussian3_16_4_dir1.0``."""
        clean = self.n_sites - self.corrupted
        name = f"{FOLDERS[self.corruption]}{self.severity}_{clean}_{self.corrupted}_dir{float(self.alpha)}"
        return root / self.folder / "train" / name

    def test_folder(self, root: Path, severity: int) -> Path:
        """The folder of a corrupted test set, e.g. ``test/gaussian_3``."""
        return root / self.folder / "test" / f"{FOLDERS[self.corruption]}_{severity}"

    def lacks_corrupted(self, root: Path) -> bool:
        """Whether the corrupted sites' images have yet to be made."""
        return self.corrupted > 0 and not self.variant(root).is_dir()

    def lacks_corrupted_tests(self, root: Path) -> bool:
        return not any(self.test_folder(root, s).is_dir() for s in SEVERITIES)

    def site_corrupted(
        self, root: Path, site: str, rng: np.random.RandomState, wanted: Container[Path]
    ) -> Iterator[tuple[Path, np.ndarray]]:
        """``corrupt`` on the site's share, in the order of the split over sites; one ``rng`` for all sites in turn."""
        rows = self._members(root, self.table(root, "train"))[site_index(site, self.sites())]
        return corrupt(self._paths(root, "train", rows), self.corruption, self.severity, rng, wanted)

    def test_corrupted(
        self, root: Path, severity: int, rng: np.random.RandomState, wanted: Container[Path]
    ) -> Iterator[tuple[Path, np.ndarray]]:
        """``corrupt`` on the test images, in the order of the table; one ``rng`` for severities 1 to 5 in turn."""
        rows = np.arange(len(self.table(root, "test").ids))
        return corrupt(self._paths(root, "test", rows), self.corruption, severity, rng, wanted)

    def rows(self, root: Path, site: str, table: Table) -> dict[str, np.ndarray]:
        """Split -> the site's rows of the training ``table``, in random order; a lesion's images lie in one split."""
        k = site_index(site, self.sites())
        members = np.sort(self._members(root, table)[k])
        first, groups = np.unique(table.groups[members], return_index=True, return_inverse=True)[1:]
        shuffled = np.random.default_rng(derive(self.data_seed, self.name, "split", k)).permutation(np.argsort(first))
        sizes = np.bincount(groups)[shuffled]
        starts = np.cumsum(sizes) - sizes
        n_val, n_test = round(VAL * len(members)), round(TEST * len(members))
        split = np.digitize(starts, (n_val, n_val + n_test))
        own = {name: shuffled[split == k] for name, k in (("train", 2), ("val", 0), ("test", 1))}
        return {name: np.concatenate([members[groups == group] for group in part]) for name, part in own.items()}

    def table(self, root: Path, name: Literal["train", "test"]) -> Table:
        """``train.csv`` or ``test.csv``; MissingData or DataError (file, line, expected, got) where it is no such."""
        ids, labels = read_table(self.needed(root / self.folder / f"{name}.csv"), len(self.classes))
        attributes, groups = self.described(root, name, ids)
        return Table(ids, labels, attributes, groups)

    def described(
        self, root: Path, name: Literal["train", "test"], ids: Sequence[str]
    ) -> tuple[Sequence[dict[str, str]], np.ndarray]:
        """Attributes and lesion number of each image of a table, where more than the tables is known."""
        return [{}] * len(ids), np.arange(len(ids))

    def _members(self, root: Path, table: Table) -> list[np.ndarray]:
        sites = self.dealt(table.labels, SITES_SEED)
        return [np.flatnonzero(sites == k) for k in range(self.n_sites)]

    def _items_in(self, root: Path, site: str, folder: Path) -> dict[str, list[Item]]:
        table = self.table(root, "train")
        return {name: self._listed(table, rows, folder) for name, rows in self.rows(root, site, table).items()}

    def _listed(self, table: Table, rows: np.ndarray, folder: Path) -> list[Item]:
        paths = [self.needed(folder / f"{table.ids[row]}{self.suffix}") for row in rows]
        return [Item(path, int(table.labels[row]), table.attributes[row]) for path, row in zip(paths, rows)]

    def _paths(self, root: Path, name: Literal["train", "test"], rows: np.ndarray) -> list[Path]:
        ids = self.table(root, name).ids
        return [self.needed(root / self.folder / name / "clean" / f"{ids[row]}{self.suffix}") for row in rows]


def corrupt(
    paths: Iterable[Path],
    corruption: Literal["noise", "motion"],
    severity: int,
    rng: np.random.RandomState,
    wanted: Container[Path],
) -> Iterator[tuple[Path, np.ndarray]]:
    """Paths and corrupted versions, uint8 (H, W) or (H, W, 3), in the order in which the authors froze theirs to disk.

    Args:
        paths: grey or colour images of 8 bits; noise is drawn per stored value, so a grey one gets one plane of it.
        rng: RandomState(0) upstream; it draws the direction of motion within ``MOTION_ANGLES``, too.
        wanted: the images that are yielded; ``rng`` moves on for the others too. DataError where one is no image.
    """
    for path in paths:
        if corruption == "noise":
            image = gaussian_noise(_stored(path), severity, rng)
            if path in wanted:
                yield path, image
            continue
        angle = rng.uniform(*MOTION_ANGLES)
        if path in wanted:
            image = _stored(path)
            yield path, motion_blur(image, severity, angle, scale=min(image.shape[:2]) / 224)


def _stored(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as file:
            return np.asarray(file if file.mode in ("L", "RGB") else file.convert("RGB"))
    except Exception as error:  # decoders raise whatever their libraries do
        text = f"{path.name}: cannot be read as an image ({type(error).__name__})"
        raise DataError("unreadable", text) from None


METADATA = "ISIC_2019_Training_Metadata.csv"
SEXES = ("female", "male")
AGES = ("under 60", "60 and over")


@dataclass(frozen=True)
class Isic2019(QualityShift):
    """Which kind of skin lesion? FedISM+'s tables and rule; see ``QualityShift`` for the options.

    The authors' code reads ``gaussian`` folders for these images too: that is ``corruption=noise``. With the metadata,
    a lesion's images stay in one split of a site; the shared test set does not look at lesions.
    """

    name = "isic2019"
    title = "ISIC 2019: kind of a skin lesion"
    real = "the photographs, their labels, sex and age (ISIC 2019), files that you bring"
    simulated = "the hospitals, a label-skewed split of the images, and the motion blur of the last ones"
    classes = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    attributes = {"sex": SEXES, "age": AGES}
    shown_tree = """
    ISIC2019_20/
        train.csv                       id,class (of 20,262 images)
        test.csv                        id,class (of 5,069 images)
        train/clean/<id>.jpg            224x224
        train/motion3_16_4_dir1.0/      <id>.jpg of the corrupted sites; severity 3, 16 clean sites, 4 corrupted
        test/clean/<id>.jpg
        test/motion_1/<id>.jpg          ... to motion_5; optional
        ISIC_2019_Training_Metadata.csv                 optional: sex, age and lesion of each image
"""
    folder = "ISIC2019_20"
    suffix = ".jpg"

    corruption: Literal["noise", "motion"] = "motion"

    def described(
        self, root: Path, name: Literal["train", "test"], ids: Sequence[str]
    ) -> tuple[Sequence[dict[str, str]], np.ndarray]:
        """Age group and sex of each image of ``ids``, and int64 (N,): images of one lesion have one number.

        Both are from ``METADATA``, where that file is there; an image that it lacks has no attributes and a lesion of
        its own. Raises DataError where it has none of the training images.
        """
        path = root / self.folder / METADATA
        if not path.exists():
            return super().described(root, name, ids)
        rows = read_rows(path, ("image", "age_approx", "sex"))
        known = {row["image"]: (_attributes(row), row.get("lesion_id", "")) for row in rows}
        if name == "train" and not any(image in known for image in ids):
            raise DataError("entry", f"{METADATA}: expected rows on the images of train.csv, such as {ids[0]}")
        found = [known.get(image, ({}, "")) for image in ids]
        first: dict[str, int] = {}
        lesions = [first.setdefault(lesion, row) if lesion else row for row, (_, lesion) in enumerate(found)]
        return [attributes for attributes, _ in found], np.array(lesions, dtype=np.int64)


def _attributes(row: dict[str, str]) -> dict[str, str]:
    sex, age, where = row["sex"], row["age_approx"], f"{METADATA}: {row['image']}"
    if sex not in (*SEXES, "unknown", ""):
        raise DataError("entry", f"{where}: sex: expected female, male or nothing, got {sex!r}")
    if not re.fullmatch(r"(\d+(\.\d+)?)?", age):
        raise DataError("number", f"{where}: age_approx: expected a number or nothing, got {age!r}")
    found = {"sex": sex} if sex in SEXES else {}
    return {**found, "age": AGES[float(age) >= 60]} if age else found


@dataclass(frozen=True)
class RsnaIch(QualityShift):
    """Which kind of intracranial haemorrhage? FedISM+'s tables and rule; see ``QualityShift`` for the options.

    The tables do not say which slices are of one patient, so that a patient's slices may lie in several splits and at
    several sites.
    """

    name = "rsna-ich"
    title = "RSNA ICH: subtype of an intracranial haemorrhage"
    real = "the CT slices and their labels (RSNA 2019), files that you bring"
    simulated = "the hospitals, a label-skewed split of the slices, and the noise of the last ones"
    classes = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
    shown_tree = """
    ICH_20/
        train.csv                       id,class (of 19,998 slices)
        test.csv                        id,class (of 5,002 slices)
        train/clean/<id>.png            224x224, brain window
        train/gaussian3_16_4_dir1.0/    <id>.png of the corrupted sites; severity 3, 16 clean sites, 4 corrupted
        test/clean/<id>.png
        test/gaussian_1/<id>.png        ... to gaussian_5; optional
"""
    folder = "ICH_20"
    suffix = ".png"
