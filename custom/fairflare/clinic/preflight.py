# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a site's data, told before a run: every finding names split and cause, none stops the search.

The text of a finding is for the people at the site and may name files. What may leave the site is its level, code,
split and count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fairflare.clinic.datalist import SPLITS, Item, checked_items, read_lists
from fairflare.clinic.grouping import Grouping
from fairflare.clinic.own import OwnData
from fairflare.clinic.pictures import read_image, read_mask, shape_of
from fairflare.clinic.tasks.segmentation import Segmentation
from fairflare.clinic.tensors import TensorData
from fairflare.errors import UserError
from fairflare.site_config import SiteConfig

PATIENT = "patient_id"
FEWEST_TRAINING, FEWEST_VALIDATION = 8, 4
"""Examples; Fed-LWR's similarity needs four of a split."""
SHOWN = 3
Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong ("error": no run) or doubtful ("warning").

    Attributes:
        level: see above.
        code: a short name, the same for the same cause.
        split: "train", "val", "test" or "".
        count: how many examples it concerns.
        text: for people at the site; may name files.
    """

    level: Level
    code: str
    split: str
    count: int
    text: str

    @property
    def public(self) -> dict[str, str | int]:
        """What may leave the site."""
        return {"level": self.level, "code": self.code, "split": self.split, "count": self.count}


def preflight(task: OwnData, own: SiteConfig, grouping: Grouping) -> list[Finding]:
    """Every finding on the data that ``own`` names for ``task``, errors first.

    Args:
        task: "classification", "segmentation" or "tabular" with its options.
        own: the site's configuration.
        grouping: the groups that a run would tell apart.
    """
    root = Path(own.data_root or ".")
    path = root / own.datalist
    if not own.datalist:
        return [Finding("error", "no_datalist", "", 1, "the site configuration names no datalist")]
    found = list(_of_list(task, path, root)) if task.suffix == ".json" else []
    if not any(f.level == "error" for f in found):
        try:
            data = task.read(path, root).grouped(grouping)
            found += _of_data(data, task.classes if task.class_labels else (), grouping, own.min_count)
        except (UserError, ValueError) as error:
            found.append(Finding("error", "unreadable", "", 1, str(error)))
    return sorted(found, key=lambda f: f.level)


def _of_list(task: OwnData, path: Path, root: Path) -> Iterator[Finding]:
    """Entry by entry: keys, paths, files, shapes, pixel values; then patients and attributes."""
    try:
        lists = read_lists(path)
    except UserError as error:
        yield Finding("error", "datalist", "", 1, str(error))
        return
    masks = not task.class_labels
    items: dict[str, list[Item]] = {}
    for key, split in SPLITS.items():
        good, errors = checked_items(path.name, key, lists[key], root, masks=masks, n_classes=len(task.classes))
        items[split] = good
        yield from _summed("error", "entry", split, errors)
        yield from _summed("error", "file", split, _file_errors(task, good))
    yield from _shared_patients(items)
    for name in task.attributes:
        missing = [str(i) for item in items["train"] for i in [item.attributes.get(name, "")] if not i]
        if missing:
            text = f"{name}: {len(missing)} training examples do not say"
            yield Finding("warning", "attribute", "train", len(missing), text)


def _file_errors(task: OwnData, items: Sequence[Item]) -> list[str]:
    errors = []
    for item in items:
        try:
            if isinstance(task, Segmentation):
                values, background = task.values()
                read_mask(Path(item.label), values, task.size, background)
                image, mask = shape_of(item.image), shape_of(Path(item.label))
                if image != mask:
                    raise UserError(f"{item.image.name}: {image} pixels, its mask {mask}")
            read_image(item.image, 1, 32)
        except UserError as error:
            errors.append(str(error))
    return errors


def _shared_patients(items: dict[str, list[Item]]) -> Iterator[Finding]:
    """Patients whose images lie on both sides of a split."""
    patients = {
        split: {i.attributes[PATIENT] for i in part if PATIENT in i.attributes} for split, part in items.items()
    }
    for split in ("val", "test"):
        both = patients["train"] & patients[split]
        if both:
            text = f"{len(both)} patients of the {split} split are in the training split too"
            yield Finding("error", "patient_overlap", split, len(both), text)


def _of_data(data: TensorData, classes: Sequence[str], grouping: Grouping, least: int | None) -> Iterator[Finding]:
    """Sizes, classes and groups of what was read."""
    if data.size("train") < FEWEST_TRAINING:
        text = f"{data.size('train')} training examples, at least {FEWEST_TRAINING} are needed"
        yield Finding("error", "few_examples", "train", data.size("train"), text)
    for split, needed in (("val", FEWEST_VALIDATION), ("test", 1)):
        n = data.size(split)
        if n < needed:
            use = "FedCE scores on it and Fed-LWR may compare on it" if split == "val" else "the report needs it"
            yield Finding("warning", "few_examples", split, n, f"{n} examples; {use}")
    for split in ("train", "val", "test") if classes else ():
        counts = torch.bincount(data.splits[split].targets, minlength=len(classes)).tolist()
        if sum(counts) and sum(n > 0 for n in counts) < 2:
            level: Level = "error" if split == "train" else "warning"
            yield Finding(level, "one_class", split, sum(counts), f"all {sum(counts)} examples are of one class")
    small = [(name, n) for name, n in zip(grouping.names, data.group_counts.tolist()) if least and 0 < n < least]
    for name, n in small:
        text = f"group {name}: {n} training examples, fewer than min_count {least}: its numbers stay here"
        yield Finding("warning", "small_group", "train", n, text)


def _summed(level: Level, code: str, split: str, errors: Sequence[str]) -> Iterator[Finding]:
    """The first few texts one by one, the others as one count."""
    kinds = Counter(errors)
    for text in list(kinds)[:SHOWN]:
        yield Finding(level, code, split, kinds[text], text)
    rest = sum(kinds[text] for text in list(kinds)[SHOWN:])
    if rest:
        yield Finding(level, code, split, rest, f"{rest} more of this kind")
