# SPDX-License-Identifier: Apache-2.0
"""Images and masks from files, one 2D slice each: PNG, JPEG, TIFF, NIfTI, NRRD and DICOM."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.core.errors import DataError
from fairflare.data.readers import dicom, nifti
from fairflare.data.readers.datalist import Contrasts, Files, Frame, Item, Source, file_of
from fairflare.data.readers.geometry import Geometry, form_of, frames, geometry_of
from fairflare.data.readers.limits import check
from fairflare.data.readers.stored import Stored, chosen_frame, finite, unreadable

COLOURED = ("1", "P", "PA", "CMYK")
"""PIL's modes whose numbers are no brightness."""


ALIKE, HALF = 0.01, 0.5
"""Millimetres by which edges of an image's and its mask's pixels may differ, and pixels by which their places may."""


@dataclass(frozen=True)
class Reader:
    """Turns a datalist's item into what a network and its loss take, before any random transform.

    Args:
        size: edge in pixels; images are resampled bilinearly with antialiasing, masks to the nearest pixel.
        channels: 1 or 3: a grey image is repeated, colours become grey by their mean; or the number of contrasts.
        values: structure -> the pixel values that belong to it in a mask file; structures may share values (a cup lies
            in its disc). None: an item's label is its class.
        background: pixel values of no structure.
        window: what values without a natural range are scaled by, see ``stored.Stored.scaled``.
    """

    size: int
    channels: int
    values: Mapping[str, Sequence[int]] | None = None
    background: Sequence[int] = (0,)
    window: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Pixels of an image along its axes."""
        return self.size, self.size

    def __call__(self, item: Item) -> tuple[Tensor, Tensor]:
        """uint8 (channels, size, size), and int64 () or uint8 (structures, size, size) of 0 and 1.

        DataError "unreadable", "not_2d", "nonfinite", "shape" (the mask's differs from the image's) or "mask_values".
        """
        found = read_slice(item.image, self.window)
        image = self._image(found)
        if self.values is None:
            return image, torch.tensor(item.label)
        name = name_of(item.image)
        if isinstance(item.label, (int, float, tuple)):
            raise DataError("entry", f"{name}: expected a mask, got the class {item.label}")
        source = _mask_of(item.image, item.label)
        mask = read_slice(source, mask=True).pixels[0]
        if mask.shape != found.pixels.shape[1:]:
            image_shape, mask_shape = ("x".join(map(str, shape)) for shape in (found.pixels.shape[1:], mask.shape))
            raise DataError("shape", f"{name}: {image_shape} pixels, its mask has {mask_shape}")
        if _lies_elsewhere(item.image, source):
            how = "by their headers it is turned, of other spacing, elsewhere or nowhere"
            if _is_nifti(item.image) != _is_nifti(source):
                how += "; NIfTI and NRRD store columns first: save both in one format"
            raise DataError("shape", f"{name}: expected a mask on its image's pixels, {how}")
        return image, self._mask(mask, name_of(item.label))

    def image(self, source: Source) -> Tensor:
        """uint8 (channels, size, size)."""
        return self._image(read_slice(source, self.window))

    def mask(self, source: Source) -> Tensor:
        """uint8 (structures, size, size) of 0 and 1."""
        return self._mask(read_slice(source, mask=True).pixels[0], name_of(source))

    def geometry(self, source: Files) -> Geometry | None:
        """What a file's header says; None where it cannot be read."""
        return geometry_of(source)

    def _image(self, found: Stored) -> Tensor:
        image = torch.from_numpy(found.scaled(self.window)).float()
        if len(image) != self.channels and {len(image), self.channels} - {1, 3}:
            raise DataError("shape", f"expected an image of {self.channels} contrasts or channels, got {len(image)}")
        if len(image) != self.channels:
            image = image.mean(0, keepdim=True).expand(self.channels, -1, -1)
        if image.shape[1:] != self.shape:
            image = F.interpolate(image[None], self.shape, mode="bilinear", antialias=True, align_corners=False)[0]
        return image.round().clamp(0, 255).to(torch.uint8)

    def _mask(self, pixels: np.ndarray, name: str) -> Tensor:
        masks = structure_masks(pixels, self.values or {}, self.background, name)
        if masks.shape[1:] != self.shape:
            masks = F.interpolate(masks[None], self.shape, mode="nearest-exact")[0]
        return masks.to(torch.uint8)


def stored(source: Source, *, mask: bool = True) -> np.ndarray:
    """float32 (C, H, W): the values of a mask or an image as stored; DataError: "unreadable", "not_2d", "nonfinite"."""
    return read_slice(source, mask=mask).pixels


def read_slice(source: Source, window: str = "", *, mask: bool = False) -> Stored:
    if isinstance(source, np.ndarray):
        found = np.moveaxis(source, -1, 0) if source.ndim == 3 else source[None]
        return _natural(found.astype(np.float32))
    if isinstance(source, Contrasts):
        return _contrasts(source, window)
    path, k = (source.path, source.number) if isinstance(source, Frame) else (source, None)
    form = form_of(path)
    if form == "dicom":
        return dicom.read(path, k, window=window, mask=mask)
    if form == "nifti":
        return nifti.read(path, k, window="" if mask else window)
    return _picture_of(path, mask, chosen_frame(path, k, frames(path)))


def _contrasts(source: Contrasts, window: str) -> Stored:
    """Each contrast scaled by itself, colours as grey; DataError "shape" where they do not lie on the same pixels."""
    found = [read_slice(one, window).scaled(window).mean(0, keepdims=True) for one in source.parts]
    for one, pixels in zip(source.parts, found, strict=True):
        other = pixels.shape != found[0].shape or _slices(one) != _slices(source.parts[0])
        if other or _lies_elsewhere(source.parts[0], one):
            shapes = " and ".join("x".join(map(str, part.shape[1:])) for part in (found[0], pixels))
            text = f"expected contrasts on the same pixels, got {shapes}, turned or elsewhere"
            raise DataError("shape", f"{source.name} and {one.name}: {text}")
    return Stored(np.concatenate(found).astype(np.float32), natural=True)


def _picture_of(path: Path, mask: bool, page: int) -> Stored:
    """A PNG, a JPEG or a page of a TIFF, upright as its EXIF says.

    A palette's numbers are colours, but in a mask its structures; where all are greys, in whatever order, these are.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            file.seek(page)
            check(path.name, pixels=file.width * file.height * len(file.getbands()))
            mode, found = file.mode, file
            with contextlib.suppress(Exception):  # EXIF that cannot be read
                found = ImageOps.exif_transpose(file)
            if mode in COLOURED and not mask:
                found = found.convert("RGB")
            elif mode == "P" and not np.diff(np.reshape(found.getpalette() or [], (-1, 3))).any():
                found = found.convert("L")
            pixels = np.moveaxis(np.atleast_3d(np.asarray(found, dtype=np.float32)), -1, 0)
    except DataError:
        raise
    except Exception as error:  # decoders raise whatever their libraries do
        raise unreadable(path, type(error).__name__) from None
    pixels = finite(path, pixels[: {4: 3, 2: 1}.get(len(pixels), len(pixels))])  # without alpha
    return Stored(pixels, natural=not mode.startswith(("I", "F"))) if not mask else _natural(pixels)


def _natural(pixels: np.ndarray) -> Stored:
    """Of 8 bits a value is what it is; of 16 it may be anything."""
    return Stored(pixels, natural=bool(pixels.max() <= 255))


def _lies_elsewhere(image: Source, mask: Source) -> bool:
    """Whether both headers say where pixels lie, and not in the same place, or the formats differ in the axes' order:
    such a mask is read without an error, mirrored or beside what it shows."""
    if isinstance(image, np.ndarray) or isinstance(mask, np.ndarray):
        return False
    found = [geometry_of(one) for one in (image, mask)]
    a, b = (None if one is None or not one.placed else one.affine for one in found)
    if a is None or b is None:
        return None not in found and _is_nifti(image) != _is_nifti(mask)  # transposed, and nothing that says it
    if not np.isfinite([a, b]).all() or min(np.linalg.matrix_rank(one[:3, :2]) for one in (a, b)) < 2:
        return True  # all pixels on a line, or in one point
    normal = np.cross(a[:3, 0], a[:3, 1])
    normal /= np.linalg.norm(normal)
    steps = np.column_stack((a[:3, :2], normal * (abs(normal @ a[:3, 2]) or 1)))
    moved = np.linalg.solve(steps, (a - b)[:3, 3])
    stacks = [isinstance(_first(one), Frame) for one in (image, mask)]
    edges = (a - b)[:3, : 3 if all(stacks) else 2]
    alone = stacks == [True, False]  # cut from a volume: its place may be the volume's
    return bool(np.abs(edges).max() > ALIKE or (np.abs(moved).max() > HALF and not alone))


def _first(source: Source) -> Path | Frame | np.ndarray:
    return source.parts[0] if isinstance(source, Contrasts) else source


def _is_nifti(source: Source) -> bool:
    return not isinstance(source, np.ndarray) and form_of(file_of(source)) == "nifti"


def _slices(source: Source) -> int:
    """Of the volume that a slice is from; 1 of a file with no other."""
    return frames(source.path) if isinstance(source, Frame) else 1


def _mask_of(image: Source, label: Path | np.ndarray) -> Source:
    """Where the mask of an image is: at the same slice of a file of several; DataError "shape": it has others."""
    first = _first(image)
    if not isinstance(first, Frame) or not isinstance(label, Path) or (n := frames(label)) == 1:
        return label
    if n != _slices(first):
        raise DataError("shape", f"{first.name}: expected a mask of {_slices(first)} slices, got {n}")
    return Frame(label, first.number)


def name_of(source: Source) -> str:
    return "an image in memory" if isinstance(source, np.ndarray) else source.name


def structure_masks(
    pixels: np.ndarray, values: Mapping[str, Sequence[int]], background: Sequence[int], name: str
) -> Tensor:
    """float32 (structures, ...) of 0 and 1: where the values of a mask, ``name`` of a file, are each structure's.

    DataError "mask_values": a value is neither a structure's nor the background's.
    """
    known = {*background, *(v for group in values.values() for v in group)}
    strange = sorted({float(v) for v in np.unique(pixels)} - known)
    if strange:
        shown = ", ".join(f"{v:g}" for v in strange[:5])
        raise DataError("mask_values", f"mask {name}: expected pixel values {sorted(known)}, got {shown}")
    return torch.stack([torch.from_numpy(np.isin(pixels, group)).float() for group in values.values()])
