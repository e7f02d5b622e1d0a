# SPDX-License-Identifier: Apache-2.0
"""Where an image file's pixels lie: size, channels, spacing and affine, read from its header."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NIFTI = (".nii", ".nii.gz")
DICOM = (".dcm", ".dicom", "")


@dataclass(frozen=True, eq=False)
class Geometry:
    """Of one 2D slice, its axes in the order in which ``pictures.Reader`` reads them.

    Attributes:
        height: pixels along the first axis.
        width: along the second.
        channels: of each pixel.
        spacing: millimetres along both axes; None where the file does not say.
        affine: (4, 4) from voxels of the file as it is stored to RAS; None where there is none.
        shape: of the file's array as it is stored.
    """

    height: int
    width: int
    channels: int
    spacing: tuple[float, float] | None = None
    affine: np.ndarray | None = None
    shape: tuple[int, ...] = ()


def suffix_of(path: Path) -> str:
    """The name's ending in lower case, ".nii.gz" whole."""
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else path.suffix.lower()


def geometry_of(path: Path) -> Geometry | None:
    """What the header says; None where it cannot be read. No pixels are decoded."""
    try:
        suffix = suffix_of(path)
        return _nifti(path) if suffix in NIFTI else _dicom(path) if suffix in DICOM else _picture(path)
    except Exception:  # decoders raise whatever their libraries do; who reads the pixels says what is wrong
        return None


def _picture(path: Path) -> Geometry:
    from PIL import Image

    with Image.open(path) as file:
        width, height = file.size
        return Geometry(height, width, len(file.getbands()), shape=(height, width))


def _nifti(path: Path) -> Geometry:
    import nibabel

    image: Any = nibabel.load(path)
    shape, zooms = tuple(map(int, image.shape)), image.header.get_zooms()
    channels = shape[2] if len(shape) == 3 else 1
    return Geometry(shape[0], shape[1], channels, (float(zooms[0]), float(zooms[1])), np.array(image.affine), shape)


def _dicom(path: Path) -> Geometry:
    import pydicom

    file = pydicom.dcmread(path, stop_before_pixels=True)
    spacing = getattr(file, "PixelSpacing", None)
    edges = None if spacing is None else (float(spacing[0]), float(spacing[1]))
    height, width = int(file.Rows), int(file.Columns)
    return Geometry(height, width, int(file.SamplesPerPixel), edges, _dicom_affine(file), (height, width))


def _dicom_affine(file: Any) -> np.ndarray | None:
    """From (row, column) to RAS, by the standard's image plane module; None where a tag is missing."""
    names = ("ImageOrientationPatient", "ImagePositionPatient", "PixelSpacing")
    if any(getattr(file, name, None) is None for name in names):
        return None
    orientation, position, spacing = (np.array([float(v) for v in getattr(file, name)]) for name in names)
    along_row, along_column = orientation[:3], orientation[3:]
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = along_column * spacing[0], along_row * spacing[1]
    affine[:3, 2] = np.cross(along_column, along_row) * float(getattr(file, "SliceThickness", None) or 1.0)
    affine[:3, 3] = position
    return np.asarray(np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine)
