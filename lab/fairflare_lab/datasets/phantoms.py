# SPDX-License-Identifier: Apache-2.0
"""Head slices with the real shape of the MNI ICBM152 brain, each warped into another "patient".

The tissue maps (Fonov et al., NeuroImage 54, 2011) come with the nilearn package and are read without importing it.
They are the average of 152 people: every patient here is a warp of that one brain. And what simulated
sites with a scanner or camera each have in common.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import nn

from fairflare.core.seeds import derive
from fairflare.core.validation import Images
from fairflare.data.readers.pictures import Reader
from fairflare.data.tensors import ImageInputs, Split, TensorData
from fairflare.networks import images as networks
from fairflare.tasks.base import RENDERING, SPLIT, Task, expect, expect_choices, site_index
from fairflare.tasks.kinds.masks import MASKS, structure_values
from fairflare_lab.datasets import poor_images
from fairflare_lab.datasets.cache import kept_splits

if TYPE_CHECKING:
    from typing_extensions import Self

FIELD_OF_VIEW = 216.0
"""Edge of an image in millimetres."""
FIRST, LAST = 76, 98
"""Axial slices of the template (1 mm) in which the lateral ventricles are seen; every class is drawn on all of them."""
DEEP = 22.0
"""Millimetres below the brain's surface from which on CSF can be ventricle."""
GAP = 2.0
"""Millimetres of fluid between brain and skull."""
ORIGIN = (98, 134)
"""Pixel of the template's x = y = 0, the anterior commissure."""
SOURCE = (
    "one averaged MNI152 brain of 152 people (ICBM 152 nonlinear symmetric 2009a, Fonov et al. 2011, copyright Louis "
    "Collins, McConnell Brain Imaging Centre, McGill University, MNI's permissive notice; files of nilearn)"
)
"""What the anatomy is, whose it is and under which licence, for the tasks that draw on it."""
FILES = "mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"


@dataclass(frozen=True)
class Atlas:
    """The template's slices at 1 mm.

    Attributes:
        maps: float32 (S, X, Y, 4): grey matter and white matter in [0, 1]; millimetres below the brain's surface and
            below the ventricles' wall, negative outside of them.
        centre: (x, y) of the brain in pixels.
        white: per slice int (n, 2), the pixels deep in the white matter.
    """

    maps: np.ndarray
    centre: np.ndarray
    white: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Head:
    """One warped slice on an image grid, all float64 (P, P); x points to the right, y to the front.

    Attributes:
        x: template coordinate in millimetres from the brain's centre.
        y: likewise.
        grey: share of grey matter.
        white: share of white matter.
        depth: millimetres below the brain's surface, negative outside.
        ventricle: millimetres below the ventricles' wall, negative outside.
        slice: index of the nearest slice of the atlas.
    """

    x: np.ndarray
    y: np.ndarray
    grey: np.ndarray
    white: np.ndarray
    depth: np.ndarray
    ventricle: np.ndarray
    slice: int


@cache
def atlas() -> Atlas:
    """The template, read once per process."""
    from scipy.ndimage import binary_fill_holes

    t1, grey, white = (_volume(kind) for kind in ("t1", "gm", "wm"))
    brain = np.stack([binary_fill_holes(t1[:, :, k] > 0.02) for k in range(t1.shape[2])], axis=2)
    depth = _signed_distance(brain)
    ventricle = _signed_distance((grey + white < 0.5) & (depth > DEEP) & ventricle_region(brain.shape))
    maps = np.stack((grey, white, depth, ventricle), axis=-1).transpose(2, 0, 1, 3).astype(np.float32)
    xs, ys = np.nonzero(brain.any(2))
    centre = np.array([xs.min() + xs.max(), ys.min() + ys.max()]) / 2
    deep_white = (white > 0.6) & (depth > 14) & (ventricle < -6)
    return Atlas(maps, centre, tuple(np.argwhere(deep_white[:, :, k]) for k in range(maps.shape[0])))


def patient(pixels: int, rng: np.random.Generator) -> Head:
    """A random slice on a (pixels, pixels) grid: rotated, scaled, shifted, mirrored and bent by a few millimetres."""
    template = atlas()
    level = rng.uniform(0, len(template.maps) - 1.001)
    k, share = int(level), level % 1.0
    maps = (1 - share) * template.maps[k] + share * template.maps[k + 1]
    x, y = _warped_grid(pixels, rng)
    grey, white, depth, ventricle = _sampled(maps, x + template.centre[0], y + template.centre[1])
    return Head(x, y, grey, white, depth, ventricle, k)


def smooth_field(pixels: int, knots: int, rng: np.random.Generator) -> np.ndarray:
    """(pixels, pixels) smooth noise of about unit spread with ``knots`` bumps along each edge."""
    basis = bumps(pixels, knots)
    rows = np.einsum("ik,kl->il", basis, rng.standard_normal((knots, knots)))
    return np.einsum("il,jl->ij", rows, basis)  # not @: the same bits however many threads BLAS has


def soft(millimetres: np.ndarray, width: float = 2.0) -> np.ndarray:
    """0 well below zero, 1 well above, a straight ramp of ``width`` millimetres between."""
    return np.clip(millimetres / width + 0.5, 0, 1)


def signal(
    depth: np.ndarray, shares: np.ndarray, levels: Sequence[float], skull: int, rng: np.random.Generator
) -> np.ndarray:
    """What tissues look like, in the brain and around it; lengths are in millimetres.

    Args:
        shares: of each pixel that are grey and white matter, [0, 1].
        levels: of grey matter, white matter, fluid, bone and scalp.
        skull: its thinnest.
    """
    grey, white = shares
    image = levels[0] * grey + levels[1] * white + levels[2] * np.clip(1 - grey - white, 0, 1)
    inner, outer = rng.uniform(skull, skull + 3), rng.uniform(3, 6)
    for level, start in ((levels[2], -GAP), (levels[3], 0.0), (levels[4], inner), (0.0, inner + outer)):
        image = image + soft(-depth - GAP - start) * (level - image)
    return image


def _warped_grid(pixels: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    ticks = (np.arange(pixels) + 0.5) / pixels - 0.5
    right, front = np.meshgrid(ticks * FIELD_OF_VIEW, -ticks * FIELD_OF_VIEW)
    turn = np.radians(rng.uniform(-8, 8))
    sx, sy = rng.uniform(0.95, 1.08, size=2) * rng.choice((-1, 1), size=2, p=(0.5, 0.5)) ** (1, 0)
    dx, dy = rng.uniform(-5, 5, size=2)
    x = sx * (np.cos(turn) * right - np.sin(turn) * front) + dx + 2.5 * smooth_field(pixels, 6, rng)
    y = sy * (np.sin(turn) * right + np.cos(turn) * front) + dy + 2.5 * smooth_field(pixels, 6, rng)
    return x, y


def _sampled(maps: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Bilinear values of (X, Y, C) maps at pixel coordinates (P, P), borders repeated: (C, P, P)."""
    x = np.clip(x, 0, maps.shape[0] - 1.001)
    y = np.clip(y, 0, maps.shape[1] - 1.001)
    i, j = x.astype(int), y.astype(int)
    u, v = (x - i)[..., None], (y - j)[..., None]
    low = (1 - v) * maps[i, j] + v * maps[i, j + 1]
    high = (1 - v) * maps[i + 1, j] + v * maps[i + 1, j + 1]
    return np.moveaxis((1 - u) * low + u * high, -1, 0)


@lru_cache(maxsize=16)
def bumps(pixels: int, knots: int) -> np.ndarray:
    """(pixels, knots) Gaussian bumps, scaled so that white noise on the knots gives unit variance."""
    at = np.linspace(0, knots - 1, pixels)[:, None] - np.arange(knots)
    bumps = np.exp(-(at**2) / (2 * 0.6**2))
    return bumps / np.sqrt((bumps**2).sum(1, keepdims=True))


def _signed_distance(inside: np.ndarray) -> np.ndarray:
    """Per slice of (X, Y, S): pixels to the edge, positive inside."""
    from scipy.ndimage import distance_transform_edt

    return np.stack([distance_transform_edt(s) - distance_transform_edt(~s) for s in np.moveaxis(inside, 2, 0)], axis=2)


def ventricle_region(shape: tuple[int, int, int]) -> np.ndarray:
    """Where deep CSF is a ventricle and not the insular, interhemispheric or quadrigeminal cistern: bool (X, Y, 1)."""
    x = abs(np.arange(shape[0]) - ORIGIN[0])[:, None]
    y = (np.arange(shape[1]) - ORIGIN[1])[None, :]
    insula = (x > 26) & (y > -25)
    midline = (x < 9) & ((y < -28) | (y > 25))
    return ~(insula | midline)[..., None]


def _volume(kind: str) -> np.ndarray:
    """The chosen slices of the "t1", "gm" or "wm" map, float32 (X, Y, S) in [0, 1]."""
    return np.asarray(template(kind)[:, :, FIRST : LAST + 1].astype(np.float32) / 255)


def template(kind: str) -> np.ndarray:
    """The "t1", "gm" or "wm" map as it is stored, uint8 (X, Y, Z)."""
    path = nilearn_file(FILES.format(kind))
    import nibabel

    return np.asarray(cast(Any, nibabel.load(path)).dataobj)


def nilearn_file(name: str) -> Path:
    """Where a file of nilearn's lies, which is not imported: that takes seconds."""
    return next(Path(str(one.locate())) for one in metadata.files("nilearn") or () if one.name == name)


SMALLEST_SITE = 16
"""Images that every site has at least."""
FIRST_BESIDE = 10**9
"""Number of the first image that is in nobody's share."""
MOST_PIXELS = 4 * 10**9
"""Of all images that a simulated task renders, one byte each."""
REMARK = "; repeats one image"
"""Added to what a report says of a free rider's site."""


class Rendered(Task):
    """A simulated task whose sites render their own images, each a function of ``data_seed`` and its number alone.

    A concrete task is a frozen dataclass with these options. Beside its share a site may have further test images: they
    cost rendering, and never an image to train on.
    """

    n_sites: int
    images: int
    site_test_images: int
    size: int
    free_rider: int
    data_seed: int
    held_out: ClassVar[tuple[float, float]]
    """Shares of a site's images in its validation and test splits."""

    def _check_images(self, least: int, shared: int = 0) -> None:
        """Raise UserError unless there are ``least`` images, and no more, ``shared`` ones included, than fit."""
        expect("images", self.images >= least, f"at least {least} for {self.n_sites} sites", self.images)
        poor_images.check_site_tests(self.site_test_images)
        n, most = self.images + self.n_sites * self.site_test_images + shared, MOST_PIXELS // self.size**2
        expect("images", n <= most, f"at most {most} of {self.size} pixels, those for testing included", n)
        expect("free_rider", 0 <= self.free_rider <= self.n_sites, f"0..{self.n_sites}", self.free_rider)

    @abstractmethod
    def members(self, k: int) -> np.ndarray:
        """Numbers of the images in the share of site ``k``, from 0."""

    @abstractmethod
    def rendered(self, k: int, rows: np.ndarray) -> Split:
        """The images of site ``k`` with these numbers."""

    @abstractmethod
    def made(self, **splits: Any) -> TensorData:
        """A site's data of its splits."""

    def site_data(self, site: str) -> TensorData:
        k, rows = site_index(site, self.sites()), self.rows(site)
        if k == self.free_rider - 1:
            rows["train"] = np.full_like(rows["train"], rows["train"][0])
        return self.made(**kept_splits(self, site, lambda part: self.rendered(k, rows[part])))

    def rows(self, site: str) -> dict[str, np.ndarray]:
        """Split -> numbers of the site's images, sorted; each number is one patient, in one split of one site.

        Those of at least ``images`` are test patients beside the site's share, as many as ``site_test_images`` lacks.
        """
        k = site_index(site, self.sites())
        members = self.members(k)
        n_val, n_test = (round(share * len(members)) for share in self.held_out)
        shuffled = np.random.default_rng(derive(self.data_seed, self.name, "split", k)).permutation(members)
        val, test, train = map(np.sort, np.split(shuffled, (n_val, n_val + n_test)))
        first = FIRST_BESIDE + k * poor_images.MOST_SITE_TESTS
        beside = first + np.arange(max(0, self.site_test_images - len(test)))
        return {"train": train, "val": val, "test": np.concatenate((test, beside))}


@dataclass(frozen=True)
class Device:
    """A scanner or camera: how one site's images look; without arguments beside ``words`` it is the plain one.

    Attributes:
        words: for reports.
    """

    factors: ClassVar[tuple[str, ...]] = ()
    """Attributes whose plain value is a factor, or an exponent, of 1."""

    words: str

    def at(self, shift: float) -> Self:
        """This device, its distance from the plain one scaled by ``shift``: 0 is the plain one, 1 this one itself."""
        plain = type(self)(self.words)
        names = [one.name for one in fields(self) if one.name != "words"]
        mixed = {name: (1 - shift) * getattr(plain, name) + shift * getattr(self, name) for name in names}
        return replace(plain, **mixed | {name: getattr(self, name) ** shift for name in self.factors})


@dataclass(frozen=True)
class DeviceShift(Rendered):
    """A segmentation task whose sites differ in their device and in how many patients they have.

    A site renders only its own images; each image depends on ``data_seed`` and its number alone. A concrete task names
    its devices and draws one image; its fields are the options below.

    Args:
        n_sites: the first 2.. of the task's devices.
        images: of all sites together, dealt out unevenly.
        site_test_images: of each site at least, 0..100000; what its share lacks is rendered beside it, new patients.
        size: pixels along an edge, 32..512, a multiple of 16.
        shift: how far the devices are apart, 0 (all alike) to 1.
        model: "small-unet" or "unet" (the papers').
        norm: the network's normalisation; averaged "batch" statistics of different devices fit none of them.
        augment: random rotation, shift and flip of training images and their masks.
        free_rider: number of a site whose training split repeats one image of its own, 1..n_sites; 0: none.
        data_seed: 0..2**32-1.
    """

    kind = MASKS
    devices: ClassVar[Sequence[Device]]
    """One per site."""
    shares: ClassVar[Sequence[float]]
    """How much of all images the site with each device has, relative to the others."""
    mean: ClassVar[Sequence[float]]
    """Per channel of values on [0, 1]; as many as the images have channels."""
    std: ClassVar[Sequence[float]]
    """Likewise."""

    n_sites: int = 6
    images: Images = 400
    site_test_images: Images = 500
    size: int = 64
    shift: float = 1.0
    model: Literal["small-unet", "unet"] = "small-unet"
    norm: Literal["instance", "group", "batch"] = "instance"
    augment: bool = False
    free_rider: int = 0
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        expect("n_sites", 2 <= self.n_sites <= len(self.devices), f"2..{len(self.devices)}", self.n_sites)
        expect("size", 32 <= self.size <= 512 and self.size % 16 == 0, "a multiple of 16 in 32..512", self.size)
        self._check_images(int(np.ceil(SMALLEST_SITE / min(self._shares()))))
        expect("shift", 0 <= self.shift <= 1, "a number in [0, 1]", self.shift)
        expect("data_seed", 0 <= self.data_seed < 2**32, "0..2**32-1", self.data_seed)

    @abstractmethod
    def image(self, i: int, device: Any) -> tuple[np.ndarray, np.ndarray]:
        """What ``device`` makes of patient ``i``: uint8 (channels, size, size), and the masks uint8 (C, size, size)."""

    def sites(self) -> dict[str, str]:
        words = [device.words for device in self.devices[: self.n_sites]]
        if self.free_rider:
            words[self.free_rider - 1] += REMARK
        return {f"site-{k}": kind for k, kind in enumerate(words, start=1)}

    def network(self) -> nn.Module:
        return networks.build(self.model, len(self.mean), len(self.classes), norm=self.norm)

    def image_inputs(self) -> ImageInputs:
        reader = Reader(self.size, len(self.mean), *structure_values("", self.classes))
        return ImageInputs(reader, tuple(self.mean), tuple(self.std))

    def drawn(self) -> tuple[str, ...]:
        return SPLIT, RENDERING

    def made(self, **splits: Any) -> TensorData:
        return TensorData(**splits, n_classes=0, mean=self.mean, std=self.std, augment=self.augment)

    def members(self, k: int) -> np.ndarray:
        ends = np.round(np.cumsum((0, *self._shares())) * self.images).astype(int)
        return np.arange(ends[k], ends[k + 1])

    def _shares(self) -> np.ndarray:
        shares = np.array(self.shares[: self.n_sites])
        return shares / shares.sum()

    def rendered(self, k: int, rows: np.ndarray) -> Split:
        device = self.devices[k].at(self.shift)
        images, masks = zip(*(self.image(i, device) for i in rows))
        return Split(torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(masks)))
