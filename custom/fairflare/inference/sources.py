# SPDX-License-Identifier: Apache-2.0
"""What a user names to be predicted: image files and folders of them, or one table."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.core.order import natural
from fairflare.core.validation import shown
from fairflare.data.readers.datalist import Frame
from fairflare.data.readers.geometry import looks_like_image, slices_of, suffix_of
from fairflare.data.readers.naming import IMAGES, pairs

TABLES = (".csv", ".parquet")
MOST = 1_000_000


def images_of(named: Sequence[Path], *, masks: bool = False) -> tuple[dict[str, Path | Frame], list[str]]:
    """Name -> file or slice, and what was passed over or cut, a line each.

    The name is the one that results carry, with the folders below what was named; natural order. Of a file that holds
    several slices each is an input, "volume.nii.gz[0]" and so on.

    Args:
        named: files of any name, and folders, of which every image below counts but hidden ones.
        masks: the run is on images with masks: those that lie beside images in a folder are no inputs.

    Raises:
        UserError: a file is missing, a folder holds no image, or two files would have one name.
    """
    found: dict[str, Path] = {}
    beside: list[str] = []
    for path in named:
        if path.is_dir():
            inside = {file.relative_to(path).as_posix(): file for file in _below(path)}
            if not inside:
                raise UserError(f"{path}: expected images ({', '.join(IMAGES)}) in it, found none")
            own = _masks_of(inside) if masks else set()
            beside += sorted(own, key=natural)
            chosen = [(name, file) for name, file in inside.items() if name not in own]
        elif path.is_file():
            if suffix_of(path) in TABLES:
                raise UserError(f"{path.name}: expected images for this run, got a table")
            chosen = [(path.name, path)]
        else:
            raise UserError(f"{path}: no such file or folder")
        for name, file in chosen:
            if name in found and found[name] != file:
                raise UserError(f"two files are called {shown(name)}; name the folder above them instead")
            found[name] = file
    if len(found) > MOST:
        raise UserError(f"expected at most {MOST} files, got {len(found)}")
    notes = [f"{len(beside)} masks lie beside their images and are left out, e.g. {shown(beside[0])}"] if beside else []
    ordered = dict(sorted(found.items(), key=lambda pair: natural(pair[0])))
    return _cut(ordered, notes), notes


def _cut(files: Mapping[str, Path], notes: list[str]) -> dict[str, Path | Frame]:
    """Every slice of ``files``; appends to ``notes`` which hold several."""
    found: dict[str, Path | Frame] = {}
    volumes = 0
    for name, path in files.items():
        inside = slices_of(path)
        volumes += len(inside) > 1
        found |= {f"{name}[{k}]": one for k, one in enumerate(inside)} if len(inside) > 1 else {name: path}
        if len(found) > MOST:
            raise UserError(f"expected at most {MOST} slices; {name} brings more")
    if volumes:
        several = sum(isinstance(one, Frame) for one in found.values())
        notes.append(f"{volumes} {'file holds' if volumes == 1 else 'files hold'} {several} slices: each is one input")
    return found


def _masks_of(names: Collection[str]) -> set[str]:
    """Those that by name or folder are the masks of others."""
    return {mask for mask in pairs(sorted(names))[0].values() if mask}


def table_of(named: Sequence[Path]) -> Path:
    """The one table; raises UserError."""
    if len(named) != 1 or not named[0].is_file() or suffix_of(named[0]) not in TABLES:
        got = ", ".join(path.name for path in named[:3])
        raise UserError(f"expected one table ({' or '.join(TABLES)}) for this run, got {shown(got)}")
    return named[0]


def _below(folder: Path) -> list[Path]:
    found: list[Path] = []
    seen: set[str] = set()
    for place, inner, files in os.walk(folder, followlinks=True):  # a site's folder may be a link, as for `init`
        real = os.path.realpath(place)
        inner[:] = sorted(name for name in inner if not name.startswith(".")) if real not in seen else []
        found += [Path(place, name) for name in files if not name.startswith(".")] if real not in seen else []
        seen.add(real)
        if len(found) > MOST:
            raise UserError(f"{folder}: expected at most {MOST} files")
    return [path for path in found if path.is_file() and looks_like_image(path)]
