# SPDX-License-Identifier: Apache-2.0
"""The role of each column of a table: evidence from its name and from its cells, in points, with reasons.

A name alone decides nothing: a hospital's column repeats a few values, a patient's holds ids, and who stands in several
rows has the same sex in all of them. ``BAR`` points decide; ``ASK`` points are asked about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from fairflare.core.validation import flag, in_order, some
from fairflare.data.readers.cases import patient_key
from fairflare.import_data import labels as naming
from fairflare.import_data.cells import Cells
from fairflare.import_data.proposal import Choices, Reading

BAR, ASK = 3, 2
"""Points from which on a role is taken, and from which on it is asked about."""
NUMBERED = ("number", "no", "nr", "num", "id", "code", "name", "ids", "nbr", "key", "uid", "guid")
"""Last words of a name that say how something is named."""
FEWEST = 5
"""Different values of an id; groups of several rows that show what a column determines."""
MOST_SITES = 1000
ALIKE = 0.95
"""Share of the groups of several rows in which a patient's own column must have one value."""
YEARS = 15
"""Over which one patient's rows may spread."""
MODE, SMALL = 0.15, 200
"""Share of rows with the most frequent of small whole numbers that counts have and ids have not."""
ALONE = ": every row is taken for a person of its own"
TEXT_WORDS = 4
"""Words of a cell, in the mean, from which on a column with more than ``TEXT_VALUES`` values is a free text."""
TEXT_VALUES = 4
MANY = 300
"""Columns above which an id has to be named so: what each determines would take too long."""
FEW_CODES, SPARSE = 3, 3
"""Different numbers of a code, and how many there might be by the largest for each that there is."""
CODED = re.compile(r"[A-Za-z]\d[\w.]*")
"""A code such as V27 or E885."""


@dataclass(frozen=True)
class Evidence:
    """What speaks for the role of a column: the points, and why."""

    column: str
    role: str
    points: float
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column}: {self.role} ({'; '.join(self.reasons)})"


class Column:
    """A column, whose properties are found once, over its different cells."""

    def __init__(self, name: str, cells: pd.Series) -> None:
        self.name, self.cells = name, Cells.of(cells)
        self.words = naming.name_words(name)
        self.plain = naming.bare(name)

    @cached_property
    def values(self) -> list[str]:
        """The different cells that say something."""
        return [str(text) for text in self.cells.texts[~self.cells.empty]]

    @cached_property
    def different(self) -> int:
        return int((~self.cells.empty).sum())

    @cached_property
    def words_of_cells(self) -> list[str]:
        """The different cells that say something and are no numbers."""
        return [str(text) for text in self.cells.texts[~self.cells.empty & ~np.isfinite(self.cells.numbers)]]

    @cached_property
    def rows(self) -> int:
        return self.cells.rows(~self.cells.empty)

    @cached_property
    def numbers(self) -> np.ndarray:
        """float64, of the different cells that say something and are numbers."""
        found = self.cells.numbers[~self.cells.empty]
        return np.asarray(found[np.isfinite(found)])

    @cached_property
    def is_number(self) -> bool:
        return self.different > 0 and len(self.numbers) >= 0.9 * self.different

    @cached_property
    def is_whole(self) -> bool:
        return self.is_number and bool((self.numbers == np.round(self.numbers)).all())

    @cached_property
    def is_date(self) -> bool:
        return not self.is_number and sum(map(naming.is_date, self.words_of_cells)) >= 0.9 * max(self.different, 1)

    @cached_property
    def is_yes_no(self) -> bool:
        return 0 < self.different <= 2 and {value.lower() for value in self.values} <= naming.YES | naming.NO

    @cached_property
    def mode(self) -> float:
        """Share of the filled rows with the most frequent value."""
        return float(self.cells.counts[~self.cells.empty].max()) / max(self.rows, 1) if self.values else 0.0

    @cached_property
    def is_id(self) -> bool:
        """Whether the cells may be ids: many whole numbers that count nothing, or short texts with a digit."""
        if self.different < FEWEST or self.is_date:
            return False
        if self.is_number:
            return self.is_whole and not (self.mode > MODE and self.numbers.max() < SMALL)
        like = [len(value) <= 64 and value.count(" ") <= 2 and any(map(str.isdigit, value)) for value in self.values]
        return sum(like) >= 0.9 * len(like)

    @cached_property
    def is_text(self) -> bool:
        """Whether the cells are free text, also where a few sentences repeat."""
        if self.is_number or self.is_date or self.different < 2:
            return False
        words = sum(len(value.split()) for value in self.values) / self.different
        named = bool({*self.words} & {*naming.WORDS["column_text"]})
        return words >= 2 and named or (words >= TEXT_WORDS and self.different > TEXT_VALUES)

    def says(self, key: str) -> list[str]:
        """The words of the name that stand in the list ``key``."""
        return [word for word in self.words if word.rstrip("0123456789") in naming.WORDS[key]]


def columns_of(table: pd.DataFrame, names: Sequence[str]) -> dict[str, Column]:
    return {name: Column(name, table[name]) for name in names}


def as_site(column: Column) -> Evidence:
    """Points for a hospital: named so, or with hospitals' names in its cells; a few values with several rows each."""
    points, why = 0.0, []
    words = column.words[:-1] if column.words[1:] and column.words[-1] in NUMBERED else column.words
    if column.plain in naming.WORDS["column_site"] or (len(words) == 1 and words[0] in naming.WORDS["column_site"]):
        points, why = 3, ["its name says so"]
    elif column.plain.endswith(naming.WORDS["column_ends_site"]):
        points, why = 2, ["its name ends so"]
    elif inside := [word for word in words if word in naming.WORDS["column_site"]]:
        points, why = 2, [f"{inside[0]} in its name says so"]
        if column.is_number and words[-1] != inside[-1]:  # visits to a clinic, days in a hospital
            points, why = 0, [*why, "its numbers are of something there"]
    if against := [word for word in words if word in naming.WORDS["not_site"]]:
        points, why = points - 4, [*why, f"{against[0]} in its name says something else"]
    texts = column.words_of_cells if len(column.words_of_cells) <= MOST_SITES else []
    if (
        sum(map(naming.says_site, texts)) >= 0.5 * max(column.different, 1)
        and column.different > 1
        and not column.is_text
    ):
        points, why = points + 2, [*why, "its cells are names of hospitals"]
    if column.plain in (*naming.WORDS["column_identifier"], *naming.WORDS["column_patient"]):
        points, why = points - 5, [*why, "its name says a patient"]
    if points > 0 and any({*naming.name_words(text)} & {*naming.WORDS["cell_body"]} for text in texts):
        points, why = points - 4, [*why, "its cells are places of the body"]
    if points <= 0:
        return Evidence(column.name, "site", points, tuple(why))
    if column.is_yes_no and column.different == 2 and not column.is_number:
        points, why = points - 5, [*why, "it says yes or no"]
    if column.is_date or column.is_text or (column.is_number and not column.is_whole):
        points, why = points - 5, [*why, "its cells are dates, texts or decimals"]
    if column.different > max(2, column.rows / 2) or column.different > MOST_SITES:
        points, why = points - 3, [*why, "nearly every row has another value"]
    elif column.different > 1 and points > 0:
        points, why = (
            points + 1,
            [*why, f"{column.different} values with about {column.rows // column.different} rows each"],
        )
    return Evidence(column.name, "site", points, tuple(why))


class People:
    """Who the patient is, of the columns of a table whose sites are known."""

    def __init__(self, columns: Mapping[str, Column], sites: Sequence[str], taken: Sequence[str]) -> None:
        self.columns, self.taken = columns, {*taken}
        self.sites = pd.factorize(np.asarray(sites, dtype=object))[0]
        self.own = [one for one in self.columns.values() if one.plain in naming.WORDS["column_static"]]
        self.own = [one for one in self.own if one.different > 1]
        self.ages = [one for one in self.columns.values() if one.plain in naming.AGE and one.is_number]

        self.patient = ""
        self.evidence_of: list[Evidence] = []
        self.notes: list[str] = []

    @cached_property
    def ids(self) -> set[str]:
        """Columns that hold ids of patients or of their stays."""
        return {one.column for one in self.evidence_of}

    def groups(self, column: Column) -> np.ndarray:
        """int (N,): rows of one site with one id, in any spelling, have one number; -1 where the cell is empty."""
        keys = pd.factorize(np.array([*map(patient_key, column.cells.texts)], dtype=object))[0]
        codes = np.where(column.cells.empty, -1, keys)[column.cells.codes]
        found = pd.factorize(self.sites.astype(np.int64) * (len(column.cells.texts) + 1) + codes)[0]
        return np.where(codes < 0, -1, found)

    def determines(self, column: Column, groups: np.ndarray) -> tuple[float, str]:
        """Points for, or against, the rows of a value being one person's, by sex, birth and age."""
        counts = np.bincount(groups[groups >= 0])
        several = counts[groups] > 1
        several &= groups >= 0
        if (counts > 1).sum() < FEWEST:
            return 0, ""
        points, why = 0.0, list[str]()
        for own in self.own:
            if own is column:
                continue
            known = several & ~own.cells.empty[own.cells.codes]
            per = pd.Series(own.cells.codes[known]).groupby(groups[known]).nunique()
            if len(per) < FEWEST:
                continue
            if (per == 1).mean() < ALIKE:
                return -4, f"{own.name} differs within one value"
            points, why = 2, [*why, own.name]
        for age in self.ages:
            years = age.cells.numbers[age.cells.codes]
            known = several & np.isfinite(years)
            by = pd.Series(years[known]).groupby(groups[known])
            if age is column or np.nanstd(years) < 1 or by.ngroups < FEWEST:
                continue
            if ((by.max() - by.min()) <= YEARS).mean() < ALIKE:
                return -3, f"{age.name} differs by more than {YEARS} years within one value"
            points, why = points + 1, [*why, age.name]
        return points, f"{some(why, 3)} agree in all rows of one value" if why else ""

    def evidence(self, column: Column) -> Evidence:
        """Points for a patient ("patient"), or for a stay, a lesion or a study of one ("stay")."""
        points, why, role = 0.0, [], "patient"
        words = {*column.words}
        # Names or initials that few rows repeat are as good as ids where the column is named so.
        names = not column.is_number and not column.is_text and column.different >= FEWEST and column.mode < MODE
        if column.says("not_person") or (column.plain.endswith(naming.NOT_PERSON)):
            points, why = -5, ["its name says something else"]
        elif stays := column.says("column_stay"):
            points, why, role = 2, [f"{stays[0]} in its name says a part of a patient's rows"], "stay"
        elif column.plain in (*naming.WORDS["column_identifier"], *naming.WORDS["column_patient"]):
            points, why = 3, ["its name says so"]
        elif naming.PERSON.search(column.plain):
            points, why = 2, ["its name may say so"]
        elif words & {*NUMBERED} or column.plain.endswith(("id", "nummer", "nr")):
            points, why = 1, ["its name says an id"]
        if column.is_id:
            points, why = points + 1, [*why, f"{column.different} ids"]
        elif column.is_text or column.is_date or column.is_yes_no or not column.is_whole or column.different < FEWEST:
            points, why = points - 3, [*why, "its cells are no ids"] if not names else why
        else:
            points, why = points - 4, [*why, "its cells may be counts"]
        if points > 0 and (len(self.columns) <= MANY or points >= ASK):
            more, text = self.determines(column, self.groups(column))
            if more < 0 and points >= BAR and role == "patient":  # a name that says it stands against few errors
                self.notes.append(f"{column.name}: {text}: are these the same people?")
                more = 0
            elif more < 0 and role == "patient" and self.repeats(column):
                self.notes.append(f"{column.name} repeats, but {text}{ALONE}")
            points, why = points + more, [*why, *filter(None, [text])]
        return Evidence(column.name, role, points, tuple(why))

    def repeats(self, column: Column) -> bool:
        groups = self.groups(column)
        known = groups[groups >= 0]
        return len(known) > 0 and 20 * int((np.bincount(known) > 1).sum()) > len(np.unique(known))

    def within(self, fine: str, coarse: str) -> bool:
        """Whether each value of ``fine`` has one of ``coarse``."""
        a, b = (self.groups(self.columns[name]) for name in (fine, coarse))
        return len(pd.DataFrame({"a": a, "b": b}).drop_duplicates()) == len(np.unique(a))

    def find(self, chosen: Choices) -> None:
        """Find the column of the ``patient`` ("" where none is known), and all ids.

        Raises:
            UserError: a column may be the patient, or several may, and nobody can be asked.
        """
        self.evidence_of = [
            one
            for name, column in self.columns.items()
            if name not in self.taken and (one := self.evidence(column)).points >= ASK
        ]
        self.patient = "" if chosen.patient == "none" else chosen.patient or self._patient(chosen)
        self.notes = [note for note in self.notes if not (self.patient and note.endswith(ALONE))]
        if not self.patient:  # nobody is known by them
            self.evidence_of = [replace(one, role=one.role.replace("patient", "id")) for one in self.evidence_of]

    def _patient(self, chosen: Choices) -> str:
        sure = [one for one in self.evidence_of if one.role == "patient" and one.points >= BAR]
        # The coarsest, as its rows hold all of a person's; of equals the surest.
        sure.sort(key=lambda one: (self.columns[one.column].different, -one.points))
        apart = [one for one in sure[1:] if not self.within(one.column, sure[0].column)]
        if apart:
            readings = [Reading(str(one), flag("patient", one.column)) for one in (sure[0], *apart)]
            return (sure[0], *apart)[chosen.ask(f"{len(readings)} columns may be the patient", readings)].column
        if sure:
            return sure[0].column
        stays = [one for one in self.evidence_of if one.role == "stay"]
        repeated = [one.column for one in self.evidence_of if self.repeats(self.columns[one.column])]
        parts = [one.column for one in stays if one.points >= BAR and one.column in repeated]
        if parts:
            best = min(parts, key=lambda name: self.columns[name].different)
            self.notes.append(f"{best} numbers parts of a patient's rows, and nothing says who has several of them")
            return best
        for one in self.evidence_of:
            if one.role == "patient" and one.column in repeated:
                readings = [
                    Reading("it is the patient", flag("patient", one.column)),
                    Reading("every row is a patient of its own", flag("patient", "none")),
                ]
                if not chosen.ask(f"{one.column} repeats ({'; '.join(one.reasons)})", readings):
                    return one.column
        text = "{} numbers stays, and nothing says the patient: who has two may lie in two splits ({} joins them)"
        self.notes += [text.format(one.column, flag("patient", one.column)) for one in stays[:1]]
        return ""


def is_code(column: Column) -> str:
    """Why numbers are codes, which have no order: "" where they are not."""
    if not column.different:
        return ""
    lettered = [value for value in column.words_of_cells if CODED.fullmatch(value)]
    if lettered and len(column.numbers) and len(lettered) + len(column.numbers) >= ALIKE * column.different:
        return f"codes such as {lettered[0]} stand among its numbers"
    if named := column.says("column_code"):
        return f"{named[0]} in its name says codes"
    if column.is_whole and (column.words[-1:] == ["id"] or re.search(r"[a-z](Id|ID)$", column.name)):
        return "its name says an id"
    if column.is_whole and column.plain.endswith("nummer") and column.is_id:
        return "its name says an id"
    numbered = column.is_whole and column.words[1:] and column.words[-1] in NUMBERED
    if numbered and column.numbers.min() > 0 and column.numbers.max() > SPARSE * column.different >= SPARSE * FEW_CODES:
        return f"{column.words[-1]} in its name says numbers of something"
    return ""


def likely_outcomes(columns: Mapping[str, Column], taken: Sequence[str]) -> list[str]:
    """All columns, those first that may be the outcome."""
    names = list(columns)
    points: dict[str, float] = {}
    for place, (name, column) in enumerate(columns.items()):
        named = column.says("says_outcome") or column.plain in naming.WORDS["column_event"]
        score = 3.0 * bool(named) + 2 * (place == len(names) - 1)
        score += 2 * (column.different == 2) + (2 < column.different <= naming.MOST_GRADES)
        score -= 5 * (name in taken or column.is_date or column.is_text or column.different < 2)
        score -= 3 * (column.plain in (*naming.WORDS["column_static"], *naming.AGE))
        points[name] = score - 2 * (column.is_number and not column.is_whole)
    return sorted(names, key=lambda name: -points[name])


def sites_by_cells(columns: Mapping[str, Column], chosen: Choices) -> str:
    """The column of the hospital; "" where none reaches the bar.

    Raises:
        UserError: several may be meant, and nobody can be asked.
    """
    if chosen.site:
        return "" if chosen.site == "none" else chosen.site
    found = [as_site(one) for one in columns.values()]
    fits = [one for one in found if one.points >= BAR and columns[one.column].different > 1]
    if not fits:
        return next((one.column for one in found if one.points >= BAR), "")
    first = max(fits, key=lambda one: one.points)
    codes = columns[first.column].cells.codes
    pairs = {one: pd.DataFrame({"a": codes, "b": columns[one.column].cells.codes}).drop_duplicates() for one in fits}
    # Columns that say the same, as a hospital's name and its number, are one.
    apart = [one for one in fits if len(pairs[one]) > len(np.unique(codes))]
    if not apart:
        return first.column
    readings = [
        Reading(f"{one} (such as {some(in_order(columns[one.column].values), 3)})", flag("site", one.column))
        for one in (first, *apart)
    ]
    return (first, *apart)[chosen.ask(f"{len(readings)} columns may be the site", readings)].column
