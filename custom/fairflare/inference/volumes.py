# SPDX-License-Identifier: Apache-2.0
"""New volumes: predicted on the run's grid, and their masks written where the files' own voxels lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.types import Batch
from fairflare.data.readers.dicom import series_of
from fairflare.data.readers.geometry import NIFTI, form_of, suffix_of
from fairflare.data.readers.volumes import Volume, VolumeReader, placed_as
from fairflare.data.tensors import as_float, normalised
from fairflare.inference.apply import pixel_values
from fairflare.inference.loaded_run import Opened

Masked = tuple[Path, Tensor, Volume]
"""A file, its structures' probabilities float32 (C, X, Y, Z) at its own voxels, and the volume as it is stored."""


def whole(files: Mapping[str, Path]) -> dict[str, Path]:
    """``files`` with one for each series of DICOM, its first."""
    found: dict[tuple[str, str], str] = {}
    for name, path in files.items():
        uid = series_of(path) if form_of(path) == "dicom" else None
        found.setdefault((str(path.parent), uid) if uid else ("", str(path)), name)
    return {name: files[name] for name in found.values()}


def batches_of(opened: Opened, files: Sequence[Path]) -> Callable[[], Iterator[Batch]]:
    """Volumes as the network takes them, one at a time."""
    inputs = opened.task.image_inputs()
    assert inputs is not None and isinstance(inputs.reader, VolumeReader)  # the caller has looked
    reader, mean, std = inputs.reader, inputs.mean, inputs.std

    def batches() -> Iterator[Batch]:
        for path in files:
            ready = normalised(as_float(reader.image(path)[None]), mean, std)
            yield Batch(ready, torch.zeros(1, dtype=torch.int64), torch.full((1,), -1))

    return batches


def at_home(reader: VolumeReader, path: Path, probabilities: Tensor) -> Masked:
    """Probabilities (C, *grid) at the file's own voxels, linearly between the grid's; 0 beyond it."""
    from monai.transforms import SpatialResample

    grid, found = reader.placed(path)
    affine = torch.from_numpy(found.affine)
    back = SpatialResample(mode="bilinear", padding_mode="zeros", dtype=np.float32)
    moved = back(
        placed_as(probabilities, grid.affine.numpy()), dst_affine=affine, spatial_size=found.stored.pixels.shape
    )
    return path, torch.as_tensor(moved).clamp(0, 1), found


def ending(path: Path) -> str:
    """What a mask's name ends in."""
    suffix = suffix_of(path)
    return suffix if suffix in NIFTI else ".nii.gz"


def write_mask(target: Path, masked: Masked, thresholds: Sequence[float], reader: VolumeReader) -> None:
    """Write a mask with the shape, affine and codes of the file that it is of; of DICOM in the series' own order."""
    import nibabel

    path, probabilities, found = masked
    values = pixel_values(probabilities, thresholds, reader.values or {}, reader.background, largest=False)
    made = nibabel.Nifti1Image(values, found.affine)
    if suffix_of(path) in NIFTI:
        source: Any = nibabel.load(path)
        made = nibabel.Nifti1Image(values.reshape(source.shape), source.affine)
        made.header.set_xyzt_units(*source.header.get_xyzt_units())
        for kind in ("sform", "qform"):
            getattr(made, f"set_{kind}")(source.affine, int(source.header[f"{kind}_code"]))
    nibabel.save(made, target)
