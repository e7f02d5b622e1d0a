# SPDX-License-Identifier: Apache-2.0
"""Volumes from NIfTI files and DICOM series on one grid: axes to the right, the front and above, one spacing, one size.

MONAI turns and resamples them. What is read, resampled and kept is bounded before any voxel is decoded. Training is on
patches around voxels of each structure, scoring on whole volumes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import DataError
from fairflare.core.execution import moved
from fairflare.core.seeds import derive
from fairflare.core.types import Batch, SplitName
from fairflare.data.readers import dicom, nifti
from fairflare.data.readers.datalist import MOST_CONTRASTS, Contrasts, Frame, Item, Source
from fairflare.data.readers.geometry import form_of, geometry_of
from fairflare.data.readers.limits import check
from fairflare.data.readers.pictures import name_of, structure_masks
from fairflare.data.readers.stored import Stored, finite, guarded
from fairflare.data.tensors import TensorData, as_float, batches_of, normalised

SHORTEST, LONGEST = 0.01, 100.0
"""Millimetres of a voxel's edge."""
ALIKE = 0.01
"""Millimetres that a mask's grid may be away from its image's, and a slice's from the plane of the first."""
GAP = 0.05
"""Share of their usual distance that two slices of a series may be nearer or further."""
AXES = "RAS"


@dataclass(frozen=True, eq=False)
class Volume:
    """One volume as it is stored: voxels float32 (X, Y, Z), and the affine float64 (4, 4) from these to RAS in mm."""

    stored: Stored
    affine: np.ndarray

    @property
    def spacing(self) -> np.ndarray:
        """Edges of a voxel in millimetres, (3,), along the axes as they are stored."""
        return np.asarray(np.linalg.norm(self.affine[:3, :3], axis=0))


@dataclass(frozen=True)
class VolumeReader:
    """Turns a datalist's item into what a network and its loss take, before any patch is cut.

    Args:
        spacing: edges of a voxel in millimetres to the right, the front and above; images are resampled linearly, masks
            to the nearest voxel.
        shape: voxels along these axes; what lies further from the volume's centre is cut off, what is missing is 0.
        values: structure -> the values that belong to it in a mask file. None: an item's label is its class.
        background: values of no structure.
        window: what values are scaled by, see ``stored.Stored.scaled``; no file's own.
        channels: contrasts of a volume, each scaled by itself.
    """

    spacing: tuple[float, ...]
    shape: tuple[int, ...]
    values: Mapping[str, Sequence[int]] | None = None
    background: Sequence[int] = (0,)
    window: str = ""
    channels: int = 1

    def __call__(self, item: Item) -> tuple[Tensor, Tensor]:
        """uint8 (channels, X, Y, Z), and int64 () or uint8 (structures, X, Y, Z) of 0 and 1.

        DataError as ``contrasts_of``, "shape" (the mask lies on another grid than the image) or "mask_values".
        """
        image, found = self.placed(item.image)
        if self.values is None:
            return _bytes(image), torch.tensor(item.label)
        if not isinstance(item.label, Path):
            raise DataError("entry", f"{name_of(item.image)}: expected a mask's file, got the class {item.label}")
        mask = read(item.label, mask=True)
        _check_alike(found, mask, name_of(item.image), "its mask")
        return _bytes(image), self._mask(mask, item.label.name)

    def image(self, source: Source) -> Tensor:
        """uint8 (channels, X, Y, Z)."""
        return _bytes(self.placed(source)[0])

    def mask(self, source: Source) -> Tensor:
        """uint8 (structures, X, Y, Z) of 0 and 1."""
        return self._mask(read(source, mask=True), name_of(source))

    def placed(self, source: Source) -> tuple[Any, Volume]:
        """MONAI's tensor float32 (channels, X, Y, Z) of 0 to 255, with its place; and the first contrast."""
        found = contrasts_of(source)
        if len(found) != self.channels:
            raise DataError("shape", f"{name_of(source)}: expected {self.channels} contrasts, got {len(found)}")
        scaled = (torch.from_numpy(one.stored.scaled(self.window))[None].float() for one in found)
        placed = [self._on_grid(values, one, "bilinear") for values, one in zip(scaled, found, strict=True)]
        return torch.cat(placed), found[0]

    def _mask(self, found: Volume, name: str) -> Tensor:
        masks = structure_masks(found.stored.pixels, self.values or {}, self.background, name)
        return _bytes(self._on_grid(masks, found, "nearest"))

    def loses(self, item: Item) -> bool:
        """Whether a part of the item's mask lies outside the grid; it must be readable."""
        if self.values is None or not isinstance(item.label, Path):
            return False
        found = read(item.label, mask=True)
        if max(found.spacing * found.stored.pixels.shape) <= min(np.multiply(self.spacing, self.shape)):
            return False
        masks = structure_masks(found.stored.pixels, self.values, self.background, item.label.name)
        return bool(self._spaced(masks, found, "nearest").sum() > self._on_grid(masks, found, "nearest").sum())

    def _on_grid(self, channels: Tensor, found: Volume, mode: str) -> Any:
        """(C, X, Y, Z) as stored -> MONAI's float32 tensor (C, *shape) on the grid around the volume's centre."""
        from monai import transforms as mt

        return mt.ResizeWithPadOrCrop(self.shape)(self._spaced(channels, found, mode))

    def _spaced(self, channels: Tensor, found: Volume, mode: str) -> Any:
        from monai import transforms as mt

        turned = mt.Orientation(axcodes=AXES, labels=None)(placed_as(channels, found.affine))
        return mt.Spacing(pixdim=self.spacing, mode=mode, padding_mode="border", dtype=np.float32)(turned)


def placed_as(channels: Tensor, affine: np.ndarray) -> Any:
    """MONAI's tensor of (C, X, Y, Z) with its place in millimetres."""
    from monai.data import MetaTensor

    return MetaTensor(channels, affine=torch.from_numpy(affine))


def _bytes(image: Any) -> Tensor:
    found: Tensor = image.as_tensor().round().clamp(0, 255).to(torch.uint8).contiguous()
    return found


def contrasts_of(source: Source) -> list[Volume]:
    """Each contrast of a volume, files or the fourth axis of one; DataError as ``read``, "shape" of several grids."""
    if not isinstance(source, Contrasts):
        return _read(source)
    found = [read(one) for one in source.parts]
    for part, one in zip(source.parts[1:], found[1:], strict=True):
        _check_alike(found[0], one, source.name, f"the contrast {part.name}")
    return found


def read(source: Source, *, mask: bool = False) -> Volume:
    """The volume that a file of NIfTI is, or the series of DICOM that a file is of.

    Raises:
        DataError: "unreadable"; "not_3d" for files of fewer or more axes; "nonfinite"; "spacing" where voxels have no
            size that can be; "series" where slices do not make up one volume.
    """
    found = _read(source, mask)
    if len(found) > 1:
        raise DataError("not_3d", f"{name_of(source)}: expected one volume, got {len(found)} contrasts in a file")
    return found[0]


def _read(source: Source, mask: bool = False) -> list[Volume]:
    if not isinstance(source, Path):
        raise DataError("entry", f"{name_of(source)}: expected a volume's file, got one slice of it")
    form = form_of(source)
    if form == "picture":
        raise DataError("not_3d", f"{source.name}: expected a volume (NIfTI, or a DICOM series), got a picture")
    found = _nifti(source) if form == "nifti" else [_series(source, mask)]
    edges, affine = found[0].spacing, found[0].affine
    turn = affine[:3, :3]
    flat = not np.isfinite(affine).all() or abs(np.linalg.det(turn)) < 0.01 * math.prod(edges)
    if flat or not ((edges >= SHORTEST) & (edges <= LONGEST)).all():
        shown = " x ".join(f"{edge:.4g}" for edge in edges)
        raise DataError("spacing", f"{source.name}: expected voxels of {SHORTEST:g} to {LONGEST:g} mm, got {shown}")
    return found


def _nifti(path: Path) -> list[Volume]:
    image = nifti.checked(path)
    *shape, contrasts = nifti.axes(image)
    if len(shape) != 3 or min(shape) < 2 or contrasts > MOST_CONTRASTS:
        got = "x".join(map(str, image.shape))
        text = f"expected one volume of three axes, or {MOST_CONTRASTS} contrasts at most on a fourth"
        raise DataError("not_3d", f"{path.name}: {text}, got {got} voxels")
    check(path.name, pixels=math.prod(shape) * contrasts)
    with guarded(path):
        voxels = np.asarray(image.dataobj).reshape(*shape, contrasts)
    affine = np.asarray(image.affine, dtype=np.float64)
    return [Volume(Stored(finite(path, voxels[..., k])), affine) for k in range(contrasts)]


def _series(path: Path, mask: bool) -> Volume:
    """All slices of the series that a DICOM file is of: its frames, or the files beside it of the same series."""
    slices = _slices(path)
    places = [geometry_of(one) for one in slices]
    affines = [place.affine for place in places if place is not None and place.affine is not None]
    if len(affines) < len(slices) or len(slices) < 2:
        what = f"{len(slices)} slice{'s' * (len(slices) > 1)}, {len(slices) - len(affines)} of unknown place"
        raise DataError("series", f"{path.name}: expected a series of slices in space, got {what}")
    normal = np.cross(affines[0][:3, 0], affines[0][:3, 1])
    heights = [float(affine[:3, 3] @ normal / np.linalg.norm(normal)) for affine in affines]
    order = np.argsort(heights, kind="stable")
    _check_series(path, [affines[k] for k in order], np.array(heights)[order])
    rows, columns = places[0].height, places[0].width  # type: ignore[union-attr]  # those without a place were refused
    check(path.name, pixels=rows * columns * len(slices))
    found = [_slice(slices[k], (rows, columns), mask) for k in order]
    affine = affines[order[0]].copy()
    affine[:3, 2] = (affines[order[-1]][:3, 3] - affine[:3, 3]) / (len(order) - 1)
    pixels = np.stack([one.pixels[0] for one in found], axis=2)
    return Volume(Stored(pixels, hounsfield=all(one.hounsfield for one in found)), affine)


def _slices(path: Path) -> list[Frame]:
    first = dicom.header(path)
    if (n := dicom.frames_in(first)) > 1:
        return [Frame(path, k) for k in range(n)]
    uid, found = first.get("SeriesInstanceUID"), []
    for other in sorted(path.parent.iterdir()):  # a link there may lead anywhere
        may_be = other == path or (not other.is_symlink() and other.is_file() and dicom.is_dicom(other))
        if may_be and dicom.told(other, "SeriesInstanceUID") == uid:
            found.append(Frame(other, 0))
    return found


def _slice(one: Frame, shape: tuple[int, int], mask: bool) -> Stored:
    found = dicom.read(one.path, one.number, mask=mask)
    if found.pixels.shape != (1, *shape) or (found.natural and not mask):
        raise DataError("series", f"{one.name}: expected grey slices of one size, got {found.pixels.shape}")
    return found


def _check_series(path: Path, affines: Sequence[np.ndarray], heights: np.ndarray) -> None:
    turned = max(float(np.abs(one[:3, :2] - affines[0][:3, :2]).max()) for one in affines)
    corners = np.array([one[:3, 3] for one in affines])  # on a line, also where the gantry is tilted
    aside = float(np.abs(corners - np.linspace(corners[0], corners[-1], len(corners))).max())
    steps = np.diff(heights)
    usual = float(np.median(steps))
    even = usual >= SHORTEST and float(np.abs(steps - usual).max()) <= max(GAP * usual, ALIKE)
    if turned > ALIKE or not even or aside > usual:
        what = "planes that differ" if turned > ALIKE else f"slices {steps.min():.4g} to {steps.max():.4g} mm apart"
        what = f"slices {aside:.4g} mm beside the others" if turned <= ALIKE and even else what
        raise DataError("series", f"{path.name}: expected parallel slices at one distance, got {what}")


def _check_alike(image: Volume, other: Volume, name: str, what: str) -> None:
    """Raise DataError unless a mask or contrast lies on its image's grid, whatever the order of its axes."""
    grids = [grid_of(one) for one in (image, other)]
    shapes = ["x".join(map(str, shape)) for shape, _ in grids]
    if shapes[0] != shapes[1]:
        raise DataError("shape", f"{name}: {shapes[0]} voxels, {what} has {shapes[1]}")
    if float(np.abs(grids[0][1] - grids[1][1]).max()) > ALIKE:
        spacings = [" x ".join(f"{edge:.4g}" for edge in np.linalg.norm(a[:3, :3], axis=0)) for _, a in grids]
        raise DataError("shape", f"{name}: voxels of {spacings[0]} mm, {what} has {spacings[1]} mm or lies elsewhere")


def grid_of(found: Volume) -> tuple[tuple[int, ...], np.ndarray]:
    """Shape and affine of a volume that is turned to ``AXES``."""
    from monai import transforms as mt

    empty = torch.empty(1).expand(1, *found.stored.pixels.shape)
    turned = mt.Orientation(axcodes=AXES, labels=None)(placed_as(empty, found.affine))
    return tuple(turned.shape[1:]), np.asarray(turned.affine)  # type: ignore[attr-defined]  # a MetaTensor


MOST = 8
"""Patches or whole volumes of a batch in evaluation, whatever is asked for: what bounds the memory of probes."""
Places = tuple[slice, ...]


class VolumeData(TensorData):
    """``TensorData`` of volumes (N, 1, X, Y, Z).

    Where ``patch`` is named, targets are masks and training is on patches. Their centres are drawn by MONAI as often
    from each structure as from the background, from seeds of this package. Probes that look at the training split see
    one fixed patch of each volume.

    Args:
        patch: voxels along each axis, at most those of the volumes; (): training is on whole volumes.
        patches: of each volume in an epoch.
        more: ``TensorData``'s arguments.
    """

    def __init__(self, *, patch: Sequence[int] = (), patches: int = 1, **more: Any) -> None:
        super().__init__(**more)
        self.patch, self.patches = tuple(patch), patches

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        if not self.patch:
            yield from super().training(batch_size, seed)
            return
        generator = torch.Generator().manual_seed(seed)
        order = torch.cat([torch.randperm(self.size("train"), generator=generator) for _ in range(self.patches)])
        batches = batches_of(order, batch_size, self.lone)
        yield from self._cut(batches, lambda batch, place, row: derive(seed, "patch", batch, place))

    def fixed(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        if not (self.patch and split == "train"):
            yield from super().fixed(split, min(batch_size, MOST), at_most)
            return
        rows = self.spaced(split, at_most).split(min(batch_size, MOST))
        yield from self._cut(rows, lambda batch, place, row: derive(0, "fixed patch", row))

    def whole(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        """Whole volumes of ``split``, the training split's too; arguments as in ``fixed``."""
        yield from super().fixed(split, min(batch_size, MOST), at_most)

    def _cut(self, batches: Sequence[Tensor], seed_of: Any) -> Iterator[Batch]:
        train, groups = self.splits["train"], self._groups["train"]
        for k, (rows, (inputs, targets)) in enumerate(zip(batches, train.read(batches), strict=True)):
            seeds = [seed_of(k, i, row) for i, row in enumerate(rows.tolist())]
            places = [patch_of(mask, self.patch, seed) for mask, seed in zip(targets, seeds, strict=True)]
            cut = (torch.stack([one[:, x, y, z] for one, (x, y, z) in zip(part, places)]) for part in (inputs, targets))
            patches, masks = (moved(part, self.device) for part in cut)
            yield Batch(normalised(as_float(patches), self.mean, self.std), masks, groups[rows])


def patch_of(mask: Tensor, patch: Sequence[int], seed: int) -> Places:
    """Where a patch lies, drawn by MONAI around a voxel of the background or a structure that there is, each as often.

    ``mask`` is (structures, X, Y, Z) of 0 and 1; the place is a function of the arguments alone.
    """
    from monai.transforms import RandCropByLabelClasses

    crop = RandCropByLabelClasses(list(patch), warn=False)
    crop.set_random_state(seed=seed % 2**32)
    crop.randomize(label=torch.cat((mask.amax(0, keepdim=True) == 0, mask > 0)))
    assert crop.centers is not None  # it has just drawn one
    return tuple(slice(int(c) - n // 2, int(c) - n // 2 + n) for c, n in zip(crop.centers[0], patch, strict=True))
