# SPDX-License-Identifier: Apache-2.0
"""The files below a folder, and which of them are images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fairflare.core.errors import UserError
from fairflare.core.order import natural
from fairflare.data.readers.geometry import form_of, looks_like_image
from fairflare.data.readers.naming import is_image
from fairflare.data.readers.tables import SUFFIXES
from fairflare.tasks.kinds.own import INSIDE

OTHERS = (".tif", ".tiff", ".bmp", ".gif", ".webp", ".mha", ".mhd", ".nrrd", ".npy", ".npz", ".h5")
"""Images that are not read."""
MOST_FILES = 1_000_000
OFTEN = 200
"""Files after which it is told how many there are."""
Tell = Callable[[str, int], None]
"""Told what is counted, and how many there are by now."""


def nothing(part: str, done: int) -> None:
    """Nobody waits."""


@dataclass(frozen=True)
class Files:
    """What lies below a folder, as paths relative to it, in natural order.

    Attributes:
        root: the folder, or a table's file.
        images: those that can be read.
        others: images of other formats.
        links_out: images whose file lies outside of ``root``, by a symbolic link.
        dead: links whose file is gone.
        dicom: of ``images``, those in DICOM format, whatever their names.
        tell: called now and then by what reads many of them.
    """

    root: Path
    images: tuple[str, ...]
    others: tuple[str, ...]
    links_out: tuple[str, ...]
    dead: tuple[str, ...]
    dicom: frozenset[str] = frozenset()
    tell: Tell = nothing


def walk(root: Path, tell: Tell = nothing) -> Files:
    """Look at every file below ``root``, through links to folders too; hidden ones are passed over.

    Args:
        root: the folder, or a table.
        tell: called now and then.

    Raises:
        UserError: ``root`` is no folder, cannot be read, or holds more files than anyone means.
    """
    if root.is_file() and root.suffix.lower() in SUFFIXES:
        return Files(root, (), (), (), (), tell=tell)
    if not root.is_dir():
        kinds = ", ".join(SUFFIXES)
        raise UserError(f"init: expected a folder, or a table ({kinds}), got {root}")
    home = root.resolve()
    found: dict[str, list[str]] = {"images": [], "others": [], "links_out": [], "dead": [], "dicom": []}
    seen, count = set(), 0
    for folder, folders, names in os.walk(root, followlinks=True, onerror=_refuse):
        real = os.path.realpath(folder)
        folders[:] = sorted(name for name in folders if not _is_hidden(name)) if real not in seen else []
        if real in seen:
            continue
        seen.add(real)
        count += len(names)
        if count > MOST_FILES:
            raise UserError(f"init: expected at most {MOST_FILES} files below {root}")
        for number, name in enumerate(names, start=count - len(names)):
            if number % OFTEN == 0:
                tell("files", number)
            _sort(Path(folder, name), root, home, found)
    dicom = frozenset(found.pop("dicom"))
    ordered = {key: tuple(sorted(paths, key=natural)) for key, paths in found.items()}
    return Files(root, **ordered, dicom=dicom, tell=tell)


def _sort(path: Path, root: Path, home: Path, found: dict[str, list[str]]) -> None:
    if path.name.startswith("."):
        return
    text = path.relative_to(root).as_posix()
    if is_image(path.name) or (_names_no_format(path) and looks_like_image(path)):
        if not path.is_file():
            found["dead"].append(text)
            return
        found["images"].append(text)
        if form_of(path) == "dicom":
            found["dicom"].append(text)
        if not path.resolve().is_relative_to(home):
            found["links_out"].append(text)
    elif path.name.lower().endswith(OTHERS):
        found["others"].append(text)


def _names_no_format(path: Path) -> bool:
    """Whether a file's name has no ending, or a number for one, as in archives."""
    return path.suffix == "" or path.suffix[1:].isdigit()


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__")) or name == INSIDE


def _refuse(error: OSError) -> None:
    raise UserError(f"init: {error.filename}: cannot be read ({error.strerror})")
