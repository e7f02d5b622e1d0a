# SPDX-License-Identifier: Apache-2.0
"""What one file may hold: every reader looks at these limits before it unpacks, and while it reads."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.core.errors import DataError


@dataclass(frozen=True)
class Limits:
    """The most of one file.

    Attributes:
        rows: of a table.
        columns: of a table.
        cells: of a table, empty ones counted.
        characters: of a cell, about what Excel takes.
        line: characters of a line of text.
        bytes: of a table, unpacked.
        sheet: cells of an Excel file, which are slow to read.
        workbook: bytes of an Excel file's parts, unpacked.
        pixels: of a slice, over its channels; voxels of a volume.
        frames: slices of a file.
        voxels: bytes of a volume's file, unpacked.
        vectors: bytes of an encoder's features, unpacked.
        seconds: that reading a table takes.
    """

    rows: int = 5_000_000
    columns: int = 20_000
    cells: int = 50_000_000
    characters: int = 32_768
    line: int = 2**24
    bytes: int = 2**30
    sheet: int = 5_000_000
    workbook: int = 2**27
    pixels: int = 2 * 10**8
    frames: int = 100_000
    voxels: int = 2**33
    vectors: int = 2**33
    seconds: int = 120


LIMITS = Limits()
UNITS = {
    "characters": "characters in a cell",
    "bytes": "bytes unpacked",
    "sheet": "cells (save the sheet as CSV)",
    "workbook": "bytes unpacked (save the sheet as CSV)",
    "voxels": "bytes unpacked",
    "vectors": "bytes unpacked (a .npy or .h5 file is read in parts)",
}


def check(what: str, code: str = "unreadable", **got: float) -> None:
    """Raise DataError where the file ``what`` has more than ``LIMITS`` of any attribute that is named."""
    for name, number in got.items():
        most = getattr(LIMITS, name)
        if number > most:
            text = f"expected at most {most:,} {UNITS.get(name, name)}, got {number:,.0f}"
            raise DataError(code, f"{what}: {text}")
