# SPDX-License-Identifier: Apache-2.0
"""What a user names to be predicted: image files and folders of them, or one table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fairflare.clinic.readers.geometry import suffix_of
from fairflare.core.errors import UserError
from fairflare.core.order import natural
from fairflare.core.validation import shown

IMAGES = (".png", ".jpg", ".jpeg", ".nii", ".nii.gz", ".dcm", ".dicom")
TABLES = (".csv", ".parquet")
MOST = 1_000_000


def images_of(named: Sequence[Path]) -> dict[str, Path]:
    """Name -> file: the name that results carry, with the folders below what was named; natural order.

    Args:
        named: files of any name, and folders, of which every image below counts but hidden ones.

    Raises:
        UserError: a file is missing, a folder holds no image, or two files would have one name.
    """
    found: dict[str, Path] = {}
    for path in named:
        if path.is_dir():
            inside = _below(path)
            if not inside:
                raise UserError(f"{path}: expected images ({', '.join(IMAGES)}) in it, found none")
            pairs = [(file.relative_to(path).as_posix(), file) for file in inside]
        elif path.is_file():
            if suffix_of(path) in TABLES:
                raise UserError(f"{path.name}: expected images for this run, got a table")
            pairs = [(path.name, path)]
        else:
            raise UserError(f"{path}: no such file or folder")
        for name, file in pairs:
            if name in found and found[name] != file:
                raise UserError(f"two files are called {shown(name)}; name the folder above them instead")
            found[name] = file
    if len(found) > MOST:
        raise UserError(f"expected at most {MOST} files, got {len(found)}")
    return dict(sorted(found.items(), key=lambda pair: natural(pair[0])))


def table_of(named: Sequence[Path]) -> Path:
    """The one table; raises UserError."""
    if len(named) != 1 or not named[0].is_file() or suffix_of(named[0]) not in TABLES:
        got = ", ".join(path.name for path in named[:3])
        raise UserError(f"expected one table ({' or '.join(TABLES)}) for this run, got {shown(got)}")
    return named[0]


def _below(folder: Path) -> list[Path]:
    found = []
    for place, inner, files in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        found += [Path(place, name) for name in files if not name.startswith(".")]
        if len(found) > MOST:
            raise UserError(f"{folder}: expected at most {MOST} files")
    return [path for path in found if suffix_of(path) in IMAGES and path.is_file()]
