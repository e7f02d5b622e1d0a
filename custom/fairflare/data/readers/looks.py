# SPDX-License-Identifier: Apache-2.0
"""What an image or a volume is like as it is stored: a site's fingerprint is made of many."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairflare.data.readers.datalist import Contrasts, Frame, Source, file_of
from fairflare.data.readers.geometry import form_of, geometry_of
from fairflare.data.readers.pictures import read_slice
from fairflare.data.readers.stored import HIGH, LOW
from fairflare.data.readers.volumes import contrasts_of, grid_of

COLOUR = 0.02
"""Difference of channels on [0, 1] from which an image has colours; JPEG leaves less in a grey one."""
BELOW = 0.05
"""Share of its range that lies below zero in an image whose values have a zero that means something, as CT has."""
POINTS = 201
"""Quantiles that are kept of an image that was looked at."""


@dataclass(frozen=True)
class Looked:
    """What one image is like as it is stored.

    Attributes:
        height: in pixels.
        width: in pixels.
        spacing: edge of a pixel in mm, None where the file has none.
        coloured: whether its channels differ.
        mean: of each of three channels, or of each contrast, on [0, 1], as a reader scales them.
        square: mean of their squares.
        grey_square: the same of the channels' mean.
        quantiles: of its values, evenly spaced from the lowest to the highest; () where they lie on 0 to 255 or are
            scaled by a window that somebody has chosen.
        measured: whether its values are measured from a zero that means the same in every image: Hounsfield units, or
            NIfTI with values well below zero.
        voxels: of a volume, along its three axes.
        edges: of its voxels in mm.
    """

    height: int
    width: int
    spacing: float | None
    coloured: bool
    mean: tuple[float, ...]
    square: tuple[float, ...]
    grey_square: float
    quantiles: tuple[float, ...] = ()
    measured: bool = False
    voxels: tuple[int, ...] = ()
    edges: tuple[float, ...] = ()


def looked_at(source: Source, window: str = "") -> Looked:
    """What the image ``source`` is like, scaled by ``window``; raises DataError where it cannot be read."""
    found = read_slice(source, window)
    pixels = found.scaled(window) / 255
    several = isinstance(source, Contrasts)
    pixels = pixels if len(pixels) == 3 or several else pixels.mean(0, keepdims=True).repeat(3, axis=0)
    mean, square = (part.mean((1, 2), dtype=np.float64) for part in (pixels, pixels**2))
    free = not found.natural and not window and isinstance(source, (Path, Frame))
    quantiles = np.quantile(found.pixels.astype(np.float64), np.linspace(0, 1, POINTS)) if free else np.empty(0)
    return Looked(
        height=pixels.shape[1],
        width=pixels.shape[2],
        spacing=_spacing(source),
        coloured=several or bool(np.abs(pixels - pixels[:1]).max() > COLOUR),
        mean=tuple(map(float, mean)),
        square=tuple(map(float, square)),
        grey_square=float((pixels.mean(0) ** 2).mean(dtype=np.float64)),
        quantiles=tuple(map(float, quantiles)),
        measured=free and (found.hounsfield or (_is_nifti(source) and is_measured(found.pixels))),
    )


def is_measured(pixels: np.ndarray) -> bool:
    """Whether values have a zero that means something: an image's share of them lies well below it."""
    low, high = np.percentile(pixels, (LOW, HIGH))
    return bool(low < 0 and -low >= BELOW * (high - low))


def _spacing(source: Source) -> float | None:
    """The mean edge of a pixel in mm, as the file's own header says."""
    place = None if isinstance(source, np.ndarray) else geometry_of(source)
    edges = place.spacing if place is not None else None
    return sum(edges) / len(edges) if edges and min(edges) > 0 else None


def _is_nifti(source: Source) -> bool:
    return not isinstance(source, np.ndarray) and form_of(file_of(source)) == "nifti"


def volume_looked_at(source: Source, window: str = "") -> Looked:
    """What the volume ``source`` is like, its axes turned to ``AXES``; raises DataError where it cannot be read."""
    contrasts = contrasts_of(source)
    found, several = contrasts[0], len(contrasts) > 1
    shape, affine = grid_of(found)
    values = [one.stored.scaled(window) / 255 for one in contrasts]
    mean, square = ([float(one.mean(dtype=np.float64)) for one in part] for part in (values, [v**2 for v in values]))
    pixels, edges = found.stored.pixels, tuple(map(float, np.linalg.norm(affine[:3, :3], axis=0)))
    quantiles = () if window or several else np.quantile(pixels.astype(np.float64), np.linspace(0, 1, POINTS))
    return Looked(
        height=shape[0],
        width=shape[1],
        spacing=sum(edges) / 3,
        coloured=several,
        mean=tuple(mean) if several else (*mean,) * 3,
        square=tuple(square) if several else (*square,) * 3,
        grey_square=sum(square) / len(square),
        quantiles=tuple(map(float, quantiles)),
        measured=not (window or several) and (found.stored.hounsfield or is_measured(pixels)),
        voxels=shape,
        edges=edges,
    )
