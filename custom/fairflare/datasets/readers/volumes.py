# SPDX-License-Identifier: Apache-2.0
"""Axial slices of NIfTI volumes, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from torch import Tensor

from fairflare.core.errors import DataError
from fairflare.data.readers.datalist import Item
from fairflare.data.readers.pictures import Reader

SUFFIXES = (".nii.gz", ".nii")
SEGMENTATION = "_segmentation"
LOW, HIGH = 0.5, 99.5
"""Percentiles of a volume beyond which its values are clipped."""
SPAN = 5.0
"""Standard deviations from a volume's mean that 0 and 255 stand for."""
MOST_LABELS = 8
"""Different values of a segmentation; one with more is likely an image."""
KEPT = 32
"""Volumes whose slices a reader keeps: more than any of the known sites has, so that each is opened once."""


class Case(NamedTuple):
    """One patient's volume and its segmentation."""

    name: str
    image: Path
    label: Path


@dataclass(frozen=True)
class Slice(Item):
    """One axial slice of the volumes ``image`` and ``label``.

    Attributes:
        index: its number, from 0.
    """

    index: int = 0


@dataclass(frozen=True)
class SliceReader(Reader):
    """Turns a ``Slice`` into tensors; every labelled voxel belongs to the one structure.

    The first slice of a volume that is asked for opens it; the other slices are kept, resampled, for the last 32
    volumes.

    Args:
        foreground: whether only slices with a labelled voxel are asked for.
    """

    foreground: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "_opened", lru_cache(maxsize=KEPT)(self._examples))

    def __call__(self, item: Slice) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # takes slices of volumes alone
        """uint8 (1, size, size), z-scores as ``standardised`` stores them, and uint8 (1, size, size) of 0 and 1.

        Raises:
            DataError: "unreadable", "data" (no volume of axial slices), "nonfinite", "mask_values" or "shape".
        """
        return self._kept()(item.image, item.label)[item.index]

    def _kept(self) -> Callable[[Any, Any], dict[int, tuple[Tensor, Tensor]]]:
        opened: Callable[[Any, Any], dict[int, tuple[Tensor, Tensor]]] = self.__dict__["_opened"]
        return opened

    def _examples(self, image: Path, label: Path) -> dict[int, tuple[Tensor, Tensor]]:
        masks, pixels = segmentation(label), standardised(image)
        if masks.shape != pixels.shape:
            shapes = ("x".join(map(str, reversed(stack.shape))) for stack in (pixels, masks))
            raise DataError("shape", "{}: {} voxels, its segmentation has {}".format(_named(image), *shapes))
        chosen = chosen_slices(masks, self.foreground)
        return {i: (self.image(pixels[i]), self.mask(masks[i].astype(np.uint8))) for i in chosen}


def cases(folder: Path) -> list[Case]:
    """The cases of ``folder``, sorted by name: Case00.nii.gz with Case00_segmentation.nii.gz, in any letter case.

    Raises:
        DataError: "missing_file" when one of a pair is missing, "data" when two files claim the same place.
    """
    images: dict[str, Path] = {}
    labels: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        name = path.name.lower()
        suffix = next((s for s in SUFFIXES if name.endswith(s)), None)
        if suffix is None or name.startswith("."):
            continue
        stem = name.removesuffix(suffix)
        key, kind = stem.removesuffix(SEGMENTATION), labels if stem.endswith(SEGMENTATION) else images
        if key in kind:
            raise DataError("data", f"{_named(path)}: expected one such file, got {kind[key].name} too")
        kind[key] = path
    for key in sorted(set(images) ^ set(labels)):
        found = images.get(key) or labels[key]
        other = f"{key}{SEGMENTATION if key in images else ''}{SUFFIXES[0]}"
        raise DataError("missing_file", f"{_named(found)}: expected {other} beside it, found none")
    return [Case(key, images[key], labels[key]) for key in sorted(images)]


def slices_of(case: Case, foreground: bool) -> list[Slice]:
    """The slices of ``case`` from the first to the last; opens its segmentation only.

    Args:
        case: its name becomes the attribute "patient_id".
        foreground: whether slices without a labelled voxel are left out.

    Raises:
        DataError: see ``segmentation``; "mask_values" when slices with labels are wanted and there are none.
    """
    chosen = chosen_slices(segmentation(case.label), foreground)
    if not chosen:
        raise DataError("mask_values", f"{_named(case.label)}: expected voxels above 0, got none")
    return [Slice(case.image, case.label, {"patient_id": case.name}, i) for i in chosen]


def chosen_slices(masks: np.ndarray, foreground: bool) -> Sequence[int]:
    """Numbers of the slices of bool (slices, H, W) with a labelled voxel, or of all."""
    return np.flatnonzero(masks.any(axis=(1, 2))).tolist() if foreground else range(len(masks))


def segmentation(path: Path) -> np.ndarray:
    """bool (slices, H, W): where the volume is above 0, whatever structure within the organ it tells apart.

    Raises:
        DataError: "unreadable", "data", "nonfinite", or "mask_values" when it is not made of a few whole numbers >= 0.
    """
    stored = _stored(path)
    values = np.unique(stored)
    if len(values) > MOST_LABELS or values[0] < 0 or (values != np.round(values)).any():
        shown = ", ".join(f"{v:g}" for v in values[: MOST_LABELS + 1])
        raise DataError("mask_values", f"{_named(path)}: expected labels such as 0, 1, 2, got {shown}")
    return stored > 0


def standardised(path: Path) -> np.ndarray:
    """uint8 (slices, H, W): the volume clipped to its percentiles 0.5 and 99.5, then z-scored.

    A z-score z, clipped to -5..5, is stored as round((z + 5) / 10 * 255), so that steps of 0.04 remain; from v / 255,
    subtracting 0.5 and dividing by 0.1 gives z back.

    Raises:
        DataError: "unreadable", "data" or "nonfinite".
    """
    values = _stored(path)
    values = np.clip(values, *np.percentile(values, (LOW, HIGH)))
    mean, std = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    z = (values - mean) / max(std, 1e-6)
    return np.rint((np.clip(z, -SPAN, SPAN) + SPAN) / (2 * SPAN) * 255).astype(np.uint8)


def _stored(path: Path) -> np.ndarray:
    """float32 (slices, H, W): the file's third, second and first axis, as SimpleITK gives them."""
    import nibabel

    try:
        found = np.asarray(cast(Any, nibabel.load(path)).dataobj, dtype=np.float32)
    except Exception as error:  # nibabel raises whatever its decoders do
        text = f"{_named(path)}: cannot be read as a NIfTI volume ({type(error).__name__})"
        raise DataError("unreadable", text) from None
    if found.ndim != 3 or not 0 < found.shape[2] <= min(found.shape[:2]):
        expected = "expected axial slices along the third of three axes"
        raise DataError("data", f"{_named(path)}: {expected}, got an array of shape {found.shape}")
    if not np.isfinite(found).all():
        raise DataError("nonfinite", f"{_named(path)}: expected finite numbers")
    return found.T


def _named(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
