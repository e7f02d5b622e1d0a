# SPDX-License-Identifier: Apache-2.0
"""Images and masks from files, one 2D slice each: PNG, JPEG, NIfTI and DICOM, read by MONAI's readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.errors import UserError

LOW, HIGH = 0.5, 99.5
"""Percentiles that images without a natural range (NIfTI, DICOM) are scaled between."""
NATURAL = (".png", ".jpg", ".jpeg")


def read_image(path: Path, channels: int, size: int) -> Tensor:
    """uint8 (channels, size, size): a grey image is repeated, colours become grey by their mean, edges are resampled.

    Raises:
        UserError: the file cannot be read or is no single slice.
    """
    pixels = _slice(path)
    if path.suffix.lower() not in NATURAL or pixels.max() > 255:
        low, high = np.percentile(pixels, (LOW, HIGH))
        pixels = np.clip((pixels - low) / max(high - low, 1e-6), 0, 1) * 255
    image = torch.from_numpy(pixels).float()
    if len(image) != channels:
        image = image.mean(0, keepdim=True).expand(channels, -1, -1)
    if image.shape[1:] != (size, size):
        image = F.interpolate(image[None], (size, size), mode="bilinear", antialias=True, align_corners=False)[0]
    return image.round().clamp(0, 255).to(torch.uint8)


def read_mask(path: Path, values: Mapping[str, Sequence[int]], size: int, background: Sequence[int] = (0,)) -> Tensor:
    """uint8 (C, size, size) of 0 and 1, a channel per structure.

    Args:
        path: an image whose pixel values name structures.
        values: structure -> the pixel values that belong to it; structures may share values (a cup lies in its disc).
        size: edge in pixels, resampled to the nearest.
        background: pixel values of no structure.

    Raises:
        UserError: also for a pixel value that is neither the background's nor a structure's; names it and the known.
    """
    pixels = _slice(path)[0]
    known = {*background, *(v for group in values.values() for v in group)}
    strange = sorted({float(v) for v in np.unique(pixels)} - known)
    if strange:
        shown = ", ".join(f"{v:g}" for v in strange[:5])
        raise UserError(f"mask {path.name}: expected pixel values {sorted(known)}, got {shown}")
    masks = torch.stack([torch.from_numpy(np.isin(pixels, group)).float() for group in values.values()])
    if masks.shape[1:] != (size, size):
        masks = F.interpolate(masks[None], (size, size), mode="nearest")[0]
    return masks.to(torch.uint8)


def shape_of(path: Path) -> tuple[int, int]:
    """Height and width of the stored slice."""
    return _slice(path).shape[1:]


def _slice(path: Path) -> np.ndarray:
    """float32 (C, H, W) as stored."""
    try:
        found = np.asarray(_loader(path.suffix.lower())(path), dtype=np.float32)
    except Exception as error:  # readers raise whatever their libraries do
        raise UserError(f"{path.name}: cannot be read as an image ({type(error).__name__})") from None
    found = found[..., 0] if found.ndim == 4 and found.shape[-1] == 1 else found
    if found.ndim == 3 and found.shape[0] not in (1, 3, 4) and found.shape[-1] == 1:
        found = np.moveaxis(found, -1, 0)
    if found.ndim != 3 or found.shape[0] not in (1, 2, 3, 4):
        raise UserError(f"{path.name}: expected one 2D slice, got an array of shape {found.shape}")
    return found[:3] if found.shape[0] == 4 else found[:1] if found.shape[0] == 2 else found  # without transparency


@cache
def _loader(suffix: str) -> Any:
    from monai.data import NibabelReader, PILReader, PydicomReader
    from monai.transforms import LoadImage

    if suffix in NATURAL:
        reader: Any = PILReader(reverse_indexing=False)
    elif suffix in (".dcm", ".dicom", ""):
        reader = PydicomReader(swap_ij=False)
    else:
        reader = NibabelReader()
    return LoadImage(reader=reader, image_only=True, ensure_channel_first=True)
