# SPDX-License-Identifier: Apache-2.0
"""Head slices with the real shape of the MNI ICBM152 brain, each warped into another "patient".

The tissue maps (Fonov et al., NeuroImage 54, 2011) come with the nilearn package and are read without importing it.
They are the average of 152 people: every patient here is a warp of that one brain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np

from fairflare.core.errors import UserError

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
    """The template, read once per process.

    Raises:
        UserError: nilearn is not installed.
    """
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
    """What tissues look like, in the brain and around it.

    Args:
        depth: millimetres below the brain's surface.
        shares: of each pixel that are grey and white matter, [0, 1].
        levels: of grey matter, white matter, fluid, bone and scalp.
        skull: its thinnest in millimetres.
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
    """Where a file of nilearn's lies; UserError where it is not installed."""
    missing = UserError("this task draws on nilearn's brain template; install it with: pip install 'fairflare[demo]'")
    try:
        files = metadata.distribution("nilearn").files or []
    except metadata.PackageNotFoundError:
        raise missing from None
    for file in files:
        if file.name == name and Path(file.locate()).is_file():
            return Path(file.locate())
    raise missing
