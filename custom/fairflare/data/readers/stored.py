# SPDX-License-Identifier: Apache-2.0
"""What an image file holds, before it is scaled; and the windows that values without a natural range are scaled by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairflare.core.errors import DataError, UserError

FILE, PERCENTILES = "file", "percentiles"
"""Windows that are no numbers: the file's own, and one of each image's."""
LOW, HIGH = 0.5, 99.5
"""Percentiles of an image that it is scaled between where nothing says what its values mean."""
BEYOND = 1e30
"""Size of a pixel that nothing measures, and that differences of float32 need room above."""
HOUNSFIELD = (-1000.0, 1000.0)
"""From air to bone: what CT is scaled between where neither user nor plan has chosen a window."""


@dataclass(frozen=True, eq=False)
class Stored:
    """One 2D slice.

    Attributes:
        pixels: float32 (C, H, W) with C of 1 or 3, brighter where larger; of a mask its values.
        natural: whether they lie on 0 to 255, as in a photograph.
        hounsfield: whether they are Hounsfield units.
    """

    pixels: np.ndarray
    natural: bool = False
    hounsfield: bool = False

    def scaled(self, window: str = "") -> np.ndarray:
        """float32 (C, H, W) from 0 to 255; natural values are left alone.

        ``window`` is "CENTRE,WIDTH", "file" (which the file's reader has applied), "percentiles", or "": Hounsfield
        units between fixed ends and everything else between its own percentiles.
        """
        if self.natural:
            return self.pixels
        ends = ends_of(window)
        if ends is None and window != PERCENTILES and self.hounsfield:
            ends = HOUNSFIELD
        if ends is None:
            above = self.pixels - self.pixels.min()  # so that a constant that is added changes no rounding
            low, high = np.percentile(above, (LOW, HIGH))
            return np.asarray(np.clip((above - low) / max(high - low, 1e-6), 0, 1) * 255)
        return np.asarray(np.clip((self.pixels - ends[0]) / (ends[1] - ends[0]), 0, 1) * 255, dtype=np.float32)


def ends_of(window: str) -> tuple[float, float] | None:
    """Lowest and highest value of "CENTRE,WIDTH"; None for "", "file" and "percentiles"; UserError for other text."""
    if window in ("", FILE, PERCENTILES):
        return None
    try:
        centre, width = (float(part) for part in window.split(","))
    except ValueError:
        centre = width = math.nan
    if not (math.isfinite(centre) and 0 < width <= 1e9 and abs(centre) <= 1e9):
        text = f"expected CENTRE,WIDTH as in 40,400, or {FILE}, or {PERCENTILES}"
        raise UserError(f"window: {text}; got {window[:40]!r}")
    return centre - width / 2, centre + width / 2


def unreadable(path: Path, why: str) -> DataError:
    """The error for a file that is damaged, too large, or says of itself what cannot be."""
    return DataError("unreadable", f"{path.name}: cannot be read as an image ({why})")


def in_words(window: str) -> str:
    """How values without a natural range become 0 to 255, for somebody who prepares them without this package."""
    begin = "of DICOM and NIfTI, rescaled and MONOCHROME1 turned round, become 0 to 255"
    if (ends := ends_of(window)) is not None:
        return f"values from {ends[0]:g} to {ends[1]:g} {begin}"
    if window == FILE:
        return f"values within each file's own window {begin}"
    others = f"values between each image's percentiles {LOW:g} and {HIGH:g} {begin}"
    low, high = HOUNSFIELD
    return others if window else f"{others}; Hounsfield units those from {low:g} to {high:g}"


class WrongHeaderError(ValueError):
    """What a header says cannot be; the text says what."""


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Whatever a library raises on a file becomes the one line of ``unreadable``."""
    try:
        with np.errstate(all="ignore"):  # what overflows is found by ``finite``
            yield
    except DataError:
        raise
    except Exception as error:
        raise unreadable(path, str(error) if isinstance(error, WrongHeaderError) else type(error).__name__) from None


def chosen_frame(path: Path, frame: int | None, frames: int) -> int:
    """Which of a file's slices is meant, from 0; DataError "not_2d": none is named of several, or there is no such."""
    if frame is None and frames != 1:
        how = f'name one in its list, "frame": 0 to {frames - 1}'
        raise DataError("not_2d", f"{path.name}: expected one 2D slice, got {frames}; {how}")
    if frame is not None and not 0 <= frame < frames:
        raise DataError("not_2d", f"{path.name}: expected a frame from 0 to {frames - 1}, got {frame}")
    return frame or 0


def finite(path: Path, pixels: np.ndarray) -> np.ndarray:
    """``pixels`` as float32; DataError "nonfinite" where one is NaN, infinite or as large as no measurement is."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = np.asarray(pixels, dtype=np.float32)
        strange = int(found.size - (np.abs(found) <= BEYOND).sum())
    if strange:
        text = f"{path.name}: expected finite numbers, got {strange} pixels that are NaN, infinite or beyond {BEYOND:g}"
        raise DataError("nonfinite", text)
    return found
