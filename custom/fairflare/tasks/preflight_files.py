# SPDX-License-Identifier: Apache-2.0
"""What preflight finds in a list of files, and in these files when each is read once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean

from fairflare.core.errors import DataError
from fairflare.core.findings import SPLIT_NAMES, Finding
from fairflare.data.readers.cases import PATIENTS, patient_keys
from fairflare.data.readers.datalist import NO_LABEL, SPLITS, Item, attribute_columns, checked_items, read_lists
from fairflare.data.readers.files import FileSplit
from fairflare.data.site_config import SiteConfig
from fairflare.tasks.kinds.own import OwnData
from fairflare.tasks.preflight import FEWEST, FULL

OFTEN = 50
"""Files after which it is told how many have been read."""


def of_list(task: OwnData, own: SiteConfig) -> Iterator[Finding]:
    """Entry by entry: keys, classes, paths; then patients and attributes."""
    path, root = Path(own.data_root, own.datalist), Path(own.data_root)
    lists = read_lists(path)
    if (n := len(lists["training"])) < FEWEST[0].least:
        text = f"datalist {path.name}: training: expected at least {FEWEST[0].least} entries, got {n}"
        yield Finding("error", "few_examples" if n else "empty_split", "train", n, text)
    items: dict[str, list[Item]] = {}
    for key, split in SPLITS.items():
        how = task.kind.lists(task.classes)
        good, errors = checked_items(path.name, key, lists[key], root, **how, links=own.links)
        items[split] = good
        yield from _summed(split, errors)
    yield from _shared_patients(items)
    for name in task.attributes:
        missing = sum(not item.attributes.get(name) for item in items["train"])
        if missing:
            text = f"{name}: {missing} training examples do not say"
            yield Finding("warning", "attribute", "train", missing, text)


def of_files(splits: Mapping[str, FileSplit], tell: Callable[[int, int], None]) -> Iterator[Finding]:
    """Read every file once: what fits into the site's cache is not read again; ``tell`` is ``preflight``'s."""
    before, total = 0, sum(map(len, splits.values()))

    def told(done: int) -> None:
        if (before + done) % OFTEN == 0:
            tell(before + done, total)

    for name, split in splits.items():
        yield from _summed(name, split.errors(told))
        before += len(split)
        loses = getattr(split.reader, "loses", lambda item: False)
        if cut := [row for row in split.seen if loses(split.items[row])]:
            text = f"{len(cut)} masks reach beyond the grid of the volumes, and count without what lies there"
            yield Finding("warning", "mask_cut", name, len(cut), f"{text}, e.g. {split.items[cut[0]].label.name}")
    yield from _of_copies(splits)
    shares = [share for split in splits.values() for _, share in split.seen.values() if share == share]
    if (usual := fmean(shares or [FULL])) > FULL or not usual:
        full = f"a structure fills {100 * usual:.0f} % of the images, averaged over the masks: are they inverted?"
        yield Finding("warning", "mask_share", "", len(shares), full if usual else "all masks are empty")


def _of_copies(splits: Mapping[str, FileSplit]) -> Iterator[Finding]:
    """Images that stand in an earlier split too, or have several labels, pixel by pixel as the network takes them."""
    known: dict[bytes, str] = {}
    labels: dict[bytes, set[float]] = defaultdict(set)
    for name, split in splits.items():
        for row, (digest, _) in split.seen.items() if split.labels.ndim == 1 and len(split.labels) else ():
            labels[digest].add(float(split.labels[row]) if digest else 0.0)
        own = {digest: getattr(split.items[row], "image", row) for row, (digest, _) in split.seen.items() if digest}
        if both := [digest for digest in own if digest in known]:
            what = f"{len(both)} images are copies of some in an earlier split"
            text = f"{what}, e.g. {_name(own[both[0]])} of {known[both[0]]}"
            yield Finding("warning", "copies", name, len(both), text)
        known |= {digest: f"{_name(one)} ({name})" for digest, one in own.items()}
    if two := [digest for digest, own in labels.items() if len(own) > 1]:
        text = f"{len(two)} images have copies with another label, e.g. {known[two[0]]}"
        yield Finding("warning", "copies", "", len(two), text)


def _name(image: object) -> str:
    return str(getattr(image, "name", image))


def _shared_patients(items: Mapping[str, list[Item]]) -> Iterator[Finding]:
    patients = {split: {*patient_keys(attribute_columns(part, PATIENTS))} - {""} for split, part in items.items()}
    for other, split in combinations(SPLIT_NAMES, 2):
        if both := patients[split] & patients[other]:
            text = f"{len(both)} patients of the {split} split are in the {other} split too"
            yield Finding("error", "patient_overlap", split, len(both), text)


def _summed(split: str, errors: Sequence[DataError]) -> Iterator[Finding]:
    """One finding for each code: how many there are, with the first one's text as the example."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for error in errors:
        kinds[error.code].append(str(error))
    for code, texts in kinds.items():
        yield Finding("warning" if code == NO_LABEL else "error", code, split, len(texts), texts[0], example=True)
