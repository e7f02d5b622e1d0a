# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a site's data, told before a run: every finding names split and cause, none stops the search.

The text of a finding is for the people at the site and may name files. What may leave the site is its level, code,
split and count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from fairflare.clinic.base import Task
from fairflare.clinic.grouping import Grouping
from fairflare.clinic.kinds.own import OwnData
from fairflare.clinic.readers.datalist import SPLITS, Item, checked_items, read_lists
from fairflare.clinic.readers.files import FileSplit
from fairflare.clinic.tensors import TensorData
from fairflare.errors import DataError, MissingData
from fairflare.findings import SPLIT_NAMES, Finding
from fairflare.site_config import SiteConfig

PATIENT = "patient_id"
FEWEST = {"train": 2, "val": 4, "test": 1}
"""Examples of a split. Fed-LWR's similarity needs four of the split it compares on."""
FEW = 8
"""Training examples below which a site is warned, and welcome all the same."""
USES = {
    "train": "too few to train on",
    "val": "FedCE scores on it and Fed-LWR may compare on it",
    "test": "the report needs it",
}
SHOWN = 3


def preflight(
    task: Task, site: str, own: SiteConfig | None, grouping: Grouping, min_count: int | None
) -> tuple[list[Finding], TensorData | None]:
    """Every finding on the data of ``site``, errors first, and the data where there is no error.

    Args:
        task: what a run would train.
        site: the site's name.
        own: its configuration, if it has one.
        grouping: the groups that a run would tell apart.
        min_count: the fewest examples of a group whose numbers may leave; None: none leave.
    """
    found: list[Finding] = []
    data = None
    try:
        if isinstance(task, OwnData):
            found += _of_list(task, task.located(site, own))
        if not _broken(found):
            data = task.local_data(site, own).grouped(grouping)
            found += _of_files(data)
            if not _broken(found) and isinstance(task, OwnData):
                found += _of_data(data, task.classes if task.class_labels else (), grouping, min_count)
    except DataError as error:
        found.append(Finding("error", error.code, "", 1, str(error)))
    except MissingData as error:
        found.append(Finding("error", "missing_file", "", 1, str(error)))
    except ValueError as error:
        found.append(Finding("error", "data", "", 1, str(error)))
    return sorted(found, key=lambda f: f.level), None if _broken(found) else data


def _of_list(task: OwnData, own: SiteConfig) -> Iterator[Finding]:
    """Entry by entry: keys, classes, paths; then patients and attributes."""
    path, root = Path(own.data_root, own.datalist), Path(own.data_root)
    if task.build_data or ".json" not in task.suffixes:
        return
    lists = read_lists(path)
    if len(lists["training"]) < FEWEST["train"]:
        n = len(lists["training"])
        text = f"datalist {path.name}: training: expected at least {FEWEST['train']} entries, got {n}"
        yield Finding("error", "few_examples" if n else "empty_split", "train", n, text)
    items: dict[str, list[Item]] = {}
    for key, split in SPLITS.items():
        masks = not task.class_labels
        good, errors = checked_items(path.name, key, lists[key], root, masks=masks, n_classes=len(task.classes))
        items[split] = good
        yield from _summed(split, errors)
    yield from _shared_patients(items)
    for name in task.attributes:
        missing = sum(not item.attributes.get(name) for item in items["train"])
        if missing:
            text = f"{name}: {missing} training examples do not say"
            yield Finding("warning", "attribute", "train", missing, text)


def _of_files(data: TensorData) -> Iterator[Finding]:
    """Read every file once: what fits into the site's cache is not read again."""
    for name, split in data.splits.items():
        if isinstance(split, FileSplit):
            yield from _summed(name, split.errors())


def _shared_patients(items: Mapping[str, list[Item]]) -> Iterator[Finding]:
    """Patients whose images lie in two splits."""
    patients = {
        split: {i.attributes[PATIENT] for i in part if PATIENT in i.attributes} for split, part in items.items()
    }
    for split, others in (("val", ("train",)), ("test", ("train", "val"))):
        for other in others:
            both = patients[split] & patients[other]
            if both:
                text = f"{len(both)} patients of the {split} split are in the {other} split too"
                yield Finding("error", "patient_overlap", split, len(both), text)


def _of_data(data: TensorData, classes: Sequence[str], grouping: Grouping, least: int | None) -> Iterator[Finding]:
    """Sizes, classes and groups."""
    for split in SPLIT_NAMES:
        n, labels = data.size(split), data.splits[split].labels
        if n < FEWEST[split]:
            code = "few_examples" if n else "empty_split"
            text = f"{n} examples, at least {FEWEST[split]} are needed: {USES[split]}"
            yield Finding("error", code, split, n, text)
        elif split == "train" and n < FEW:
            yield Finding("warning", "few_examples", split, n, f"{n} examples: little to learn from")
        if n >= FEWEST[split] and classes and len(torch.unique(labels)) < 2:
            yield Finding("error", "one_class", split, n, f"all {n} examples are of one class")
    if least is None and grouping.names:
        text = f"min_count is not set: no number of the {len(grouping.names)} groups leaves"
        yield Finding("warning", "no_min_count", "train", len(grouping.names), text)
    small = [(name, n) for name, n in zip(grouping.names, data.group_counts.tolist()) if least and 0 < n < least]
    for name, n in small:
        text = f"group {name}: {n} training examples, fewer than min_count {least}: its numbers stay here"
        yield Finding("warning", "small_group", "train", 1, text)  # one group; its size does not leave


def _summed(split: str, errors: Sequence[DataError]) -> Iterator[Finding]:
    """The first few texts of each code one by one, the others as one count."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for error in errors:
        kinds[error.code].append(str(error))
    for code, texts in kinds.items():
        yield from (Finding("error", code, split, 1, text) for text in texts[:SHOWN])
        if len(texts) > SHOWN:
            rest = len(texts) - SHOWN
            yield Finding("error", code, split, rest, f"{rest} more of this kind")


def _broken(found: Sequence[Finding]) -> bool:
    return any(f.level == "error" for f in found)
