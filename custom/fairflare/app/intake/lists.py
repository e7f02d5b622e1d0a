# SPDX-License-Identifier: Apache-2.0
"""Datalists that are there already: the Decathlon's ``dataset.json``, and lists of the same form named by site."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fairflare.app.intake import masks
from fairflare.app.intake.folders import level_table, patients_of
from fairflare.app.intake.found import (
    SPLITS,
    Choices,
    Example,
    Files,
    Found,
    class_names,
    is_missing,
    root_name,
    site_name,
)
from fairflare.app.intake.labels import check_outcome, group_columns, grouped_by
from fairflare.core.errors import UserError
from fairflare.core.order import natural
from fairflare.core.validation import shown
from fairflare.data.readers.datalist import read_lists
from fairflare.data.readers.naming import is_image
from fairflare.tasks.kinds.own import DESCRIPTION, PREFIX

PATIENT_KEYS = "patient_id patient subject_id subject case_id PatientID patientID patientId"
PATIENTS = tuple(PATIENT_KEYS.split())
KNOWN = ("image", "label", "frame", *PATIENTS)


def lists_in(root: Path) -> dict[str, Path]:
    """Site -> its list: ``<site>/dataset.json``, ``<site>.json``, or a ``dataset.json`` of one site."""
    found = {
        site_name(path.parent.name): path
        for path in sorted(root.glob(f"*/{DESCRIPTION}.json"), key=lambda path: natural(path.parent.name))
        if _is_list(path) and not path.parent.name.startswith(".")
    }
    for path in sorted(root.glob("*.json"), key=lambda path: natural(path.name)):
        if _is_list(path):
            name = root_name(root) if path.stem == DESCRIPTION else site_name(path.stem.removeprefix(PREFIX))
            found.setdefault(name, path)
    return found


def _is_list(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("training"), list) and "kind" not in content


def images_in_lists(files: Files, lists: Mapping[str, Path], chosen: Choices) -> Found:
    """What the lists say.

    Raises:
        UserError: a list is of another form, or no entry has a label.
    """
    examples: list[Example] = []
    gone: list[str] = []
    unlabelled = 0
    named: dict[int, str] = {}
    for site, path in lists.items():
        named |= _structures(path)
        for split, entries in read_lists(path).items():
            for number, entry in enumerate(entries):
                example = _example(files.root, path, site, split, entry, f"{path.name}: {split}[{number}]")
                unlabelled += not example.label
                if example.label and not (files.root / example.image).is_file():
                    gone.append(example.image)
                elif example.label:
                    examples.append(example)
    if not examples:
        raise UserError(f"init: no entry of {next(iter(lists.values())).name} has a label and a file that is there")
    examples = _grouped(examples, chosen)
    notes: tuple[str, ...] = (f"{unlabelled} entries have no label and are left out",) if unlabelled else ()
    notes += (f"{len(gone)} images of the lists are not there and left out, e.g. {gone[0]}",) if gone else ()
    return _of(files, examples, named, chosen, notes)


def _grouped(examples: Sequence[Example], chosen: Choices) -> list[Example]:
    """With the keys alone by which patients may be grouped: a run's configuration lists their values, and may leave.

    Any other key may be a name or a number of a patient.
    """
    columns = tuple(dict.fromkeys(key for one in examples for key in one.about))
    table = pd.DataFrame(
        [{name: one.about.get(name, "").strip() for name in columns} for one in examples], dtype=object
    )
    groups = grouped_by(table, group_columns(table, [], chosen.groups)) if columns else [{} for _ in examples]
    return [replace(one, about=about) for one, about in zip(examples, groups, strict=True)]


def _of(
    files: Files, examples: Sequence[Example], named: Mapping[int, str], chosen: Choices, notes: tuple[str, ...]
) -> Found:
    whence = "patient_id of the lists" if any(one.patient for one in examples) and chosen.patient != "none" else ""
    if not whence and chosen.patient != "none":
        levels = level_table(files, [one.image for one in examples], chosen)
        patients, whence = patients_of(levels, [one.site for one in examples], "", chosen)
        examples = [replace(one, patient=patient) for one, patient in zip(examples, patients, strict=True)]
    if all(is_image(one.label) for one in examples):
        missing = [one for one in examples if not (files.root / one.label).is_file()]
        if missing:
            text = f"{len(missing)} masks of the lists are not there and their images left out"
            notes += (f"{text}, e.g. {missing[0].label}",)
            examples = [one for one in examples if one not in missing]
        classes, options = masks.structures(files.root, [one.label for one in examples], chosen.classes, named)
        return Found("segmentation", "datalists with masks", examples, classes, options, whence, notes)
    check_outcome("label", [one.label for one in examples], chosen)
    names = class_names((one.label for one in examples), chosen.classes)
    return Found("classification", "datalists with classes", examples, names, {}, whence, notes)


def _structures(path: Path) -> dict[int, str]:
    """Pixel value -> name, from the Decathlon's "labels" without the background."""
    labels = json.loads(path.read_text(encoding="utf-8")).get("labels", {})
    if not isinstance(labels, dict):
        return {}
    pairs = [(key, name) if str(key).isdigit() else (name, key) for key, name in labels.items()]  # nnU-Net: name first
    return {int(value): str(name) for value, name in pairs if str(value).isdigit() and int(value)}


def _example(root: Path, path: Path, site: str, split: str, entry: Any, where: str) -> Example:
    if not isinstance(entry, dict) or not isinstance(entry.get("image"), str):
        raise UserError(f'init: {where}: expected {{"image": ..., "label": ...}}')
    label = entry.get("label")
    text = "" if label is None or is_missing(str(label)) else str(label)
    if is_image(text):
        text = _relative(root, path, text)
    patient = next((str(entry[key]) for key in PATIENTS if entry.get(key) is not None), "")
    others = {key: value for key, value in entry.items() if key not in KNOWN}
    about = {key: str(value) for key, value in others.items() if isinstance(value, (str, int, float))}
    # The Decathlon's training list is all there is to divide: its test images have no labels.
    split = "" if path.stem == DESCRIPTION and split == SPLITS[0] else split
    frame = entry.get("frame")
    if frame is not None and (type(frame) is not int or frame < 0):
        raise UserError(f"init: {where}: frame: expected a whole number from 0, got {frame!r}")
    return Example(site, _relative(root, path, entry["image"]), text, split, patient, about, frame=frame)


def _relative(root: Path, path: Path, text: str) -> str:
    found = Path(os.path.normpath(path.parent.relative_to(root) / text)).as_posix()
    if found.startswith("..") or Path(text).is_absolute():
        raise UserError(f"init: {path.name}: expected paths inside {root}, got {shown(text)}")
    return found
