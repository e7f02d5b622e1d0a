# SPDX-License-Identifier: Apache-2.0
"""Slices of NIfTI and NRRD files, read alone and not before the header has been found to be one that can be."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from fairflare.core.errors import DataError
from fairflare.core.extras import need
from fairflare.core.validation import shown
from fairflare.data.readers import stored
from fairflare.data.readers.limits import LIMITS, check

SIZES = {348: "Nifti1Header", 540: "Nifti2Header"}
"""Bytes of a header -> nibabel's class."""
MOST_HEADER = 2**24
"""Bytes before the first voxel, extensions with them."""
MOST_PACKED = 1032
"""Times that deflate can shrink."""
NRRD, MOST_TEXT = ".nrrd", 2**20
"""Ending of the name; bytes of such a file's header."""
TO_RAS = {
    "left-posterior-superior": (-1, -1, 1),
    "right-anterior-superior": (1, 1, 1),
    "left-anterior-superior": (-1, 1, 1),
}
"""Space of an NRRD file -> signs of its axes; "LPS" and the like are short for them."""
GZIP = 16 + zlib.MAX_WBITS
ITEM = 8
"""Bytes of the largest number in an NRRD file."""


class Checked(NamedTuple):
    """A sound file: nibabel's image, of which no voxel has been read, and its voxels on three axes and in channels."""

    image: Any
    height: int
    width: int
    frames: int
    channels: int


def checked(path: Path) -> Any:
    """nibabel's image, of which no voxel has been read; DataError "unreadable" where its header cannot be."""
    with stored.guarded(path):
        if path.suffix.lower() == NRRD:
            return _nrrd(path)
        _check(path)
        return _nibabel().load(path)


def opened(path: Path) -> Checked:
    """What the header says; no voxel is read.

    DataError "unreadable" for a header that is damaged, too large, or says more than the file can hold; "not_2d" where
    slices lie along more than one axis.
    """
    image = checked(path)
    shape = [int(n) for n in image.shape]
    while len(shape) > 2 and shape[-1] == 1:
        shape.pop()
    if len(shape) == 2:
        shape.append(1)
    channels = shape[3] if len(shape) == 4 and shape[2] == 1 else 1
    if not (len(shape) == 3 or (len(shape) == 4 and 1 < channels <= 4)):
        raise DataError("not_2d", f"{path.name}: expected one 2D slice, got an array of shape {image.shape}")
    check(path.name, pixels=math.prod(shape[:2]) * channels, frames=shape[2])
    return Checked(image, shape[0], shape[1], shape[2], channels)


def axes(image: Any) -> list[int]:
    """Voxels of nibabel's ``image`` along each axis in space, and last the contrasts on the fourth, 1 or more."""
    shape = [int(n) for n in image.shape]
    while len(shape) > 3 and shape[-1] == 1:
        shape.pop()
    return shape if len(shape) > 3 else [*shape, 1]


def read(path: Path, frame: int | None = None, *, window: str = "") -> stored.Stored:
    """One slice along the last axis, number ``frame`` from 0; of a file with one slice it need not be named.

    The window "file" scales by the header's cal_min and cal_max, DataError "unreadable" where it has none; else the
    errors of ``opened``, and "nonfinite".
    """
    found = opened(path)
    k = stored.chosen_frame(path, frame, found.frames)
    ndim = len(found.image.shape)
    place: list[Any] = [slice(None), slice(None), k, *([slice(None)] if found.channels > 1 else [])][:ndim]
    at = tuple(place + [0] * (ndim - len(place)))
    with stored.guarded(path):
        pixels = np.asarray(found.image.dataobj[at])
    pixels = np.moveaxis(pixels, -1, 0) if found.channels > 1 else pixels[None]
    values = stored.finite(path, pixels[: {4: 3, 2: 1}.get(len(pixels), len(pixels))])
    if window != "file":
        return stored.Stored(values)
    low, high = (float(found.image.header[name]) for name in ("cal_min", "cal_max"))
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise stored.unreadable(path, "window=file, and its header has none: no cal_min below cal_max")
    scaled = np.clip((values.astype(np.float64) - low) / (high - low), 0, 1) * 255
    return stored.Stored(scaled.astype(np.float32), natural=True)


def values_in(path: Path) -> np.ndarray:
    """The different values other than 0 of all slices, in parts that memory holds; errors as of ``read``."""
    found = opened(path)
    step = max(1, LIMITS.pixels // (found.height * found.width))
    values: list[np.ndarray] = []
    for k in range(0, found.frames, step):
        with stored.guarded(path):
            voxels = np.asarray(found.image.dataobj[:, :, k : k + step])
        values.append(np.unique(voxels[voxels != 0]))
    return stored.finite(path, np.unique(np.concatenate(values)))


def _check(path: Path) -> None:
    """Raise WrongHeaderError unless dimensions, type, scaling and extensions are what the file can hold."""
    packed = path.name.lower().endswith(".gz")
    with gzip.open(path, "rb") if packed else path.open("rb") as file:
        start = file.read(max(SIZES))
        size = next((n for n in SIZES if start[:4] in (n.to_bytes(4, "little"), n.to_bytes(4, "big"))), 0)
        if not size:
            raise stored.WrongHeaderError("no NIfTI header")
        head = getattr(_nibabel(), SIZES[size]).from_fileobj(io.BytesIO(start[:size]))
        _check_numbers(path, head, packed)
        if len(start) > size and start[size]:
            _check_extensions(head, file, size + 4)


def _check_numbers(path: Path, head: Any, packed: bool) -> None:
    shape, dtype = [int(n) for n in head.get_data_shape()], head.get_data_dtype()
    offset, slope, shift = (float(head[name]) for name in ("vox_offset", "scl_slope", "scl_inter"))
    if not shape or min(shape) < 1:
        raise stored.WrongHeaderError(f"a header of {'x'.join(map(str, shape)) or 'no'} voxels")
    if dtype.kind not in "iuf":
        voxels = f"voxels of type {dtype.kind}{8 * dtype.itemsize}"
        raise stored.WrongHeaderError(f"{voxels}; expected whole or real numbers")
    if not 0 <= offset <= MOST_HEADER:
        raise stored.WrongHeaderError(f"a header of {offset:g} bytes")
    if math.isinf(slope) or (slope and not math.isnan(slope) and not math.isfinite(shift)):
        raise stored.WrongHeaderError(f"scl_slope {slope:g}, scl_inter {shift:g}; expected finite numbers")
    held = path.stat().st_size * (MOST_PACKED if packed else 1)
    if (told := int(offset) + math.prod(shape) * dtype.itemsize) > held:
        most = f"can hold {held}" if packed else f"has {held}"
        raise stored.WrongHeaderError(f"{'x'.join(map(str, shape))} voxels are {told} bytes, the file {most}")
    check(path.name, voxels=told)


def _check_extensions(head: Any, file: BinaryIO | gzip.GzipFile, start: int) -> None:
    """Each says its own length, which nibabel believes."""
    end = int(head["vox_offset"])
    order: Literal["little", "big"] = "little" if head.endianness == "<" else "big"
    while end - start >= 16:
        file.seek(start)
        length = int.from_bytes(file.read(4), order, signed=True)
        if not 16 <= length <= end - start:
            raise stored.WrongHeaderError(f"a header extension of {length} bytes where {end - start} are left")
        start += length


def _nrrd(path: Path) -> Any:
    """An NRRD file as an image of nibabel."""
    head, start = _nrrd_header(path)
    space, directions = str(head.get("space", "")).lower(), np.asarray(head.get("space directions", ()), dtype=float)
    short = {"".join(word[0] for word in name.split("-")): name for name in TO_RAS}
    signs = TO_RAS.get(short.get(space, space), ())
    placed, affine = bool(signs) and directions.shape == (3, 3), np.eye(4)
    if placed:
        origin = np.asarray(head.get("space origin", np.zeros(3)), dtype=float)
        affine[:3] = np.diag(signs) @ np.column_stack((directions.T, origin))
    else:
        edges = np.asarray(head.get("spacings", ()), dtype=float)[:3]
        affine[range(len(edges)), range(len(edges))] = edges
    image = _nibabel().Nifti1Image(_Voxels(path, tuple(map(int, head["sizes"])), start), affine)
    for kind in ("sform_code", "qform_code") if not placed else ():
        image.header[kind] = 0
    return image


def _nrrd_header(path: Path) -> tuple[dict[str, Any], int]:
    """What pynrrd reads of it, checked; and where the voxels begin."""
    import nrrd

    with path.open("rb") as file:
        text = file.read(MOST_TEXT)
    ends = [place + len(end) for end in (b"\n\n", b"\r\n\r\n") if (place := text.find(end)) >= 0]
    if not ends:
        raise stored.WrongHeaderError("no end of its header")
    head = nrrd.read_header(io.BytesIO(text[: min(ends)]))
    sizes, kinds = [int(n) for n in head["sizes"]], {*map(str, head.get("kinds", ()))}
    if len(sizes) > 3 or not kinds <= {"domain", "space", "none", "???"}:
        segments = "; overlapping segments of 3D Slicer: export them as a labelmap" if "list" in kinds else ""
        raise stored.WrongHeaderError(
            f"{len(sizes)} axes of {shown(', '.join(sorted(kinds)))}; expected axes in space{segments}"
        )
    if not sizes or min(sizes) < 1:
        raise stored.WrongHeaderError(f"a header of {'x'.join(map(str, sizes)) or 'no'} voxels")
    odd = [one for one in ("data file", "datafile", "line skip", "lineskip", "byte skip", "byteskip") if head.get(one)]
    if odd or head.get("encoding") not in ("raw", "gzip", "gz"):
        what = odd[0] if odd else shown(head.get("encoding"))
        raise stored.WrongHeaderError(f"{what}; expected one file, raw or gzip")
    check(path.name, voxels=(told := math.prod(sizes)) * ITEM)
    held = (path.stat().st_size - min(ends)) * (1 if head["encoding"] == "raw" else MOST_PACKED)
    if told > held:
        raise stored.WrongHeaderError(f"{'x'.join(map(str, sizes))} voxels, and the file can hold {held} bytes")
    return dict(head), min(ends)


def segments_in(path: Path) -> dict[int, str]:
    """Voxel value -> structure, as 3D Slicer writes them into an NRRD file; {} of any other file."""
    if path.suffix.lower() != NRRD:
        return {}
    with stored.guarded(path):
        head, _ = _nrrd_header(path)
        keys = [key.removesuffix("_LabelValue") for key in head if key.endswith("_LabelValue")]
        return {int(head[f"{key}_LabelValue"]): str(head.get(f"{key}_Name", key)).replace(",", " ") for key in keys}


class _Voxels:
    """The voxels of an NRRD file for nibabel, which asks for them when they are needed."""

    is_proxy, dtype = True, np.dtype(np.float64)

    def __init__(self, path: Path, shape: tuple[int, ...], start: int) -> None:
        self.path, self.shape, self.ndim, self.start = path, shape, len(shape), start

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = _nrrd_voxels(self.path, self.start, self.path.stat().st_mtime_ns)
        return found if dtype is None else found.astype(dtype)

    def __getitem__(self, place: Any) -> Any:
        return np.asarray(self)[place]


@lru_cache(maxsize=1)
def _nrrd_voxels(path: Path, start: int, written: int) -> np.ndarray:
    """All voxels, of which no more are unpacked than the header says; kept, as slices are asked for one by one."""
    import nrrd

    head, _ = _nrrd_header(path)
    with path.open("rb") as file:
        file.seek(start)
        most = math.prod(map(int, head["sizes"])) * ITEM
        packed = head["encoding"] != "raw"
        content = zlib.decompressobj(GZIP).decompress(file.read(), most) if packed else file.read(most)
    found = np.asarray(nrrd.read_data({**head, "encoding": "raw"}, io.BytesIO(content)))
    found.flags.writeable = False
    return found


@cache
def _nibabel() -> Any:
    import logging

    need("images", "NIfTI")
    import nibabel

    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)  # it prints what it then raises
    return nibabel
