# SPDX-License-Identifier: Apache-2.0
"""Predicted structures as a mask file in the geometry of the image that they were found in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.data.readers.datalist import Frame, file_of
from fairflare.data.readers.geometry import NIFTI, Geometry, suffix_of

SMALLEST = 1e-12
SUFFIX = re.compile(r"(\.nii\.gz|\.nii|\.png|\.jpe?g|\.dcm|\.dicom)?(?:\[(\d+)\])?$", re.IGNORECASE)
"""The end of an image's name, with the slice in a file of several."""


def mask_stem(image: str) -> str:
    """What the name of an image's mask begins with: "a" of "a.png", "a_3" of "a.nii.gz[3]"."""
    return SUFFIX.sub(lambda found: f"_{found[2]}" if found[2] else "", image, count=1)


def ending(image: Path | Frame, place: Geometry) -> str:
    """What a mask of the image is called: NIfTI where the image has an affine, else PNG."""
    suffix = suffix_of(file_of(image))
    return suffix if suffix in NIFTI else ".nii.gz" if place.affine is not None else ".png"


def restored(probabilities: Tensor, height: int, width: int) -> Tensor:
    """(C, S, S) -> (C, height, width): resampled bilinearly; the very same numbers where the size is the same."""
    if probabilities.shape[1:] == (height, width):
        return probabilities
    smaller = height < probabilities.shape[1] or width < probabilities.shape[2]
    found = F.interpolate(probabilities[None], (height, width), mode="bilinear", antialias=smaller, align_corners=False)
    return found[0].clamp(0, 1)


def pixel_values(
    probabilities: Tensor,
    thresholds: Sequence[float],
    values: Mapping[str, Sequence[int]],
    background: Sequence[int],
    largest: bool,
) -> np.ndarray:
    """(H, W): the value that says which structures are at a pixel, as training masks say it.

    Args:
        probabilities: (C, H, W), in the order of ``values``.
        thresholds: C, in (0, 1]: a structure is there above 0.5, or from another threshold on.
        values: structure -> the pixel values that belong to it.
        background: pixel values of no structure.
        largest: of several values that say the same the largest (255, to be seen) or the first.

    Returns:
        uint8, or uint16 with values above 255. Where no value says what was found (two structures that no mask of the
        training has in one place), the one that fits the probabilities best.
    """
    codes: dict[tuple[bool, ...], list[int]] = {}
    for value in [*background, *(v for group in values.values() for v in group)]:
        codes.setdefault(tuple(value in group for group in values.values()), []).append(value)
    margins = torch.stack([_margin(p, t) for p, t in zip(probabilities.double(), thresholds, strict=True)])
    kinds = list(codes)
    fits = torch.stack([margins[list(kind)].sum(0) if any(kind) else torch.zeros_like(margins[0]) for kind in kinds])
    chosen = [(max if largest else min)(codes[kind]) for kind in kinds]
    return np.array(chosen, dtype=np.uint8 if max(chosen) < 256 else np.uint16)[fits.argmax(0).numpy()]


def _margin(p: Tensor, threshold: float) -> Tensor:
    """Above 0 where a structure is flagged; at 0.5 itself it is not, as in the metric."""
    if threshold == 0.5:
        return torch.logit(p, SMALLEST)
    found = torch.logit(p, SMALLEST) - torch.logit(torch.tensor(threshold, dtype=p.dtype), SMALLEST)
    return torch.where((p >= threshold) & (found <= 0), torch.full_like(found, SMALLEST), found)


def write_mask(path: Path, mask: np.ndarray, image: Path | Frame, place: Geometry) -> None:
    """Write ``mask`` (H, W) with the image's size, spacing and affine."""
    if path.suffix == ".png":
        from PIL import Image

        Image.fromarray(mask).save(path)
        return
    import nibabel

    if suffix_of(file_of(image)) in NIFTI:
        source: Any = nibabel.load(file_of(image))
        shape = place.shape[:2] if len(place.shape) == 2 or place.shape[2] != 1 else place.shape[:3]
        made = nibabel.Nifti1Image(mask.reshape(shape), place.affine)
        made.header.set_xyzt_units(*source.header.get_xyzt_units())
        for kind in ("sform", "qform"):
            getattr(made, f"set_{kind}")(place.affine, int(source.header[f"{kind}_code"]))
    else:
        made = nibabel.Nifti1Image(mask[..., None], place.affine)
    nibabel.save(made, path)
