# SPDX-License-Identifier: Apache-2.0
"""What ``fairflare init`` makes of a folder, whatever its layout, before splits are drawn and files written.

What can be read in two ways is asked where somebody is at a terminal; a script gets one line with both readings and
their flags.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.validation import CONTROL, in_order, natural, shown, some
from fairflare.data.readers.datalist import INSIDE
from fairflare.data.readers.formats import unread
from fairflare.data.readers.geometry import form_of, is_image, looks_like_image
from fairflare.data.readers.tables import MISSING, SUFFIXES
from fairflare.import_data.cells import Row
from fairflare.tasks.forms import FORMS, DataForm


@dataclass(frozen=True)
class Reading:
    """One way to read the data: in words, and the flags of ``fairflare init`` that decide for it."""

    words: str
    flags: str


Ask = Callable[[str, Sequence[Reading]], int]
"""What is unclear and the readings -> the number of the one that holds."""


def refuse(what: str, readings: Sequence[Reading]) -> int:
    """Raise UserError with all readings and what decides for each, as nobody is there to choose."""
    raise UserError(f"init: {_either(what, readings)}")


def _either(what: str, readings: Sequence[Reading]) -> str:
    return f"{what}: either {'; or '.join(f'{one.words} ({one.flags})' for one in readings)}"


class Unanswered(list[str]):
    """``refuse`` that keeps what is unclear about single columns, so that one line can name all of it."""

    def __call__(self, what: str, readings: Sequence[Reading]) -> int:
        if not readings[0].flags.startswith(("--keep", "--missing")):
            refuse(what, readings)
        self.append(_either(what, readings))
        return 1  # a leak is left out and a code stays a number: neither makes a further question

    def refuse(self) -> None:
        if self:
            raise UserError(f"init: {'. '.join(self)}")


SPLITS = ("training", "validation", "testing")
SPLIT_WORDS = {
    "training": ("train", "training", "tr", "trn"),
    "validation": ("val", "valid", "validation", "dev", "tuning"),
    "testing": ("test", "testing", "ts", "tst", "holdout"),
}
SPLIT_OF = {word: split for split, words in SPLIT_WORDS.items() for word in words}
NO_VALUE = frozenset({*MISSING} - {"none", "-"}) | {"<na>", "#n/a"}
"""Cells, in lower case, that say nothing."""
MOST_CLASSES = 50
"""More different labels than these are no classes but a number or a text."""
LONGEST_SITE = 60


NO_CELLS = Row({}, 0)


@dataclass(frozen=True, slots=True)
class Example:
    """One image or one row of a table.

    Attributes:
        site: the site's name.
        image: its path relative to the folder; empty: a row.
        label: a class's name, or the path of a mask; empty: none.
        split: one of ``SPLITS``, or empty where the layout does not say.
        patient: whose it is; empty: unknown.
        about: attributes of the patient.
        cells: a row's features.
        frame: which slice of a file of several, from 0; None: the file is one slice.
        contrasts: further files of the same place, which become channels after ``image``.
        told: of several labels in columns of their own, each: 1, 0, or None where the example does not say it.
    """

    site: str
    image: str = ""
    label: str = ""
    split: str = ""
    patient: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    cells: Row = field(default_factory=lambda: NO_CELLS)
    frame: int | None = None
    told: Mapping[str, int | None] = field(default_factory=dict)
    contrasts: Sequence[str] = ()


def as_examples(*columns: Iterable[Any]) -> list[Example]:
    """One for each row of ``columns``, which are ``Example``'s in their order."""
    return [Example(*one) for one in zip(*columns, strict=True)]


@dataclass(frozen=True)
class Found:
    """What a folder holds.

    Attributes:
        kind: the name of their form, see ``tasks.forms``.
        layout: in words.
        examples: all that have a label.
        classes: of the labels, or the structures.
        options: of the task, beside classes.
        patients: where they are known from, in words; empty: every example is taken for a patient.
        notes: what is worth knowing, a line each.
        suspects: features that may be known only after the outcome, a line each.
        splits: in words, where the splits are from.
        links: images that are symbolic links whose files lie outside of the folder.
        masks: path of a mask that is still to be written -> its content.
        reading: evidence for the roles of a table's columns, see ``roles.Evidence``; its text is a line.
        unread: sites whose tables were left out before they were read.
    """

    kind: str
    layout: str
    examples: Sequence[Example]
    classes: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    patients: str = ""
    notes: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    reading: tuple[Any, ...] = ()
    splits: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    masks: Mapping[str, bytes] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @property
    def form(self) -> DataForm:
        return FORMS[self.kind]

    @cached_property
    def _by_site(self) -> dict[str, list[Example]]:
        found: dict[str, list[Example]] = {}
        for one in self.examples:
            found.setdefault(one.site, []).append(one)
        return found

    @property
    def sites(self) -> list[str]:
        return in_order(self._by_site)

    def of(self, site: str) -> list[Example]:
        return list(self._by_site[site])


@dataclass(frozen=True)
class Choices:
    """What the user says of the data; empty where it is to be found out.

    A level is a table's column, a folder ("folder1" is the outermost), "name" (the beginning of the files' names) or a
    keyword of DICOM headers ("PatientID").

    Attributes:
        kind: see ``Found``.
        classes: names of the classes or structures, in order.
        label: the level of the label.
        site: the level of the site; "none": one site.
        patient: the level of the patient; "none": every example is one.
        groups: levels by which patients are grouped, beside those with usual names.
        categories: columns of numbers that are codes of categories.
        keep: features that are taken though they may be known only after the outcome.
        leave_out: columns that are no features.
        missing: cells that stand for a missing value, as 999 in any column or sex=9 in one.
        rename: names of columns in some files and what they are called in the others, as Alter=age.
        exposure: the column that a count grows with.
        since: the column of dates from which other dates count; empty: dates are left out.
        time: the column of times to an event, or to the end of the observation.
        event: the column that says whether there was one.
        event_value: its cells that say so.
        until: the last day of observation, YYYY-MM-DD, where a date of the event is empty for who had none.
        horizons: times until which survival is asked for, as text; see ``tasks.own.survival``.
        slices: every how many slices of a volume one is taken; 0: volumes are refused.
        without: sites that are left out.
        sheet: the sheet of Excel files; empty: the only one with cells.
        header: the row of the columns' names, or the rows as "1-2"; empty: the first.
        hidden: whether a sheet's hidden rows and columns count: "read" or "skip"; empty: asks.
        new_splits: draw splits also where the layout has them.
        ask: what decides between two readings; refuses by default.
    """

    kind: str = ""
    classes: tuple[str, ...] = ()
    label: str = ""
    site: str = ""
    patient: str = ""
    groups: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    rename: tuple[str, ...] = ()
    exposure: str = ""
    since: str = ""
    time: str = ""
    event: str = ""
    horizons: str = ""
    event_value: tuple[str, ...] = ()
    until: str = ""
    slices: int = 0
    without: tuple[str, ...] = ()
    new_splits: bool = False
    sheet: str = ""
    header: str = ""
    hidden: str = ""
    ask: Ask = refuse

    @property
    def levels(self) -> list[str]:
        """Those that flags name."""
        named = (self.label, self.site, self.patient, self.since, self.time, self.event)
        return [name for name in named if name not in ("", "none")]


def is_missing(text: str) -> bool:
    return text.strip().lower() in NO_VALUE


def check_column(flag: str, name: str, columns: Sequence[str]) -> None:
    """Raise UserError where ``name``, which a flag gives, is none of a table's ``columns``."""
    if name not in columns:
        got = shown(name) if name else "none"
        raise UserError(f"--{flag}: expected a column among {some(columns, 12)}, got {got}")


def class_names(labels: Iterable[str], chosen: Sequence[str]) -> tuple[str, ...]:
    """The classes of ``labels`` in natural order, or as ``chosen``.

    Raises:
        UserError: fewer than two, too many to be classes, a comma in a name, or a label that is not among ``chosen``.
    """
    names = in_order(set(labels))
    if chosen:
        if strange := [name for name in names if name not in chosen]:
            raise UserError(f"--classes: expected the labels of the data, which have {shown(strange[0])} too")
        return tuple(chosen)
    if len(names) > MOST_CLASSES:
        raise UserError(f"init: {len(names)} different labels, such as {shown(names[0])}, are no classes")
    if len(names) < 2:
        got = shown(names[0]) if names else "none"
        raise UserError(f"init: expected labels of two classes or more, got {got} (--classes A,B names them)")
    if odd := [name for name in names if "," in name]:
        raise UserError(f"init: expected class names without commas, got {shown(odd[0])}")
    return tuple(names)


def site_name(text: str) -> str:
    """``text`` as a site may be called: it names files."""
    text = unicodedata.normalize("NFC", text)
    plain = re.sub(r"[^\w .-]", "-", text.strip())[:LONGEST_SITE].strip(" .-_")
    return plain or "site"


def site_names(texts: Sequence[str]) -> list[str]:
    """What the site of each of ``texts`` is called; UserError where two different ones would have the same name."""
    found = {text: site_name(text) for text in in_order({*texts})}
    seen: dict[str, str] = {}
    for text, name in found.items():
        plain = unicodedata.normalize("NFC", text.strip())
        if (other := seen.setdefault(name, plain)) != plain:
            raise UserError(f"init: sites {shown(other)} and {shown(text)} would both be called {name!r}: rename one")
    return [found[text] for text in texts]


def check_sites(names: Iterable[str]) -> None:
    """Raise UserError where two sites' names differ by upper and lower case alone, or one is no site's."""
    seen: dict[str, str] = {}
    for name in in_order(names):
        if name.lower() in ("dataset", "shared", "sites"):
            raise UserError(f"init: a site cannot be called {name!r}; rename its folder or column")
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise UserError(f"init: sites {other!r} and {name!r} differ by upper and lower case alone")


def check_texts(found: Found) -> None:
    """Raise UserError where a name or a value holds control characters, or bytes that are no text."""
    names = {text for one in found.examples for text in (one.image, one.label, one.site, one.patient)}
    names |= set(found.classes)
    texts = names | {text for one in found.examples for text in (*one.about, *one.about.values())}
    if found.examples:  # a table's rows are of the same columns
        cells = found.examples[0].cells.columns.values()
        words = (column.texts[~(np.isfinite(column.numbers) | column.empty)] for column in cells)
        odd = [texts for texts in words if CONTROL.search("\n".join(texts))]
        texts |= {text for column in odd for text in column}
    if name := next((text for text in sorted(names) if re.search(r"[\n\r\t]", text)), ""):
        raise UserError(f"init: expected names without line ends and tabs, got {shown(name)}")
    if value := next((text for text in sorted(texts | set(found.options.values())) if CONTROL.search(text)), ""):
        raise UserError(f"init: expected names and values without control characters, got {shown(value)}")


def root_name(root: Path) -> str:
    return site_name(root.resolve().name)


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
        others: images and tables of other formats.
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
    """Every file below ``root`` (a folder, or a table), through links to folders too; hidden ones are passed over.

    Raises:
        UserError: ``root`` is no folder, cannot be read, or holds more files than anyone means.
    """
    if root.is_file() and root.suffix.lower() in SUFFIXES:
        return Files(root, (), (), (), (), tell=tell)
    if not root.is_dir():
        what = f"is {unread(root.name)}" if unread(root.name) else "rename a text with delimited cells to .csv"
        text = f"; {what}" if root.is_file() else ""
        raise UserError(f"init: expected a folder, or a table ({', '.join(SUFFIXES)}), got {root}{text}")
    home = root.resolve()
    found: dict[str, list[str]] = {key: [] for key in ("images", "others", "links_out", "dead", "dicom")}
    seen, count = set(), 0
    for folder, folders, names in os.walk(root, followlinks=True, onerror=_refuse):
        real = os.path.realpath(folder)
        plain = [name for name in folders if not name.startswith((".", "__")) and name != INSIDE]
        folders[:] = sorted(plain) if real not in seen else []
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
    no_format = path.suffix[1:].isdigit() or path.suffix.lower() in ("", ".ima", ".img")  # as archives call files
    if is_image(path.name) or (no_format and looks_like_image(path)):
        if not path.is_file():
            found["dead"].append(text)
            return
        found["images"].append(text)
        if form_of(path) == "dicom":
            found["dicom"].append(text)
        if not path.resolve().is_relative_to(home):
            found["links_out"].append(text)
    elif unread(path.name):
        found["others"].append(text)


def _refuse(error: OSError) -> None:
    raise UserError(f"init: {error.filename}: cannot be read ({error.strerror})")
