# SPDX-License-Identifier: Apache-2.0
"""Slices of DICOM files as their headers say they are meant: photometric interpretation, rescale, window, colours."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.extras import need
from fairflare.data.readers import stored
from fairflare.data.readers.formats import unread
from fairflare.data.readers.limits import check

SUFFIXES = (".dcm", ".dicom")
DIRECTORY = "DICOMDIR"
"""The name of an archive's table of contents, which is DICOM and no image."""
DEFERRED = 2**20
"""Bytes from which on an element of a header is not read."""
MOST_DEFLATED = 2**20
"""Bytes of a file that is deflated as a whole, which pydicom unpacks at once."""
GREY = ("MONOCHROME1", "MONOCHROME2")
PALETTE = "PALETTE COLOR"
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
WIDEST = 1e12
"""Of rescaled values and windows."""


def is_dicom(path: Path) -> bool:
    """Whether the file begins as DICOM does: "DICM" after 128 bytes, whatever it is called."""
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def holds_image(path: Path) -> bool:
    """Whether a DICOM file says that it has pixels; reports, presentation states and contours have none."""
    return bool(told(path, "Rows"))


def told(path: Path, name: str) -> Any:
    """The attribute ``name`` of a file's header; None where it does not say, or cannot be read."""
    try:
        found = pydicom_quietly().dcmread(path, stop_before_pixels=True, defer_size=DEFERRED, specific_tags=[name])
        return found.get(name)
    except Exception:  # pydicom raises whatever it meets
        return None


def header(path: Path) -> Any:
    """The pydicom dataset without its pixels; DataError "unreadable": no DICOM, no image, or too many pixels."""
    if what := unread(path.name):
        raise stored.unreadable(path, what)
    with stored.guarded(path):
        pydicom = pydicom_quietly()
        meta, size = pydicom.filereader.read_file_meta_info(path), path.stat().st_size
        if meta.get("TransferSyntaxUID") == pydicom.uid.DeflatedExplicitVRLittleEndian and size > MOST_DEFLATED:
            raise stored.WrongHeaderError("deflated as a whole; unpack it, e.g. with dcmconv")
        found = pydicom.dcmread(path, stop_before_pixels=True, defer_size=DEFERRED)
        rows, columns, samples = (int(found.get(name) or 0) for name in ("Rows", "Columns", "SamplesPerPixel"))
        bits, many, samples = int(found.get("BitsAllocated") or 0), frames_in(found), samples or 1
        if not rows or not columns:
            modality = str(found.get("Modality") or "unknown")[:16]
            raise stored.WrongHeaderError(f"DICOM without an image, modality {modality}")
        check(path.name, pixels=rows * columns * samples, frames=many)
        if min(rows, columns, many) < 1 or samples not in (1, 3):
            raise stored.WrongHeaderError(f"a header of {many} x {rows} x {columns} pixels with {samples} values each")
        told, syntax = rows * columns * samples * many * bits // 8, meta.get("TransferSyntaxUID")
        if syntax is None:
            raise stored.WrongHeaderError("its header names no transfer syntax")
        if not (syntax.is_compressed or syntax.is_deflated) and told > size:
            raise stored.WrongHeaderError(f"{many} x {rows} x {columns} pixels are {told} bytes, the file has {size}")
        return found


def frames_in(found: Any) -> int:
    return int(found.get("NumberOfFrames") or 1)


def read(path: Path, frame: int | None = None, *, window: str = "", mask: bool = False) -> stored.Stored:
    """One slice, number ``frame`` from 0; of a file with one it need not be named.

    Greater values are brighter: MONOCHROME1 is turned round, but for Hounsfield units, which mean the same however they
    are to be shown. Grey values are rescaled; colours come as RGB on 0 to 255, from palettes too.

    The window "file" applies the file's own VOI LUT or its first window; a ``mask`` is neither turned round nor
    windowed. DataError "unreadable" (with the compression and the package to install, where one is missing), "not_2d",
    "nonfinite".
    """
    found = header(path)
    with stored.guarded(path):
        return _slice(path, found, stored.chosen_frame(path, frame, frames_in(found)), window == stored.FILE, mask)


def _slice(path: Path, found: Any, k: int, windowed: bool, mask: bool) -> stored.Stored:
    photometric = str(found.get("PhotometricInterpretation") or "").upper()
    if photometric not in (*GREY, PALETTE, *COLOURS):
        raise stored.WrongHeaderError(f"photometric interpretation {photometric[:20] or 'missing'}")
    pixels = _decoded(path, found, k)
    if pixels.ndim != (3 if photometric in COLOURS else 2):
        raise stored.WrongHeaderError(f"{photometric} with {found.get('SamplesPerPixel')} values a pixel")
    if photometric not in GREY and not (mask and pixels.ndim == 2):
        return stored.Stored(stored.finite(path, _coloured(found, pixels, photometric)), natural=True)
    hounsfield = _is_hounsfield(found, k)
    inverted = photometric == "MONOCHROME1" and not hounsfield and not mask
    pixels = _unpadded(found, pixels, np.max if inverted else np.min) if not mask else pixels
    pixels = pixels.astype(np.int64) if pixels.dtype.kind in "iub" else pixels
    if windowed and not mask:
        shown = _shown(found, k, pixels)
        return stored.Stored(stored.finite(path, 255 - shown if inverted else shown)[None], natural=True)
    table = found.ModalityLUTSequence[0] if found.get("ModalityLUTSequence") else None
    if inverted and not table:
        pixels = (-1 if found.PixelRepresentation else 2 ** int(found.BitsStored) - 1) - pixels
    values = _rescaled(found, k, pixels)
    if inverted and table:  # which is of pixels as stored, so that what it gives is turned round, within its range
        n, first, _ = table.LUTDescriptor
        held = _rescaled(found, k, first + np.arange(n or 2**16))
        values = held.max() + held.min() - values
    return stored.Stored(stored.finite(path, values)[None], hounsfield=hounsfield)


def _unpadded(found: Any, pixels: np.ndarray, darkest: Callable[[np.ndarray], Any]) -> np.ndarray:
    """``pixels``, those of PixelPaddingValue (to its limit), where nothing was measured, as dark as the darkest."""
    ends = [found.get(name) for name in ("PixelPaddingValue", "PixelPaddingRangeLimit")]
    ends = [np.asarray(end).astype(pixels.dtype) for end in ends if isinstance(end, int)]
    padded = (pixels >= min(ends)) & (pixels <= max(ends)) if ends else np.zeros(pixels.shape, dtype=bool)
    return np.where(padded, darkest(pixels[~padded]), pixels) if padded.any() and not padded.all() else pixels


def _decoded(path: Path, found: Any, frame: int) -> np.ndarray:
    """(H, W) or (H, W, 3) of frame number ``frame`` alone."""
    from pydicom.pixels import get_decoder, pixel_array

    syntax = found.file_meta.TransferSyntaxUID
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise stored.WrongHeaderError(f"its compression is not read: {syntax.name[:60]}") from None
    missing = stored.WrongHeaderError(f"compressed as {syntax.name}; to read it: pip install {_packages(syntax.name)}")
    if not decoder.is_available:
        raise missing
    try:
        return np.asarray(pixel_array(path, index=frame))
    except RuntimeError:
        if syntax.is_encapsulated and decoder.missing_dependencies:
            raise missing from None  # another of pydicom's decoders may know this kind: 12 bits, lossless
        raise


def _packages(name: str) -> str:
    return f"pylibjpeg pylibjpeg-{'openjpeg' if '2000' in name else 'rle' if 'RLE' in name else 'libjpeg'}"


def _coloured(found: Any, pixels: np.ndarray, photometric: str) -> np.ndarray:
    """(3, H, W) on 0 to 255."""
    from pydicom.pixels import apply_color_lut

    bits = int(found.BitsStored)
    if photometric == PALETTE:
        pixels = apply_color_lut(pixels, found)
        bits = 8 * pixels.dtype.itemsize
    return np.asarray(np.moveaxis(pixels[..., :3], -1, 0) * (255 / (2**bits - 1)))


def group_of(found: Any, frame: int, name: str) -> Any:
    """What holds attributes of a frame: its functional group of this ``name``, the shared one, or the file itself."""
    per_frame = found.get("PerFrameFunctionalGroupsSequence") or []
    shared = found.get("SharedFunctionalGroupsSequence") or []
    for group in (*per_frame[frame : frame + 1], *shared[:1]):
        if inner := group.get(name):
            return inner[0]
    return found


def _is_hounsfield(found: Any, frame: int) -> bool:
    group = group_of(found, frame, "PixelValueTransformationSequence")
    if str(found.get("Modality")) != "CT" or group.get("RescaleIntercept") is None:
        return False
    return str(group.get("RescaleType") or "HU").upper() == "HU"


def _rescaled(found: Any, frame: int, pixels: np.ndarray) -> np.ndarray:
    """float64 (H, W): the values that stored ones stand for, by the modality's table or slope and intercept."""
    from pydicom.pixels import apply_modality_lut

    if found.get("ModalityLUTSequence"):
        return np.asarray(apply_modality_lut(pixels, found), dtype=np.float64)
    group = group_of(found, frame, "PixelValueTransformationSequence")
    slope, intercept = (_number(group, name, usual) for name, usual in (("RescaleSlope", 1), ("RescaleIntercept", 0)))
    if not slope:
        raise stored.WrongHeaderError("RescaleSlope 0")
    return np.asarray(pixels * slope + intercept, dtype=np.float64)


def _number(group: Any, name: str, usual: float) -> float:
    value = group.get(name)
    found = float(usual if value is None or value == "" else value)
    if not math.isfinite(found) or abs(found) > WIDEST:
        raise stored.WrongHeaderError(f"{name} {found:g}")
    return found


def _shown(found: Any, frame: int, pixels: np.ndarray) -> np.ndarray:
    """(H, W) on 0 to 255, as the file's own VOI LUT or first window shows it (DICOM PS3.3, C.11.2)."""
    from pydicom.pixels import apply_voi

    values = _rescaled(found, frame, pixels)
    if found.get("VOILUTSequence"):
        bits = int(found.VOILUTSequence[0].LUTDescriptor[2])
        return np.asarray(apply_voi(np.round(values).astype(np.int64), found) * (255 / (2**bits - 1)))
    group = group_of(found, frame, "FrameVOILUTSequence")
    centre, width = (_first(group.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None or not 0 < width <= WIDEST or not abs(centre) <= WIDEST:
        raise stored.WrongHeaderError("window=file, and its header has none")
    function = str(group.get("VOILUTFunction") or "LINEAR").upper()
    if function == "SIGMOID":
        return np.asarray(255 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -500, 500))))
    if function == "LINEAR":
        centre, width = centre - 0.5, max(width - 1, 1e-6)
    return np.asarray(np.clip((values - centre) / width + 0.5, 0, 1) * 255)


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    return float(value[0] if hasattr(value, "__len__") else value)


@cache
def pydicom_quietly() -> Any:
    """The module pydicom, which from then on says nothing of small faults in headers."""
    import logging
    import warnings

    need("images", "DICOM")
    import pydicom
    import pydicom.filereader

    # Small faults of headers are usual, and a warning for each would be thousands of lines.
    logging.getLogger("pydicom").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pydicom")
    return pydicom
