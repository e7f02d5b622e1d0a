# SPDX-License-Identifier: Apache-2.0
"""A site's list of examples, in the form that MONAI and the Medical Segmentation Decathlon use.

    {"training":   [{"image": "a.png", "label": 1, "patient_id": "p7", "sex": "female"}, ...],
     "validation": [...],
     "testing":    [...]}

"label" is a class's number or name (classification), the path of a mask (segmentation), or what the kind of the task
reads (``TaskKind.lists``); an entry without one is left out, and counted.
{"image": "volume.nii.gz", "frame": 3, ...} is one slice of a file of several, counted from 0; in a
mask that holds several, too, it is the same one. {"image": ["t1.nii.gz", "t2.nii.gz"], ...} are contrasts of one place,
which become channels in this order. Paths are relative to the data root and must stay inside it. Further
keys are attributes. The Decathlon's own ``dataset.json`` is read too: its "test" is a list of paths without labels.
For tables there is one file: see ``tabular``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import DataError
from fairflare.core.validation import shown
from fairflare.data.readers.cases import DESCRIPTION as DESCRIPTION
from fairflare.data.readers.cases import INSIDE as INSIDE
from fairflare.data.readers.cases import NO_LABEL as NO_LABEL
from fairflare.data.readers.cases import PATIENTS as PATIENTS
from fairflare.data.readers.cases import PREFIX as PREFIX
from fairflare.data.readers.cases import patients_of as patients_of

SPLITS = {"training": "train", "validation": "val", "testing": "test"}
LONGEST_NAMES = 60
"""Characters of the classes' names that a message lists."""
FRAME = "frame"
"""Key of an entry that names one slice of a file of several."""
DECATHLON_TESTS = "test"
"""What the Decathlon calls its list of test images."""


@dataclass(frozen=True)
class Frame:
    """One slice of a file of several, by its number from 0: a frame of DICOM, a place on the last axis of NIfTI."""

    path: Path
    number: int

    @property
    def name(self) -> str:
        """The file's name and the slice, "volume.nii.gz[3]"."""
        return f"{self.path.name}[{self.number}]"


MOST_CONTRASTS = 8


@dataclass(frozen=True)
class Contrasts:
    """One slice in several contrasts, such as T1, T2 and FLAIR, in the order of the channels that they become."""

    parts: tuple[Path | Frame, ...]

    @property
    def name(self) -> str:
        """The first file's."""
        return self.parts[0].name


Files = Path | Frame | Contrasts
Source = Files | np.ndarray
"""Where an image is: a file of one slice, one slice of a file, contrasts, or in memory, uint8 (H, W) or (H, W, 3)."""


def file_of(source: Files) -> Path:
    """The file, of contrasts the first."""
    first = source.parts[0] if isinstance(source, Contrasts) else source
    return first.path if isinstance(first, Frame) else first


@dataclass(frozen=True)
class Item:
    """One example.

    Attributes:
        label: its class; its mask: a file, or uint8 (H, W) of pixel values; or a number, or several.
        attributes: as text.
    """

    image: Source
    label: int | float | tuple[float, ...] | Path | np.ndarray
    attributes: dict[str, str] = field(default_factory=dict)


Label = Callable[[Any], Any]
"""What an entry says -> the label, None where it says nothing; raises ValueError that says what was expected."""


def read_datalist(path: Path, root: Path, **how: Any) -> dict[str, list[Item]]:
    """Split ("train", "val", "test") -> items in the list's order, without those that have no label.

    ``how``: masks: whether labels are paths of masks; classes: their names, of which, or of whose places from 0, a
    label is one, ignored for masks; links: whether a symbolic link in the data root may lead out of it; label: how a
    label is read that is neither a class nor a mask. DataError names the file, the split, and the entry's number from
    0.
    """
    found = {}
    for key, entries in read_lists(path).items():
        found[SPLITS[key]], errors = checked_items(path.name, key, entries, root, **how)
        if wrong := [error for error in errors if error.code != NO_LABEL]:
            raise wrong[0]
    return found


def read_lists(path: Path) -> dict[str, list[Any]]:
    """ "training", "validation" and "testing" -> the entries, unchecked; DataError when the file is no datalist."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DataError("no_datalist", f"datalist {path.name}: expected a file, found none in {path.parent}") from None
    except ValueError as error:
        raise DataError("datalist", f"datalist {path.name}: expected JSON ({error})") from None
    if not isinstance(content, dict) or not isinstance(content.get("training"), list):
        lists = '{"training": [...], "validation": [...], "testing": [...]}'
        raise DataError("datalist", f"datalist {path.name}: expected {lists}")
    for key in SPLITS:
        if not isinstance(content.get(key, []), list):
            kind = type(content[key]).__name__
            raise DataError("datalist", f"datalist {path.name}: {key}: expected a list, got {kind}")
    tests = content.get(DECATHLON_TESTS, [])
    if "testing" not in content and isinstance(tests, list):
        content["testing"] = [{"image": one} if isinstance(one, str) else one for one in tests]
    return {key: content.get(key, []) for key in SPLITS}


def checked_items(
    file: str, key: str, entries: Sequence[Any], root: Path, **how: Any
) -> tuple[list[Item], list[DataError]]:
    """The good entries of one list, and what is wrong with every other."""
    items, errors = [], []
    for i, entry in enumerate(entries):
        try:
            items.append(_item(f"datalist {file}: {key}[{i}]", entry, root, **how))
        except DataError as error:
            errors.append(error)
    return items, errors


def _item(
    where: str, entry: Any, root: Path, *, masks: bool, classes: Sequence[str], links: bool = False, label: Any = None
) -> Item:
    if not isinstance(entry, dict):
        raise DataError("entry", f'{where}: expected {{"image": ..., "label": ...}}, got {type(entry).__name__}')
    if "image" not in entry:
        got = ", ".join(map(str, entry)) or "none"
        raise DataError("missing_key", f"{where}: expected the key 'image', got {shown(got)}")
    given = entry.get("label")
    if given is None or given == "" or given != given:  # NaN: how a table's empty cell may be written
        raise DataError(NO_LABEL, f"{where}: has no label")
    if label is None:
        told = inside(root, given, f"{where}: label", links) if masks else _class(given, classes, f"{where}: label")
    else:
        try:
            told = label(given)
        except ValueError as error:
            raise DataError("label", f"{where}: label: {error}, got {shown(given)}") from None
        if told is None:
            raise DataError(NO_LABEL, f"{where}: has no label")
    attributes = {k: str(v) for k, v in entry.items() if k not in ("image", "label", FRAME)}
    images = entry["image"] if isinstance(entry["image"], list) else [entry["image"]]
    if not 0 < len(images) <= MOST_CONTRASTS:
        raise DataError("entry", f"{where}: image: expected 1 to {MOST_CONTRASTS} contrasts, got {len(images)}")
    paths = [inside(root, one, f"{where}: image", links) for one in images]
    number = entry.get(FRAME)
    if number is not None and (type(number) is not int or number < 0):
        raise DataError("entry", f"{where}: {FRAME}: expected a whole number from 0, got {shown(number)}")
    sources = [path if number is None else Frame(path, number) for path in paths]
    return Item(Contrasts(tuple(sources)) if isinstance(entry["image"], list) else sources[0], told, attributes)


def _class(given: Any, classes: Sequence[str], where: str) -> int:
    """The place of the class that an entry names, by name or by number; a number that may be a name is one."""
    name = str(given) if type(given) in (str, int) else ""
    if name in classes:
        return classes.index(name)
    numbers = any(map(str.isdecimal, classes))
    if type(given) is not int or not 0 <= given < len(classes) or numbers:
        names = f"one of {', '.join(classes)}"
        known = names if len(names) <= LONGEST_NAMES else "a class's name"
        place = "" if numbers else f"a whole number from 0 to {len(classes) - 1} or "
        text = f"{where}: expected {place}{known}, got {shown(given)}"
        raise DataError("label", text)
    return given


def inside(root: Path, text: Any, where: str, links: bool = False) -> Path:
    """The file ``text`` below ``root``, with its links followed.

    A list may come from elsewhere, so that what it names must lie below the data root. A symbolic link there was made
    by somebody who may write there; it may lead out of the root where the site says so (``links``). DataError where the
    file is missing or leads out of the root, and says so where a symbolic link is the reason.
    """
    if not isinstance(text, str) or not text or "\0" in text:
        raise DataError("entry", f"{where}: expected a path, got {shown(text)}")
    home, named = root.resolve(), Path(text)
    try:
        path = (home / text).resolve()
        found = path.is_file()
    except (OSError, RuntimeError):  # links in a circle, names too long
        raise DataError("unreadable", f"{where}: {shown(text)} leads nowhere") from None
    by_link = not named.is_absolute() and os.pardir not in named.parts
    if not path.is_relative_to(home) and not (links and by_link):
        if by_link:
            says = "is a symbolic link out of the data root (the site's file may allow it: links: true)"
            raise DataError("link_outside", f"{where}: {shown(text)} {says}")
        raise DataError("path_outside", f"{where}: expected a path inside the data root, got {shown(text)}")
    if not found:
        gone = " (a symbolic link whose file is gone)" if (home / text).is_symlink() else ""
        raise DataError("missing_file", f"{where}: no such file: {shown(text)}{gone}")
    return path if path.suffix.lower() == named.suffix.lower() else home / text


def attribute_columns(items: Sequence[Item], names: Sequence[str]) -> dict[str, list[str]]:
    """Attribute -> its value for every item, "" where the list does not give one."""
    return {name: [item.attributes.get(name, "") for item in items] for name in names}
