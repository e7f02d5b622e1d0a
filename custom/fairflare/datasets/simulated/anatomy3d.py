# SPDX-License-Identifier: Apache-2.0
"""Whole heads with the shape of the MNI ICBM152 brain, each warped into another "patient"; see ``anatomy``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np

from fairflare.datasets.simulated.anatomy import DEEP, FIELD_OF_VIEW, FILES, bumps, nilearn_file, ventricle_region

EDGE = 2
"""Millimetres of a voxel of the atlas as it is kept, whose template has 1 mm."""
LEVELS = (60, 112)
"""Axial slices of the template between which deep CSF is a ventricle and not a cistern below or a sulcus above."""


@dataclass(frozen=True)
class Atlas:
    """The template at ``EDGE`` millimetres.

    Attributes:
        maps: float32 (4, X, Y, Z): grey matter and white matter in [0, 1]; millimetres below the brain's surface and
            below the ventricles' wall, negative outside of them.
        centre: (x, y, z) of the brain in voxels.
    """

    maps: np.ndarray
    centre: np.ndarray


@dataclass(frozen=True)
class Head:
    """One warped head on a grid, all float64 (P, P, P); the axes point to the right, the front and above.

    Attributes:
        grey: share of grey matter.
        white: share of white matter.
        depth: millimetres below the brain's surface, negative outside.
        ventricle: millimetres below the ventricles' wall, negative outside.
    """

    grey: np.ndarray
    white: np.ndarray
    depth: np.ndarray
    ventricle: np.ndarray


@cache
def atlas() -> Atlas:
    """The template, read once per process; UserError where nilearn is not installed."""
    from scipy.ndimage import binary_fill_holes

    t1, grey, white = (_volume(kind) for kind in ("t1", "gm", "wm"))
    brain = binary_fill_holes(t1 > 0.02)
    depth = _signed_distance(brain)
    region = ventricle_region((t1.shape[0] * EDGE, t1.shape[1] * EDGE, 1))[::EDGE, ::EDGE]
    level = np.arange(t1.shape[2]) * EDGE
    within = region & ((level >= LEVELS[0]) & (level <= LEVELS[1]))[None, None]
    ventricle = _signed_distance((grey + white < 0.5) & (depth > DEEP) & within)
    places = np.nonzero(brain)
    centre = np.array([(found.min() + found.max()) / 2 for found in places])
    return Atlas(np.stack((grey, white, depth, ventricle)).astype(np.float32), centre)


def patient(voxels: int, rng: np.random.Generator) -> Head:
    """A random head on a grid of so many voxels along each edge: turned, scaled, shifted, mirrored and bent."""
    from scipy.ndimage import map_coordinates

    template = atlas()
    places = template.centre[:, None, None, None] + _warped_grid(voxels, rng) / EDGE
    grey, white, depth, ventricle = (
        map_coordinates(one, places, order=1, mode="nearest", output=np.float64) for one in template.maps
    )
    return Head(grey, white, depth, ventricle)


def smooth_field(voxels: int, knots: int, rng: np.random.Generator) -> np.ndarray:
    """(voxels, voxels, voxels) smooth noise of about unit spread with ``knots`` bumps along each edge."""
    basis, found = bumps(voxels, knots), rng.standard_normal((knots, knots, knots))
    for _ in range(3):  # one axis after the other; not @: the same bits however many threads BLAS has
        found = np.einsum("ik,klm->lmi", basis, found)
    return found


def _warped_grid(voxels: int, rng: np.random.Generator) -> np.ndarray:
    """(3, P, P, P) millimetres from the brain's centre of the template."""
    ticks = ((np.arange(voxels) + 0.5) / voxels - 0.5) * FIELD_OF_VIEW
    right, front, above = np.meshgrid(ticks, ticks, ticks, indexing="ij")
    turn = np.radians(rng.uniform(-8, 8))
    sx, sy, sz = rng.uniform(0.95, 1.08, size=3) * (rng.choice((-1, 1)), 1, 1)
    shift = rng.uniform(-5, 5, size=3)
    straight = (
        sx * (np.cos(turn) * right - np.sin(turn) * front),
        sy * (np.sin(turn) * right + np.cos(turn) * front),
        sz * above,
    )
    return np.stack([one + by + 2.5 * smooth_field(voxels, 6, rng) for one, by in zip(straight, shift)])


def _signed_distance(inside: np.ndarray) -> np.ndarray:
    """Millimetres to the edge, positive inside."""
    from scipy.ndimage import distance_transform_edt

    return np.asarray(EDGE * (distance_transform_edt(inside) - distance_transform_edt(~inside)))


def _volume(kind: str) -> np.ndarray:
    """The "t1", "gm" or "wm" map, means of blocks of ``EDGE`` voxels, float32 (X, Y, Z) in [0, 1]."""
    path = nilearn_file(FILES.format(kind))
    import nibabel

    found = np.asarray(cast(Any, nibabel.load(path)).dataobj)
    x, y, z = (n // EDGE for n in found.shape)
    blocks = found[: x * EDGE, : y * EDGE, : z * EDGE].reshape(x, EDGE, y, EDGE, z, EDGE)
    return np.asarray(blocks.mean((1, 3, 5), dtype=np.float32) / 255)
