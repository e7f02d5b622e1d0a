# SPDX-License-Identifier: Apache-2.0
"""An image file by its header: form, slices, where pixels lie; and by its name: whether it is the mask of which."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from fairflare.data.readers import dicom, nifti
from fairflare.data.readers.datalist import MOST_CONTRASTS, Contrasts, Files, Frame
from fairflare.data.readers.limits import check
from fairflare.data.readers.stored import guarded

NIFTI = (".nii", ".nii.gz")
VOLUMES = (*NIFTI, nifti.NRRD)
FLAT, TIFF = (".png", ".jpg", ".jpeg"), (".tif", ".tiff")
"""Pictures of one slice, and such as may have several pages."""
NATURAL = (*FLAT, *TIFF)
ORIENTATION = 0x0112
"""EXIF's tag; from 5 on rows are columns."""
Form = Literal["picture", "nifti", "dicom"]


@dataclass(frozen=True, eq=False)
class Geometry:
    """Of one 2D slice, its axes in the order in which ``pictures.Reader`` reads them: height, then width in pixels.

    Attributes:
        spacing: millimetres along both axes; None where the file does not say.
        affine: (4, 4) from voxels of the slice as it is stored to RAS; None where there is none.
        shape: of the slice's array as it is stored.
        placed: whether the file says itself where its pixels lie; NIfTI has an affine in any case.
    """

    height: int
    width: int
    channels: int
    spacing: tuple[float, float] | None = None
    affine: np.ndarray | None = None
    shape: tuple[int, ...] = ()
    placed: bool = True


def suffix_of(path: Path) -> str:
    """The name's ending in lower case, ".nii.gz" whole."""
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else path.suffix.lower()


def form_of(path: Path) -> Form:
    """How a file is to be read: by its suffix, and every other name as DICOM, which archives name by numbers."""
    suffix = suffix_of(path)
    return "picture" if suffix in NATURAL else "nifti" if suffix in VOLUMES else "dicom"


def looks_like_image(path: Path) -> bool:
    """Whether a file is one that is read: by its suffix; with any other name where it is DICOM that holds an image."""
    if suffix_of(path) in IMAGES:
        return True
    if path.name.upper() == dicom.DIRECTORY or not dicom.is_dicom(path):
        return False
    return dicom.holds_image(path)


def frames(path: Path) -> int:
    """How many 2D slices a file holds, from its header; raises DataError where that cannot be read.

    Frames of DICOM, places on the last axis of NIfTI, or pages of TIFF; 1 for other pictures.
    """
    form = form_of(path)
    if form == "picture":
        return pages(path) if suffix_of(path) in TIFF else 1
    return nifti.opened(path).frames if form == "nifti" else dicom.frames_in(dicom.header(path))


def pages(path: Path) -> int:
    """Of a TIFF file, from its headers; DataError where they cannot be read or are too many."""
    from PIL import Image

    with guarded(path), Image.open(path) as file:
        n = int(getattr(file, "n_frames", 1))
    check(path.name, frames=n)
    return n


def slices_of(path: Path) -> list[Path | Frame]:
    """The file itself, or each slice of one that holds several; the file, too, where its header cannot be read."""
    try:
        n = frames(path)
    except Exception:  # as in ``geometry_of``
        n = 1
    return [path] if n == 1 else [Frame(path, k) for k in range(n)]


def geometry_of(source: Files) -> Geometry | None:
    """What the header says, of contrasts the first one's; None where it cannot be read. No pixels are decoded."""
    if isinstance(source, Contrasts):
        first = geometry_of(source.parts[0])
        return first and replace(first, channels=len(source.parts))
    path, k = (source.path, source.number) if isinstance(source, Frame) else (source, 0)
    try:
        form = form_of(path)
        return _nifti(path, k) if form == "nifti" else _dicom(path, k) if form == "dicom" else _picture(path, k)
    except Exception:  # decoders raise whatever their libraries do; who reads the pixels says what is wrong
        return None


def _picture(path: Path, k: int) -> Geometry:
    from PIL import Image

    with Image.open(path) as file:
        file.seek(k)
        width, height = file.size if file.getexif().get(ORIENTATION, 1) < 5 else file.size[::-1]
        return Geometry(height, width, len(file.getbands()), shape=(height, width))


def _nifti(path: Path, k: int) -> Geometry:
    found = nifti.opened(path)
    shape, zooms = tuple(map(int, found.image.shape)), found.image.header.get_zooms()
    if found.frames > 1:
        shape = (*shape[:2], 1)
    affine = np.array(found.image.affine)
    affine[:, 3] += k * affine[:, 2]
    spacing = float(zooms[0]), float(zooms[1])
    placed = any(found.image.header[f"{kind}_code"] > 0 for kind in ("sform", "qform"))
    return Geometry(found.height, found.width, found.channels, spacing, affine, shape, placed)


def _dicom(path: Path, k: int) -> Geometry:
    file = dicom.header(path)
    spacing = dicom.group_of(file, k, "PixelMeasuresSequence").get("PixelSpacing")
    edges = None if not spacing else (float(spacing[0]), float(spacing[1]))
    height, width = int(file.Rows), int(file.Columns)
    palette = str(file.PhotometricInterpretation).upper() == dicom.PALETTE
    channels = 3 if palette else int(file.SamplesPerPixel)
    return Geometry(height, width, channels, edges, _dicom_affine(file, k), (height, width))


def _dicom_affine(file: Any, k: int) -> np.ndarray | None:
    """From (row, column) to RAS, by the standard's image plane module; None where a tag is missing."""
    measures = dicom.group_of(file, k, "PixelMeasuresSequence")
    places = (
        (dicom.group_of(file, k, "PlaneOrientationSequence"), "ImageOrientationPatient"),
        (dicom.group_of(file, k, "PlanePositionSequence"), "ImagePositionPatient"),
        (measures, "PixelSpacing"),
    )
    if any(not group.get(name) for group, name in places):
        return None
    orientation, position, spacing = (np.array([float(v) for v in group.get(name)]) for group, name in places)
    along_row, along_column = orientation[:3], orientation[3:]
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = along_column * spacing[0], along_row * spacing[1]
    affine[:3, 2] = np.cross(along_column, along_row) * float(measures.get("SliceThickness") or 1.0)
    affine[:3, 3] = position
    return np.asarray(np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine)


IMAGES = (*NATURAL, *VOLUMES, *dicom.SUFFIXES)
"""Suffixes of images that are read."""
MASK_WORDS = """mask masks label labels labelstr labelsts labelsval seg segs segmentation segmentations gt groundtruth
    ground_truth annotation annotations"""
IMAGE_WORDS = "image images img imgs imagestr imagests imagesval scan scans picture pictures"
FOLDERS = frozenset(MASK_WORDS.split())
IMAGE_FOLDERS = frozenset(IMAGE_WORDS.split())
"""Folder names, in lower case, that say what lies in them and nothing of site or class."""
WORDS = r"(masks?|segs?|segmentations?|labels?|gt|groundtruth|annotations?)"
AFTER = re.compile(rf"(.+?)[_\-. ]{WORDS}(?:[_\-. ]?\d+)?", re.IGNORECASE)
BEFORE = re.compile(r"(masks?|segs?|segmentations?|gt)[_\-. ](.+)", re.IGNORECASE)
IMAGE_AFTER = re.compile(r"(.+?)([_\-. ](image|img)|_0000)", re.IGNORECASE)


CONTRAST = re.compile(
    r"(.+?)[_\-. ](\d{4}|(?:ce|post|pre)?t[12](?:w|c|ce|gd|post|star)?|flair|pdw?|adc|dwi|swi|[tb]\d{3,4}|asl)",
    re.IGNORECASE,
)
"""A file's name without its suffix that ends with a contrast: of MR, or nnU-Net's number of the channel."""
ALIKE = 0.9
"""Share of the images with the same contrasts from which on these are channels."""


def contrasts_in(images: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """First contrast -> all contrasts of the same image, in one order; and files of images that lack one.

    Both are empty unless nearly all images have the same two contrasts or more.
    """
    groups: dict[str, dict[str, str]] = {}
    for path in images:
        match = CONTRAST.fullmatch(stem(path))
        if match and (not match[2].isdigit() or PurePosixPath(path).parent.name.lower() in IMAGE_FOLDERS):
            groups.setdefault(f"{PurePosixPath(path).parent}/{match[1]}", {})[match[2].lower()] = path
    return _whole(groups, images)


def volumes_in(files: Mapping[str, Path]) -> dict[str, Path]:
    """``files`` with one for each series of DICOM, its first."""
    found: dict[tuple[str, str], str] = {}
    for name, path in files.items():
        uid = dicom.told(path, "SeriesInstanceUID") if form_of(path) == "dicom" else None
        found.setdefault((str(path.parent), str(uid)) if uid else ("", str(path)), name)
    return {name: files[name] for name in found.values()}


def series_in(volumes: Mapping[str, Path]) -> tuple[dict[str, list[str]], list[str]]:
    """As ``contrasts_in``, of the DICOM series of a study by their descriptions; ``volumes``: their first files."""
    groups: dict[str, dict[str, str]] = {}
    for name, path in volumes.items():
        study, said = (str(dicom.told(path, key) or "") for key in ("StudyInstanceUID", "SeriesDescription"))
        groups.setdefault(study, {}).setdefault((said or path.parent.name).lower(), name)
    return _whole(groups, list(volumes))


def _whole(groups: Mapping[str, Mapping[str, str]], images: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    sets = Counter(tuple(sorted(own)) for own in groups.values())
    usual, n = sets.most_common(1)[0] if sets else ((), 0)
    if not 2 <= len(usual) <= MOST_CONTRASTS or n < ALIKE * len(groups) or n * len(usual) < ALIKE * len(images):
        return {}, []
    whole = [[own[name] for name in usual] for own in groups.values() if tuple(sorted(own)) == usual]
    return {own[0]: own for own in whole}, sorted({*images} - {path for own in whole for path in own})


def is_mask(path: str) -> bool:
    """Whether folder or name say that the file is a mask."""
    name = stem(path)
    return in_masks(path) or bool(AFTER.fullmatch(name) or BEFORE.fullmatch(name))


def in_masks(path: str) -> bool:
    """Whether a folder says that the file is a mask."""
    return any(folder.lower() in FOLDERS for folder in PurePosixPath(path).parts[:-1])


def folders_of(path: str) -> tuple[str, ...]:
    """The folders that a file lies in, without those that say "images" or "masks"."""
    *folders, _ = PurePosixPath(path).parts
    return tuple(folder for folder in folders if folder.lower() not in FOLDERS | IMAGE_FOLDERS)


def pairs(images: Sequence[str], contrasts: bool = False) -> tuple[dict[str, str], list[str]]:
    """Image -> its mask, "" where it has none; and masks without an image, or with one that has another.

    A mask has its image's name, with a word such as "_mask" or in a folder such as "masks"; where images are the first
    of several ``contrasts``, their name without the contrast.
    """
    masks = {_key(path): path for path in reversed(images) if is_mask(path)}
    found = {path: masks.get(_key(path, contrasts), "") for path in images if not is_mask(path)}
    return found, sorted({path for path in images if is_mask(path)} - set(found.values()))


def masks_beside(images: Sequence[str], contrasts: bool = False) -> set[str]:
    """Masks whose image is there, all of one that has several; arguments as of ``pairs``."""
    keys = {_key(path, contrasts) for path in images if not is_mask(path)}
    return {path for path in images if is_mask(path) and _key(path) in keys}


def _key(path: str, contrasts: bool = False) -> tuple[tuple[str, ...], str]:
    name, of_images = stem(path), (CONTRAST if contrasts else IMAGE_AFTER, IMAGE_AFTER)
    for pattern, group in ((AFTER, 1), (BEFORE, 2), *((one, 1) for one in of_images)):
        match = pattern.fullmatch(name)
        if match and (pattern in of_images or is_mask(path)):
            name = match[group]
            break
    return folders_of(path), name.lower()


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGES)


def stem(path: str) -> str:
    """The file's name without its suffix, ".nii.gz" as a whole."""
    name = PurePosixPath(path).name
    return name[: -len(next((end for end in (".nii.gz", *IMAGES) if name.lower().endswith(end)), "")) or None]
