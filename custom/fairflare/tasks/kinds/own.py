# SPDX-License-Identifier: Apache-2.0
"""What the tasks on a user's own data share: which sites there are, where a site's list is, names and attributes."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import DataError, FairFlareError, UserError
from fairflare.core.user_code import check_name, load_object
from fairflare.core.validation import Names
from fairflare.data.readers.datalist import DESCRIPTION, INSIDE, PATIENTS, PREFIX, patients_of
from fairflare.data.readers.files import FileSplit
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.tasks.base import Task, expect, expect_choices
from fairflare.tasks.kinds.classes import GRADES

MOST_CLASSES = 1000
PATIENT = re.compile(r"((patient|subject|case)[ _-]?)?(id|name)|patient|subject|mrn", re.IGNORECASE)
"""Columns that name patients: one as a feature or a group of its own would tell whether a certain person is there."""


class OwnData(Task):
    """A task whose examples are files of the sites.

    A concrete task is a frozen dataclass with these fields, lists separated by commas.

    Args:
        datalists: folder with one datalist per site on this machine.
        site_names: the sites; filled from the folder.
        labels: number of classes, or their names.
        attribute_values: sensitive attributes and their values.
        build_data: "module.function" that builds a site's data in place of lists, see ``tasks.kinds.own``.
    """

    real = "everything: the sites' own files"
    simulated = "nothing"
    regresses = False
    suffixes: ClassVar[tuple[str, ...]] = (".json",)
    """Of the files that list a site's examples."""

    datalists: str
    site_names: str
    labels: str
    attribute_values: str
    build_data: str

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on an option
        """Names from ``labels``: "3" makes class 0, class 1, class 2."""
        names = [name.strip() for name in self.labels.split(",")]
        many = self.numbered and (len(names[0]) > 9 or int(names[0]) > MOST_CLASSES)
        fits = len(names) <= MOST_CLASSES and not many
        expect("labels", fits, f"at most {MOST_CLASSES} classes", self.labels[:20])
        return tuple(f"class {k}" for k in range(int(names[0]))) if self.numbered else tuple(names)

    @property
    def numbered(self) -> bool:
        text = self.labels.strip()
        return text.isascii() and text.isdigit()

    @property
    def attributes(self) -> Mapping[str, tuple[str, ...]]:  # type: ignore[override]  # depends on an option
        """Attribute -> its values, from ``attribute_values``."""
        found = {}
        for part in filter(None, (p.strip() for p in self.attribute_values.split(";"))):
            name, equals, values = part.partition("=")
            expect("attribute_values", bool(equals and values), "NAME=VALUE|VALUE; NAME=...", part)
            found[name.strip()] = tuple(value.strip() for value in values.split("|"))
        return found

    @property
    def named(self) -> tuple[str, ...]:
        """The columns of a table, or keys of a list, that the options name."""
        return (*self.outcome_columns, *self.attributes)

    def sites(self) -> dict[str, str]:
        return dict.fromkeys(self._names(), "own data")

    def check_data(self) -> None:
        for site in self.sites() if self.datalists and not self.build_data else ():
            self._list_of(site)

    def site_data(self, site: str) -> TensorData:
        return self.local_data(site, None)

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        own = self.located(site, own)
        if self.build_data:
            return built_data(self, self.build_data, own)
        return self.read(own)

    def located(self, site: str, own: SiteConfig | None) -> SiteConfig:
        """``own`` where it names a list; on a machine that has all sites' lists, those of ``site``.

        Raises:
            UserError: neither is there.
        """
        if own is not None and (own.datalist or self.build_data):
            return own
        if self.datalists:
            base = own or SiteConfig(site=site)
            root, links = root_of(Path(self.datalists))
            datalist = "" if self.build_data else str(self._list_of(site).relative_to(root))
            return dataclasses.replace(base, data_root=str(root), datalist=datalist, links=base.links or links)
        if self.build_data:
            return own or SiteConfig(site=site)
        raise DataError("no_datalist", f"site {site}: expected a site configuration with data_root and datalist")

    def unlabelled(self, own: SiteConfig) -> int:
        """How many rows of a table have no label; the entries of a datalist are counted as they are read."""
        return 0

    def not_public(self) -> str:
        """The first option that training rows would decide, and what is expected of it; "" where they decide none."""
        return ""

    def look(self, source: Any) -> Any:
        """What an image is like, as ``data.readers.pictures.Looked``; None where examples are none.

        Raises:
            DataError: it cannot be read.
        """
        return None

    @abstractmethod
    def read(self, own: SiteConfig) -> TensorData:
        """The examples that the list of ``own`` names; its paths are relative to the data root."""

    def _list_of(self, site: str) -> Path:
        folder = Path(self.datalists)
        paths = [folder / f"{prefix}{site}{suffix}" for prefix in ("", PREFIX) for suffix in self.suffixes]
        if found := next(filter(Path.is_file, paths), None):
            return found
        raise UserError(f"site {site}: expected {paths[0].name} in {self.datalists}, found none")

    def _names(self) -> list[str]:
        return [name for name in (part.strip() for part in self.site_names.split(",")) if name]

    def _check_own(self, fewest: int) -> None:
        expect_choices(self)
        if self.build_data:
            check_name(self.build_data, "build_data")
        names = [name.lower() for name in self._names()]
        differ = len(set(names)) == len(names)
        expect("site_names", differ, "names that differ by more than upper and lower case", self.site_names)
        expect("labels", len(self.classes) >= fewest, f"at least {fewest} classes", self.labels)
        expect("labels", len(set(self.classes)) == len(self.classes), "different names", self.labels)
        for name in self.named:
            expect("columns", not PATIENT.fullmatch(name), "none that names patients", name)


@dataclass(frozen=True)
class OwnGrades(OwnData):
    """What own tables and own images with classes in an order share.

    Args:
        labels: the classes' names from the lowest to the highest, at least three; or their number.
    """

    kind = GRADES
    headline = GRADES.headline
    fewest: ClassVar[int] = 3

    labels: Names = "3"


def root_of(folder: Path) -> tuple[Path, bool]:
    """The folder at which the paths of the lists in ``folder`` start, and whether links there may lead out of it."""
    described = read_description(folder)
    above = described.get("root") == ".." and folder.name == INSIDE
    root = folder.parent if above else folder
    return root, bool(described.get("links")) and described["links"] == mark_of(root)


def mark_of(root: Path) -> str:
    """What ``init`` notes of a folder whose links out it was allowed: a folder from elsewhere cannot bring it along.

    It is of this folder at this place; a copy of it, or one that was unpacked here, has another.
    """
    home = root.resolve()
    return hashlib.sha256(f"{home}\0{home.stat().st_ino}".encode(errors="surrogateescape")).hexdigest()


def folder_of_lists(folder: Path) -> Path:
    """Where the lists of the data in ``folder`` are: there, or in the folder inside it that ``init`` has written."""
    inside = folder / INSIDE
    return inside if (inside / f"{DESCRIPTION}.json").is_file() else folder


def read_description(folder: Path) -> dict[str, Any]:
    """What ``dataset.json`` says of a folder of datalists; UserError when it cannot be read.

    Empty without the file, and where it is the Decathlon's own, which lists images.
    """
    path = folder / f"{DESCRIPTION}.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if "kind" not in found and "training" in found:
            return {}
        return (
            {"kind": str(found["kind"]), "classes": _texts(found["classes"]), "options": dict(found["options"])}
            | {key: dict(found.get(key, {})) for key in ("shared", "table_sets", "sites")}
            | {"root": found.get("root", "."), "links": str(found.get("links", ""))}
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path.name}: expected what fairflare prepare writes ({type(error).__name__})") from None


def _texts(found: Any) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise TypeError
    return found


def sites_in(folder: Path, suffixes: Sequence[str]) -> list[str]:
    lists = [path for path in folder.iterdir() if path.suffix in suffixes and path.stem != DESCRIPTION]
    return sorted({path.stem.removeprefix(PREFIX) for path in lists if not path.name.startswith(".")})


KEYS = ("image", "input")


def built_data(task: Task, function: str, own: SiteConfig) -> TensorData:
    """The data that a user's own ``function`` ("module.name") builds for the site of ``own``, which it is called with.

    It returns three data sets: training, validation and test. A data set has a length and gives, for a number, a pair
    (input, label) or a mapping with the keys "image" (or "input"), "label" and, where there are some, "patient_id" and
    attributes such as "sex". An input is an array or tensor of floats (C, H, W) or (features,), taken as it is; a label
    is a class number or a mask (structures, H, W) of 0 and 1. The training set may transform at random: torch,
    NumPy and ``random`` are seeded before each round. Every example of a task with class labels is read once for its
    class.

    Raises:
        UserError: the function cannot or must not be imported.
        DataError: "build_data": it failed or returned something else; "label": a class that the task lacks.
    """
    build = load_object(function, "build_data", inspect.isfunction, "a function")
    try:
        found = build(own)
        sets = dict(zip(("train", "val", "test"), found, strict=True))
        lengths = {split: len(data) for split, data in sets.items()}
    except FairFlareError:
        raise
    except Exception as error:  # user's code runs here
        text = f"{function}: expected (training, validation, test), each with a length; {type(error).__name__}: {error}"
        raise DataError("build_data", text) from error
    splits = {split: _split(task, function, split, data, lengths[split]) for split, data in sets.items()}
    return TensorData.of(splits, n_classes=task.kind.n_classes(task.classes))


def _split(task: Task, function: str, split: str, data: Any, n: int) -> FileSplit:
    def read(row: int) -> tuple[Tensor, Tensor]:
        return _example(task, f"{function}: {split}[{row}]", data[row])[:2]

    labels: list[int] = []
    columns: dict[str, list[str]] = {name: [] for name in (*task.attributes, *PATIENTS)}
    for row in range(n) if task.kind.has_classes or task.attributes else ():
        _, target, attributes = _example(task, f"{function}: {split}[{row}]", data[row])
        if task.kind.has_classes:
            labels.append(int(target))
        for name, values in columns.items():
            values.append(str(attributes.get(name, "")))
    whose = patients_of({key: columns.pop(key) for key in PATIENTS})
    # Its transforms may be random, so nothing is kept and one thread reads.
    return FileSplit(range(n), read, torch.tensor(labels, dtype=torch.int64), columns, cache_rate=0.0, patients=whose)


def _example(task: Task, where: str, found: Any) -> tuple[Tensor, Tensor, Mapping[str, Any]]:
    attributes: Mapping[str, Any] = {}
    try:
        if isinstance(found, Mapping):
            attributes = found
            found = next(found[key] for key in KEYS if key in found), found["label"]
        image, label = found
        inputs = torch.as_tensor(np.asarray(image), dtype=torch.float32)
        target = torch.as_tensor(np.asarray(label))
    except Exception as error:  # whatever the user's data set gives
        text = f'{where}: expected (input, label) or {{"image": ..., "label": ...}}; {type(error).__name__}: {error}'
        raise DataError("build_data", text) from error
    if not torch.isfinite(inputs).all():
        raise DataError("nonfinite", f"{where}: expected finite numbers in the input")
    if task.kind.has_masks:
        if target.dim() != max(inputs.dim(), 3) or len(target) != len(task.classes):
            expected = f"a mask ({len(task.classes)}, {'X, Y, Z' if inputs.dim() == 4 else 'H, W'})"
            raise DataError("shape", f"{where}: label: expected {expected}, got shape {tuple(target.shape)}")
        return inputs, target.to(torch.uint8), attributes
    if target.dim() or target.is_floating_point() or not 0 <= int(target) < len(task.classes):
        whole = f"a whole number from 0 to {len(task.classes) - 1}"
        raise DataError("label", f"{where}: label: expected {whole}, got {label!r}")
    return inputs, target.to(torch.int64), attributes
