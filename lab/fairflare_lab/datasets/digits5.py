# SPDX-License-Identifier: Apache-2.0
"""Which digit? MNIST, USPS, SVHN and rendered digits, as FedHEAL divides them.

Where the files are; MNIST's may be unpacked (without .gz):

    MNIST/raw/train-images-idx3-ubyte.gz
    MNIST/raw/train-labels-idx1-ubyte.gz
    MNIST/raw/t10k-images-idx3-ubyte.gz
    MNIST/raw/t10k-labels-idx1-ubyte.gz
    usps.bz2
    usps.t.bz2
    train_32x32.mat
    test_32x32.mat
    syn/train/{0..9}/*.png or *.jpg
    syn/val/{0..9}/*.png or *.jpg
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from fairflare.core.errors import DataError, UserError
from fairflare.core.seeds import derive
from fairflare.data.readers.datalist import Item
from fairflare.data.readers.pictures import Reader
from fairflare.datasets.partition import SMALLEST_SITE
from fairflare.tasks.base import Preset, expect, site_index
from fairflare_lab.datasets.domains import IMAGENET, PAPER, SMALL, CroppedData, OverDomains, images_in
from fairflare_lab.datasets.on_disk import ImagesOnDisk

Images = tuple[np.ndarray, np.ndarray]
"""uint8 (N, H, W) or (N, H, W, 3), and int64 (N,) from 0 to 9."""
USPS_EDGE = 16
SVHN_SHAPE = (32, 32, 3)


def mnist(images: Path, labels: Path) -> Images:
    """The digits of two IDX files, each as published or unpacked; DataError where a file is another."""
    return _paired(labels, read_idx(images, 3), read_idx(labels, 1), lowest=0)


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file (LeCun, yann.lecun.com/exdb/mnist), gzipped where its name ends in ".gz".

    Raises DataError where it cannot be read, or holds another type, number of dimensions or of bytes.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read()
        magic, *shape = struct.unpack_from(f">{dimensions + 1}I", content)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise _unreadable(path, "an IDX file", type(error).__name__) from None
    expected = 0x800 + dimensions  # 8: unsigned bytes
    if magic != expected:
        raise _bad(path, f"an IDX file of bytes in {dimensions} dimensions (magic number {expected})", magic)
    data = content[4 * (dimensions + 1) :]
    if math.prod(shape) != len(data):
        raise _bad(path, f"{math.prod(shape)} bytes for {' x '.join(map(str, shape))} values", len(data))
    return np.frombuffer(data, np.uint8).reshape(shape)


def usps(path: Path) -> Images:
    """The 16x16 digits of a LIBSVM file, packed by bzip2 where its name ends in ".bz2".

    Labels 1 to 10 mean 0 to 9; values in [-1, 1] become (x + 1) / 2 * 255, cut to whole numbers as torchvision does.
    Raises DataError where the file cannot be read, or holds another number of columns, other values or other labels.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        sparse, labels = load_svmlight_file(str(path), n_features=USPS_EDGE**2, dtype=np.float32, zero_based=False)
        values = sparse.toarray()
    except Exception as error:  # a decoder's, the parser's, or one about the number of columns
        kind = f"LIBSVM text with {USPS_EDGE**2} columns"
        raise _unreadable(path, kind, type(error).__name__) from None
    strange = values[~(np.abs(values) <= 1)]
    if len(strange):
        raise _bad(path, "values from -1 to 1", f"{strange[0]:g}")
    images = ((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, USPS_EDGE, USPS_EDGE)
    images, labels = _paired(path, images, labels, lowest=1)
    return images, labels - 1


def svhn(path: Path) -> Images:
    """The 32x32 colour digits of a MATLAB file with X (32, 32, 3, N) and y (N, 1), where 10 means 0; else DataError."""
    from scipy.io import loadmat

    try:
        found = loadmat(path, variable_names=("X", "y"))
        images, labels = found["X"], found["y"]
    except Exception as error:  # whatever SciPy's reader stumbles over, or a missing name
        raise _unreadable(path, "a MATLAB file with X and y", type(error).__name__) from None
    if images.dtype != np.uint8 or images.shape[:-1] != SVHN_SHAPE:
        expected = "X of type uint8 and shape 32 x 32 x 3 x N"
        raise _bad(path, expected, f"{images.dtype} and {' x '.join(map(str, images.shape))}")
    images, labels = _paired(path, np.moveaxis(images, -1, 0), labels, lowest=1)
    return images, labels % 10


def _paired(path: Path, images: np.ndarray, labels: np.ndarray, lowest: int) -> Images:
    """``images`` and flat int64 ``labels``, which run from ``lowest`` to ``lowest`` + 9."""
    if labels.size != len(images):
        raise _bad(path, f"{len(images)} labels as there are images", labels.size)
    labels = labels.reshape(-1)
    strange = labels[~np.isin(labels, np.arange(lowest, lowest + 10))]
    if len(strange):
        text = f"{path}: expected labels from {lowest} to {lowest + 9}, got {strange[0]}"
        raise DataError("label", text)
    return images, labels.astype(np.int64)


def _unreadable(path: Path, kind: str, reason: str) -> DataError:
    return DataError("unreadable", f"{path}: cannot be read as {kind} ({reason})")


def _bad(path: Path, expected: str, got: object) -> DataError:
    return DataError("unreadable", f"{path}: expected {expected}, got {got}")


DOMAINS = ("MNIST", "USPS", "SVHN", "SYN")
SIZE = 32


@dataclass(frozen=True)
class Digits5(OverDomains, ImagesOnDisk):
    """Domain shift as in FedHEAL's Digits (Chen et al., CVPR 2024, arXiv:2405.16585), on the data of the paper.

    A quarter of the sites holds each domain, in the order of ``DOMAINS``. Every site takes ``share`` of its domain's
    training set, no image twice, and divides that into training, validation and test. The shared test sets are the four
    published ones, which no site sees. Training images are cropped at random after padding by 4 pixels. The paper
    trains on the whole of a share of 0.01 (60 % of one in the preset "paper") and shuffles which site has which domain.
    The options are those of ``OverDomains`` and those below.

    Args:
        n_sites: a multiple of 4 in 4..400; the paper has 20.
        share: of a domain's training images at one site, above 0, for all sites of the domain together at most 1.
        limit: the most images of each split of a site and of each shared test set, at least 2; none: all.
    """

    name = "digits5"
    title = "Digits of four domains"
    real = "MNIST, USPS and SVHN: your copies"
    simulated = "SYN (rendered digits), and the sites"
    classes = tuple("0123456789")
    presets = {
        "small": Preset(
            "8 sites, 2 per domain, a small CNN, at most 500 images of a test set; minutes on a laptop",
            {"n_sites": 8, "limit": 500},
            SMALL,
        ),
        "paper": Preset(
            "the paper's setting: 20 sites, 5 per domain, ResNet-10, 200 rounds of 10 epochs; for a GPU",
            {"n_sites": 20, "share": 0.016667, "model": "resnet10"},
            PAPER,
        ),
    }
    mean, std = IMAGENET
    data_kind = CroppedData

    domain_names, most_sites = DOMAINS, 400
    share: float = 0.01
    alpha: float = 0.0
    limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        most = 1 / self._per_domain
        expect("share", 0 < self.share <= most, f"above 0 and at most {most:g} for {self.n_sites} sites", self.share)

    def reader(self) -> Reader:
        return Reader(SIZE, len(self.mean))

    def items(self, root: Path, site: str) -> Mapping[str, Sequence[Item]]:
        k = site_index(site, self.sites())
        found, sites = pool(self, root, self.domain(site))
        members = np.flatnonzero(sites == k % self._per_domain)
        return {split: [found[i] for i in rows] for split, rows in self.parts(site, members).items()}

    def shared_items(self, root: Path) -> Mapping[str, tuple[bool, Sequence[Item]]]:
        """Each domain's test set, in an order of ``data_seed``, so that a limit leaves out no class."""
        found = {}
        for domain in DOMAINS:
            images, labels = self.digits(root, domain, "test")
            rng = np.random.default_rng(derive(self.data_seed, self.name, "test", domain))
            order = rng.permutation(len(labels))[: self.limit]
            found[domain] = (False, [Item(images[i], int(labels[i])) for i in order])
        return found

    def check_data(self) -> None:
        for domain in DOMAINS:
            for split in ("train", "test"):
                self.files(self.root(), domain, split)

    def files(self, root: Path, domain: str, split: Literal["train", "test"]) -> list[Path]:
        """The files of ``domain``, or its folders of one class each; MissingData when one is not there."""
        train = split == "train"
        if domain == "MNIST":
            start = root / "MNIST" / "raw" / ("train" if train else "t10k")
            paths = [start.with_name(start.name + end) for end in ("-images-idx3-ubyte", "-labels-idx1-ubyte")]
            return [path if path.exists() else self.needed(path.with_name(path.name + ".gz")) for path in paths]
        if domain == "SYN":
            return [self.needed(root / "syn" / ("train" if train else "val") / digit) for digit in self.classes]
        name = {"USPS": ("usps.bz2", "usps.t.bz2"), "SVHN": ("train_32x32.mat", "test_32x32.mat")}[domain][not train]
        return [self.needed(root / name)]

    def digits(self, root: Path, domain: str, split: Literal["train", "test"]) -> tuple[np.ndarray, np.ndarray]:
        """All images of a published set, uint8 (N, H, W), (N, H, W, 3) or paths (N,), and int64 (N,) labels."""
        files = self.files(root, domain, split)
        if domain == "SYN":
            return images_in(files)
        readers: dict[str, Callable[..., Images]] = {"MNIST": mnist, "USPS": usps, "SVHN": svhn}
        return readers[domain](*files)


@lru_cache(maxsize=8)
def pool(task: Digits5, root: Path, domain: str) -> tuple[tuple[Item, ...], np.ndarray]:
    """What the sites of ``domain`` hold together, and which of these sites holds each, from 0.

    Raises:
        UserError: the shares are too small, or no split leaves every site enough images.
    """
    images, labels = task.digits(root, domain, "train")
    n_sites = task.n_sites // len(DOMAINS)
    each = int(task.share * len(labels))
    if each < SMALLEST_SITE:
        least = f"share: expected at least {SMALLEST_SITE} images per site"
        raise UserError(f"{least}, got {each} of the {len(labels)} of {domain}")
    rng = np.random.default_rng(derive(task.data_seed, task.name, "order", domain))
    numbers = rng.permutation(len(labels))[: n_sites * each]
    images, labels = images[numbers], labels[numbers]  # a copy: what no site has need not stay in memory
    items = tuple(Item(image, int(label)) for image, label in zip(images, labels))
    if not task.alpha:
        return items, np.repeat(np.arange(n_sites), each)
    return items, task.dealt(domain, labels)
