# SPDX-License-Identifier: Apache-2.0
"""A site's list of examples, in the form that MONAI and the Medical Segmentation Decathlon use.

    {"training":   [{"image": "a.png", "label": 1, "patient_id": "p7", "sex": "female"}, ...],
     "validation": [...],
     "testing":    [...]}

"label" is a class number (classification) or the path of a mask (segmentation). Paths are relative to the data root and
must stay inside it. Further keys are attributes. For tables there is one file: see ``tabular``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import DataError

SPLITS = {"training": "train", "validation": "val", "testing": "test"}


@dataclass(frozen=True)
class Item:
    """One example.

    Attributes:
        image: a file, or uint8 (H, W) or (H, W, 3).
        label: its class, or its mask: a file, or uint8 (H, W) of pixel values.
        attributes: as text.
    """

    image: Path | np.ndarray
    label: int | Path | np.ndarray
    attributes: dict[str, str] = field(default_factory=dict)


def read_datalist(path: Path, root: Path, *, masks: bool, n_classes: int) -> dict[str, list[Item]]:
    """Split ("train", "val", "test") -> items in the list's order.

    Args:
        path: the JSON file.
        root: the data root.
        masks: whether labels are paths of masks.
        n_classes: class labels are whole numbers below this; ignored for masks.

    Raises:
        DataError: names the file, the split, the entry's number (from 0), what was expected and what came.
    """
    found = {}
    for key, entries in read_lists(path).items():
        found[SPLITS[key]], errors = checked_items(path.name, key, entries, root, masks=masks, n_classes=n_classes)
        if errors:
            raise errors[0]
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
    return {key: content.get(key, []) for key in SPLITS}


def checked_items(
    file: str, key: str, entries: Sequence[Any], root: Path, *, masks: bool, n_classes: int
) -> tuple[list[Item], list[DataError]]:
    """The good entries of one list, and what is wrong with every other."""
    items, errors = [], []
    for i, entry in enumerate(entries):
        try:
            items.append(_item(f"datalist {file}: {key}[{i}]", entry, root, masks, n_classes))
        except DataError as error:
            errors.append(error)
    return items, errors


def _item(where: str, entry: Any, root: Path, masks: bool, n_classes: int) -> Item:
    if not isinstance(entry, dict):
        raise DataError("entry", f'{where}: expected {{"image": ..., "label": ...}}, got {type(entry).__name__}')
    for key in ("image", "label"):
        if key not in entry:
            got = ", ".join(map(str, entry)) or "none"
            raise DataError("missing_key", f"{where}: expected the key {key!r}, got {got}")
    label: int | Path = inside(root, entry["label"], f"{where}: label") if masks else entry["label"]
    if not masks and (type(label) is not int or not 0 <= label < n_classes):
        raise DataError("label", f"{where}: label: expected a whole number from 0 to {n_classes - 1}, got {label!r}")
    attributes = {k: str(v) for k, v in entry.items() if k not in ("image", "label")}
    return Item(inside(root, entry["image"], f"{where}: image"), label, attributes)


def inside(root: Path, text: Any, where: str) -> Path:
    """The file ``text`` below ``root``; DataError when it is missing or leads out of it."""
    if not isinstance(text, str) or not text:
        raise DataError("entry", f"{where}: expected a path, got {text!r}")
    path = (root / text).resolve()
    if not path.is_relative_to(root.resolve()):
        raise DataError("path_outside", f"{where}: expected a path inside the data root, got {text!r}")
    if not path.is_file():
        raise DataError("missing_file", f"{where}: no such file: {text}")
    return path


def attribute_columns(items: Sequence[Item], names: Sequence[str]) -> dict[str, list[str]]:
    """Attribute -> its value for every item, "" where the list does not give one."""
    return {name: [item.attributes.get(name, "") for item in items] for name in names}
