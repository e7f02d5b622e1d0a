# SPDX-License-Identifier: Apache-2.0
"""What the tasks on a user's own data share: which sites there are, where a site's list is, names and attributes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fairflare.core.errors import DataError, UserError
from fairflare.core.validation import Names
from fairflare.data.readers.cases import DESCRIPTION, INSIDE, PREFIX
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import TensorData
from fairflare.tasks.base import Task, expect, expect_choices
from fairflare.tasks.kinds.classes import GRADES

MOST_CLASSES = 1000
PATIENT = re.compile(
    r"((patient|subject|case|record|person|study)[ _-]?)?(id|name)|patient|subject|pid|ssn"
    r"|(patient(en)?|subject|case|fall|nhs|mrn|record|insurance|social[ _-]security)[ _-]?(number|no|nr|nummer|code)"
    r"|mrn|(sur|last|first|family|given)[ _-]?name|(vor|nach)name|fiscal[ _-]code",
    re.IGNORECASE,
)
"""Names of columns that name patients, whose values as features or groups would tell whether somebody is there."""


class OwnData(Task):
    """A task whose examples are files of the sites.

    A concrete task is a frozen dataclass with these fields, lists separated by commas.

    Args:
        datalists: folder with one datalist per site on this machine.
        site_names: the sites; filled from the folder.
        labels: number of classes, or their names.
        attribute_values: sensitive attributes and their values.
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
        for site in self.sites() if self.datalists else ():
            self._list_of(site)

    def site_data(self, site: str) -> TensorData:
        return self.local_data(site, None)

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        return self.read(self.located(site, own))

    def located(self, site: str, own: SiteConfig | None) -> SiteConfig:
        """``own`` where it names a list; on a machine that has all sites' lists, those of ``site``.

        Raises:
            UserError: neither is there.
        """
        if own is not None and own.datalist:
            return own
        if self.datalists:
            base = own or SiteConfig(site=site)
            root, links = root_of(Path(self.datalists))
            datalist = str(self._list_of(site).relative_to(root))
            return dataclasses.replace(base, data_root=str(root), datalist=datalist, links=base.links or links)
        raise DataError("no_datalist", f"site {site}: expected a site configuration with data_root and datalist")

    def unlabelled(self, own: SiteConfig) -> int:
        """How many rows of a table have no label; the entries of a datalist are counted as they are read."""
        return 0

    def not_public(self) -> str:
        """The first option that training rows would decide, and what is expected of it; "" where they decide none."""
        return ""

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
