# SPDX-License-Identifier: Apache-2.0
"""Writes a published data set of images as images of one size with a datalist per site."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fairflare.cli.preflight import Tell
from fairflare.core.errors import UserError
from fairflare.data.readers.cases import PATIENTS
from fairflare.data.readers.datalist import DESCRIPTION, SPLITS, Item
from fairflare.engine.setup import tasks
from fairflare.inference.atomic_output import replaced
from fairflare.studies.runs import as_before
from fairflare.tasks.base import expect
from fairflare.tasks.kinds.own_images import SHARED
from fairflare_lab.datasets.on_disk import ImagesOnDisk
from fairflare_lab.datasets.quality import NOISE_SEED, SEVERITIES, QualityShift

MOST_STRUCTURES = 8
"""A mask is one PNG of 8 bits: a bit per structure."""


KEYS = {split: key for key, split in SPLITS.items()}


Corrupted = Iterator[tuple[Path, np.ndarray]]


@dataclass(frozen=True)
class Part:
    """What goes into one folder with one datalist: ``items`` by split, ``about`` them what ``dataset.json`` says, and
    maybe ``corrupted`` images in place of their files, in an order of their own."""

    folder: str
    about: Mapping[str, Any]
    items: Mapping[str, Sequence[Item]]
    corrupted: Corrupted | None = None

    def __len__(self) -> int:
        return sum(map(len, self.items.values()))

    def examples(self) -> Iterator[tuple[str, int, Item]]:
        """Split, number within it, and what to read."""
        found = [(split, i, item) for split, part in self.items.items() for i, item in enumerate(part)]
        if self.corrupted is None:
            yield from found
            return
        places = {item.image: (split, i, item) for split, i, item in found}
        for path, image in self.corrupted:
            split, i, item = places[path]
            yield split, i, dataclasses.replace(item, image=image)


def prepare(task: ImagesOnDisk, root: Path, dest: Path, progress: Tell | None = None) -> dict[str, Any]:
    """Write the images of ``task`` at its size to ``dest``, which appears whole or not at all.

    ``fairflare run METHOD --datalists DEST`` with the settings of ``dataset.json`` then reads the images (uint8), masks
    and splits that the task itself would read below ``root``, and scales them alike. The value of a mask's pixel is the
    sum of 2^k over the structures k that it belongs to. Attributes that the task declares are kept, patients as
    numbers. Where a quality-shift task lacks corrupted images they are made from the clean ones (``quality.corrupt``).

    Returns the content of ``dataset.json``: kind, classes, options (of the tasks "classification" and "segmentation"),
    run (a command line), task, task_options, table_sets, source (in words), sites and shared (what each is, and its
    sizes). Raises UserError: files of the data set are missing or wrong, ``dest`` is not empty or cannot be written, or
    no run could use the result.
    """
    dest = dest.resolve()
    _refuse_full(dest)
    description = _description(task, root, dest)
    sites, shared = _sites(task, root), _shared(task, root)
    writer = _Writer(task, sum(map(len, (*sites, *shared))), progress or (lambda *_: None))
    try:
        with as_before(), replaced(dest, partial(_refuse_full, dest), option="") as folder:
            torch.set_num_threads(1)  # more gain nothing on one image, and take five times as long on a busy machine
            description["sites"] = {part.folder: writer.write(part, folder) for part in sites}
            description[SHARED] = {part.folder: writer.write(part, folder / SHARED) for part in shared}
            _save_json(description, folder / f"{DESCRIPTION}.json")
    except OSError as error:
        raise UserError(f"{dest}: cannot be written ({error.strerror or type(error).__name__})") from None
    return description


def _description(task: ImagesOnDisk, root: Path, dest: Path) -> dict[str, Any]:
    """What is known before any image is read; UserError where the tasks on own data would not take it."""
    kind = task.kind.name
    reader = task.reader()
    options: dict[str, Any] = {"size": reader.size, "channels": reader.channels}
    if task.mean:
        options |= {key: ",".join(map(str, getattr(task, key))) for key in ("mean", "std")}
    if task.kind.has_masks:
        n = len(task.classes)
        expect("classes", n <= MOST_STRUCTURES, f"at most {MOST_STRUCTURES} structures", n)
        values = {name: [v for v in range(1, 2**n) if v >> k & 1] for k, name in enumerate(task.classes)}
        options["mask_values"] = "; ".join(f"{name}={'|'.join(map(str, found))}" for name, found in values.items())
    if task.attributes:
        texts = (f"{name}={'|'.join(known)}" for name, known in task.attributes.items())
        options["attribute_values"] = "; ".join(texts)
    labels = ",".join(task.classes)
    expect("classes", tasks.load(kind, labels=labels, **options).classes == task.classes, "plain names", labels)
    pairs = [f"{key}={value}" for key, value in options.items()]
    words = ["fairflare", "run", "METHOD", "--datalists", dest.name, "--kind", kind, "--classes", labels]
    command = shlex.join([*words, *(word for pair in pairs for word in ("--set", pair))])
    found = {"kind": kind, "classes": list(task.classes), "options": options, "run": command, "task": task.name}
    return {
        **found,
        "task_options": dataclasses.asdict(task),
        "table_sets": task.table_sets(),
        "source": _source(task, root),
    }


def _source(task: ImagesOnDisk, root: Path) -> str:
    text = f"{task.title}. Real: {task.real}. Simulated: {task.simulated}."
    if isinstance(task, QualityShift):
        made = ["the corrupted sites' images"] * task.lacks_corrupted(root)
        made += ["the corrupted test sets"] * task.lacks_corrupted_tests(root)
        if made:
            text += f" Made from clean images (seed {NOISE_SEED}): {' and '.join(made)}."
    return text


def _sites(task: ImagesOnDisk, root: Path) -> list[Part]:
    """One part per site; the images that are to be corrupted share one generator, in the order of the sites."""
    rng, found = np.random.RandomState(NOISE_SEED), []
    for site, kind in task.sites().items():
        plain = re.fullmatch(r"\w[\w.-]*", site) and site not in (SHARED, DESCRIPTION)
        expect("site", bool(plain), "a name that can be a folder's", site)
        shifted = task if isinstance(task, QualityShift) and not task.is_clean(site) else None
        if shifted is not None and not shifted.lacks_corrupted(root):
            shifted = None
        chosen = shifted.clean_items(root, site) if shifted is not None else task.items(root, site)
        items = {split: task.limited(part) for split, part in chosen.items()}
        n = len(items.get("train", ()))
        if n < 2:
            raise UserError(f"task {task.name}: {site}: expected at least 2 training images, got {n}")
        corrupted = shifted.site_corrupted(root, site, rng, _paths(items)) if shifted is not None else None
        found.append(Part(site, {"kind": kind}, items, corrupted))
    return found


def _shared(task: ImagesOnDisk, root: Path) -> list[Part]:
    """One part per shared test set, under "test"."""
    sets = dict(task.shared_items(root))
    found = [
        Part(re.sub(r"[^\w-]+", "_", name), {"name": name, "corrupted": corrupted}, {"test": task.limited(items)})
        for name, (corrupted, items) in sets.items()
    ]
    if isinstance(task, QualityShift) and task.lacks_corrupted_tests(root):
        rng, items = np.random.RandomState(NOISE_SEED), {"test": task.limited(sets["clean"][1])}
        for severity in SEVERITIES:
            about = {"name": f"{task.corruption} {severity}", "corrupted": True}
            images = task.test_corrupted(root, severity, rng, _paths(items))
            found.append(Part(f"{task.corruption}_{severity}", about, items, images))
    return found


def _paths(items: Mapping[str, Sequence[Item]]) -> set[Path]:
    return {item.image for part in items.values() for item in part if isinstance(item.image, Path)}


class _Writer:
    def __init__(self, task: ImagesOnDisk, total: int, progress: Tell) -> None:
        self.task, self.read = task, task.reader()
        self.done, self.total, self.progress = 0, total, progress
        self.patients: dict[tuple[str, str], int] = {}

    def write(self, part: Part, root: Path) -> dict[str, Any]:
        """Images to ``root``/<part>/, the datalist to ``root``/<part>.json; what to say of it in ``dataset.json``."""
        (root / part.folder).mkdir(parents=True)
        lists: dict[str, list[Any]] = {key: [None] * len(part.items.get(split, ())) for key, split in SPLITS.items()}
        for split, i, item in part.examples():
            image, target = self.read(item)
            name = f"{part.folder}/{split}_{i:05d}"
            Image.fromarray(_pixels(image)).save(root / f"{name}.png")
            label: int | str = int(target) if self.task.kind.has_classes else f"{name}_mask.png"
            if isinstance(label, str):
                Image.fromarray(_combined(target)).save(root / label)
            lists[KEYS[split]][i] = {"image": f"{name}.png", "label": label, **self._kept(part.folder, item)}
            self.done += 1
            self.progress(part.folder, self.done, self.total)
        _save_json(lists, root / f"{part.folder}.json")
        return {**part.about, **{split: len(items) for split, items in part.items.items()}}

    def _kept(self, folder: str, item: Item) -> dict[str, Any]:
        held = item.attributes
        known: dict[str, str | int] = {name: held[name] for name in self.task.attributes if held.get(name)}
        if patient := next(filter(None, map(item.attributes.get, PATIENTS)), ""):
            known[PATIENTS[0]] = self.patients.setdefault((folder, patient), len(self.patients) + 1)
        return known


def _pixels(image: Tensor) -> np.ndarray:
    """uint8 (H, W) where all channels are the same, else (H, W, 3)."""
    if image.dtype != torch.uint8 or image.dim() != 3:
        raise UserError(f"expected images uint8 (channels, height, width), got {image.dtype} {tuple(image.shape)}")
    grey = bool((image == image[0]).all())
    return (image[0] if grey else image.movedim(0, -1)).contiguous().numpy()


def _combined(mask: Tensor) -> np.ndarray:
    """(structures, H, W) of 0 and 1 -> uint8 (H, W), the sum of 2^k over the structures."""
    return sum((plane.numpy() > 0).astype(np.uint8) << k for k, plane in enumerate(mask))


def _save_json(content: object, path: Path) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _refuse_full(dest: Path) -> None:
    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        raise UserError(f"{dest}: expected a new or empty folder")


def prepare_dataset(
    dataset: str, source: Path, dest: Path, values: Mapping[str, Any], progress: Tell | None = None
) -> dict[str, Any]:
    """Write the data set ``dataset`` ("name" or "name:preset") below ``source`` to ``dest``; see ``prepare``."""
    name, _, preset = dataset.partition(":")
    known = [task for task, cls in tasks.every().items() if issubclass(cls, ImagesOnDisk)]
    if name not in known:
        raise UserError(f"prepare: expected one of {', '.join(known)}, got {name!r}")
    task = tasks.load(name, preset or None, **values)
    assert isinstance(task, ImagesOnDisk)
    return prepare(task, source, dest, progress)
