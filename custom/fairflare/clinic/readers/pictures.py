# SPDX-License-Identifier: Apache-2.0
"""Images and masks from files, one 2D slice each: PNG, JPEG, NIfTI and DICOM, read by MONAI's readers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.clinic.readers.datalist import Item
from fairflare.core.errors import DataError

LOW, HIGH = 0.5, 99.5
"""Percentiles that images without a natural range (NIfTI, DICOM) are scaled between."""
DICOM = (".dcm", ".dicom", "")
COLOUR = 0.02
"""Difference of channels on [0, 1] from which an image has colours; JPEG leaves less in a grey one."""
NATURAL = (".png", ".jpg", ".jpeg")
MOST_PIXELS = 2 * 10**8
"""Of a file, by its header: a small archive may say that it holds more than there is memory. PIL has its own bound."""


@dataclass(frozen=True)
class Reader:
    """Turns a datalist's item into what a network and its loss take, before any random transform.

    Args:
        size: edge in pixels; images are resampled bilinearly with antialiasing, masks to the nearest pixel.
        channels: 1 or 3: a grey image is repeated, colours become grey by their mean.
        values: structure -> the pixel values that belong to it in a mask file; structures may share values (a cup lies
            in its disc). None: an item's label is its class.
        background: pixel values of no structure.
    """

    size: int
    channels: int
    values: Mapping[str, Sequence[int]] | None = None
    background: Sequence[int] = (0,)

    def __call__(self, item: Item) -> tuple[Tensor, Tensor]:
        """uint8 (channels, size, size), and int64 () or uint8 (structures, size, size) of 0 and 1.

        Raises:
            DataError: "unreadable", "not_2d", "shape" (the mask's differs from the image's) or "mask_values".
        """
        pixels, stretched = _slice(item.image)
        image = self._image(pixels, stretched)
        if self.values is None:
            return image, torch.tensor(item.label)
        if isinstance(item.label, int):
            raise DataError("entry", f"{_named(item.image)}: expected a mask, got the class {item.label}")
        mask = _slice(item.label)[0][0]
        if mask.shape != pixels.shape[1:]:
            image_shape, mask_shape = ("x".join(map(str, shape)) for shape in (pixels.shape[1:], mask.shape))
            raise DataError("shape", f"{_named(item.image)}: {image_shape} pixels, its mask has {mask_shape}")
        return image, self._mask(mask, _named(item.label))

    def image(self, source: Path | np.ndarray) -> Tensor:
        """uint8 (channels, size, size)."""
        return self._image(*_slice(source))

    def mask(self, source: Path | np.ndarray) -> Tensor:
        """uint8 (structures, size, size) of 0 and 1."""
        return self._mask(_slice(source)[0][0], _named(source))

    def _image(self, pixels: np.ndarray, stretched: bool) -> Tensor:
        image = torch.from_numpy(_scaled(pixels, stretched)).float()
        if len(image) != self.channels:
            image = image.mean(0, keepdim=True).expand(self.channels, -1, -1)
        if image.shape[1:] != (self.size, self.size):
            edges = (self.size, self.size)
            image = F.interpolate(image[None], edges, mode="bilinear", antialias=True, align_corners=False)[0]
        return image.round().clamp(0, 255).to(torch.uint8)

    def _mask(self, pixels: np.ndarray, name: str) -> Tensor:
        values = self.values or {}
        known = {*self.background, *(v for group in values.values() for v in group)}
        strange = sorted({float(v) for v in np.unique(pixels)} - known)
        if strange:
            shown = ", ".join(f"{v:g}" for v in strange[:5])
            raise DataError("mask_values", f"mask {name}: expected pixel values {sorted(known)}, got {shown}")
        masks = torch.stack([torch.from_numpy(np.isin(pixels, group)).float() for group in values.values()])
        if masks.shape[1:] != (self.size, self.size):
            masks = F.interpolate(masks[None], (self.size, self.size), mode="nearest-exact")[0]
        return masks.to(torch.uint8)


def stored(path: Path) -> np.ndarray:
    """float32 (C, H, W): the pixels of a file as stored; DataError: "unreadable" or "not_2d"."""
    return _slice(path)[0]


@dataclass(frozen=True)
class Looked:
    """What one image is like as it is stored.

    Attributes:
        height: in pixels.
        width: in pixels.
        spacing: edge of a pixel in mm, None where the file has none.
        coloured: whether its channels differ.
        mean: of each of three channels on [0, 1], as a reader scales them.
        square: mean of their squares.
        grey_square: the same of the channels' mean.
    """

    height: int
    width: int
    spacing: float | None
    coloured: bool
    mean: tuple[float, ...]
    square: tuple[float, ...]
    grey_square: float


def looked_at(source: Path | np.ndarray) -> Looked:
    """What the image ``source`` is like; raises DataError where it cannot be read."""
    pixels, stretched = _slice(source)
    pixels = _scaled(pixels, stretched) / 255
    pixels = pixels if len(pixels) == 3 else pixels.mean(0, keepdims=True).repeat(3, axis=0)
    mean, square = (part.mean((1, 2), dtype=np.float64) for part in (pixels, pixels**2))
    return Looked(
        height=pixels.shape[1],
        width=pixels.shape[2],
        spacing=_spacing(source) if stretched else None,
        coloured=bool(np.abs(pixels - pixels[:1]).max() > COLOUR),
        mean=tuple(map(float, mean)),
        square=tuple(map(float, square)),
        grey_square=float((pixels.mean(0) ** 2).mean(dtype=np.float64)),
    )


def _spacing(source: Path | np.ndarray) -> float | None:
    """The mean edge of a pixel in mm, as the file's own header says."""
    if isinstance(source, np.ndarray):
        return None
    found = [float(edge) for edge in getattr(_read(source), "pixdim", ())[:2]]
    return sum(found) / len(found) if found and min(found) > 0 else None


def _scaled(pixels: np.ndarray, stretched: bool) -> np.ndarray:
    """Values from 0 to 255, those without a natural range between two percentiles."""
    if not stretched and pixels.max() <= 255:
        return pixels
    low, high = np.percentile(pixels, (LOW, HIGH))
    return np.clip((pixels - low) / max(high - low, 1e-6), 0, 1) * 255


def _slice(source: Path | np.ndarray) -> tuple[np.ndarray, bool]:
    """float32 (C, H, W) as stored, and whether its range is the scanner's rather than 0 to 255."""
    if isinstance(source, np.ndarray):
        found = np.moveaxis(source, -1, 0) if source.ndim == 3 else source[None]
        return found.astype(np.float32), False
    suffix = source.suffix.lower()
    found = np.asarray(_read(source), dtype=np.float32)
    found = found[..., 0] if found.ndim == 4 and found.shape[-1] == 1 else found
    if found.ndim == 3 and found.shape[0] not in (1, 3, 4) and found.shape[-1] == 1:
        found = np.moveaxis(found, -1, 0)
    if found.ndim != 3 or found.shape[0] not in (1, 2, 3, 4):
        raise DataError("not_2d", f"{source.name}: expected one 2D slice, got an array of shape {found.shape}")
    without_alpha = found[: {4: 3, 2: 1}.get(len(found), len(found))]
    return without_alpha, suffix not in NATURAL


def _read(source: Path) -> Any:
    suffix = source.suffix.lower()
    try:
        if suffix not in NATURAL and _told(source, suffix) > MOST_PIXELS:
            raise ValueError
        return _loader(suffix)(source)
    except Exception as error:  # readers raise whatever their libraries do
        text = f"{source.name}: cannot be read as an image ({type(error).__name__})"
        raise DataError("unreadable", text) from None


def _told(source: Path, suffix: str) -> int:
    """How many numbers a NIfTI or DICOM file holds as its header says; nothing of them is read."""
    if suffix in DICOM:
        from pydicom import dcmread

        tags = ["Rows", "Columns", "NumberOfFrames", "SamplesPerPixel"]
        header = dcmread(source, stop_before_pixels=True, specific_tags=tags)
        return math.prod(int(header.get(tag) or 1) for tag in tags)
    import nibabel

    return math.prod(getattr(nibabel.load(source), "shape", ()))


def _named(source: Path | np.ndarray) -> str:
    return source.name if isinstance(source, Path) else "an image in memory"


@cache
def _loader(suffix: str) -> Any:
    import logging
    import warnings

    from monai.data import NibabelReader, PILReader, PydicomReader
    from monai.transforms import LoadImage

    # LoadImage tries every reader it knows and warns of a GPU decoder that nobody asked for; a slice needs no geometry.
    logging.getLogger("monai.data.nvimgcodec_pydicom_plugin").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="(NvImgCodec)?PydicomReader")
    if suffix in NATURAL:
        reader: Any = PILReader(reverse_indexing=False)
    elif suffix in DICOM:
        reader = PydicomReader(swap_ij=False)
    else:
        reader = NibabelReader()
    return LoadImage(reader=reader, image_only=True, ensure_channel_first=True)
