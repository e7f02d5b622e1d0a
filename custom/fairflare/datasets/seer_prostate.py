# SPDX-License-Identifier: Apache-2.0
"""SEER: which cancer? FedUFO's registry table, which the user has by a signed agreement with SEER.

In the data folder:

    seer/2018.xlsx    SEER*Stat case listing of one year, names in the first row
    seer/2019.xlsx    likewise; any number of years
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from fairflare.core.errors import DataError
from fairflare.core.types import Training
from fairflare.data.site_config import SiteConfig
from fairflare.datasets import on_disk
from fairflare.datasets.on_disk import OnDisk
from fairflare.datasets.patients import Table, TableTask, as_in_fedufo
from fairflare.tasks.base import Preset, expect

FOLDER = "seer"
TOP = 10
LABEL = "Site recode ICD-O-3/WHO 2008"
RACE, SEX = "Race recode (White, Black, Other)", "Sex"
NUMBERS = ("Primary Site", "Histologic Type ICD-O-3", "RX Summ--Surg Prim Site (1998+)")
CATEGORIES = (
    "Age recode with <1 year olds",
    RACE,
    SEX,
    "PRCDA 2020",
    "Behavior recode for analysis",
    "Laterality",
    "Diagnostic Confirmation",
    "Reason no cancer-directed surgery",
    "RX Summ--Systemic/Sur Seq (2007+)",
)
LEAKS = (*NUMBERS, "Laterality", "Reason no cancer-directed surgery", "RX Summ--Systemic/Sur Seq (2007+)")
"""SEER computes the label from the first two; laterality and surgery are coded by organ; treatment comes after it."""
BLANK = "Blank(s)"
"""How SEER*Stat writes an empty cell."""
SGD = Training(rounds=20, epochs=1, batch_size=128, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
"""FedUFO's batch of 128. Plain SGD, since Adam undoes a weight on the loss."""


@dataclass(frozen=True)
class SeerProstate(TableTask, OnDisk):
    """The ten most frequent cancers of a registry and all others, from what is recorded of a patient.

    FedUFO calls this table "Prostate"; its label is the site of any cancer. The columns bear the names that its public
    code asks for. They have not been checked against an export, and other exports name them otherwise: they are
    options, and a sheet that lacks one is refused with a list of those that it has. Rows with an empty cell in a column
    that is used, or "Blank(s)", are left out, as upstream. Splits are drawn within each class.

    The files are read before a network is built, since they decide how many values a category has: every machine of a
    run needs them in the folder that FAIRFLARE_DATA names, the server's too. A patient with several tumours has several
    rows: name the column ``patient``, where there is one, to keep them in one split of one site (of each year's, where
    sites are years).

    Args:
        features: "clean": the columns below without those from which the label follows, those coded by organ and those
            of treatment: the three numbers, laterality and the last two categories, by these very names. "paper": all
            columns, numbers unscaled, as published. They leak: SEER computes the label from the first two numbers.
        label: the column of the cancer's site; classes are its ten most frequent values over all years, most frequent
            first, and all others.
        numbers: columns of numbers, separated by semicolons.
        categories: columns used one-hot, separated by semicolons.
        race: column of the race, White, Black or Other (...); empty: not known.
        sex: column of the sex, Female or Male; empty: not known.
        patient: column that tells patients apart, e.g. Patient ID; empty, as upstream: each row counts as a patient.
        years: files to read without ".xlsx", separated by commas; empty: all, sorted by name.
        sites_by: "dirichlet": label skew over ``n_sites``; "year": one site for each of ``years``; "year+dirichlet":
            label skew over as many sites in each year.
        n_sites: 2..50; FedUFO has 2.
        alpha: concentration > 0 of the Dirichlet split; FedUFO's is 10. Redrawn until every site has 40 patients and 5
            of each class.
    """

    name = "seer-prostate"
    title = "SEER, FedUFO's columns: site of a cancer"
    real = "patients of the SEER registries and their cancers, files that you bring (by agreement with SEER)"
    simulated = "the hospitals: a site is a year or a share of a label-skewed split"
    classes = (*(f"cancer {k}" for k in range(1, TOP + 1)), "other")
    attributes = {"race": ("white", "black", "other"), "sex": ("female", "male")}
    presets = {
        "small": Preset("two sites, at most 2,000 patients each in training; needs SEER files", {"limit": 2000}, SGD),
        "paper": as_in_fedufo("SEER files; 64 hidden units, not 256", 1.0, lr=1e-3, epochs=2, batch=128),
    }
    natural, natural_words = "year", "years"
    smallest_site, smallest_class = 40, 5

    features: Literal["clean", "paper"] = "clean"
    label: str = LABEL
    numbers: str = "; ".join(NUMBERS)
    categories: str = "; ".join(CATEGORIES)
    race: str = RACE
    sex: str = SEX
    patient: str = ""
    years: str = ""
    sites_by: Literal["dirichlet", "year", "year+dirichlet"] = "dirichlet"
    n_sites: int = 2
    alpha: float = 10.0
    limit: int | None = None

    def __post_init__(self) -> None:
        years, columns = self.natural_groups, self.columns("paper")
        expect("years", len(set(years)) == len(years), "different years", self.years)
        plain = all(year not in (".", "..") and not set(year) & set("/\\") for year in years)
        expect("years", plain, "names of files, without folders", self.years)
        expect("years", self.sites_by == "dirichlet" or bool(years), "years where sites_by names them", self.years)
        expect("label", bool(self.label) and self.label not in columns, "a column that is no feature", self.label)
        expect("patient", self.patient not in (self.label, *columns), "a column that is no feature", self.patient)
        expect("categories", len(set(columns)) == len(columns), "different columns", columns)
        expect("categories", bool(self.columns(self.features)), "columns besides those that leak", self.categories)
        super().__post_init__()

    @property
    def natural_groups(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on an option
        return _parts(self.years, ",")

    def columns(self, features: str) -> tuple[str, ...]:
        """The columns of ``numbers`` and ``categories`` that "clean" or "paper" features are made of."""
        found = (*_parts(self.numbers, ";"), *_parts(self.categories, ";"))
        return found if features == "paper" else tuple(name for name in found if name not in LEAKS)

    def n_features(self) -> int:
        return self.table().n_features

    def table(self, own: SiteConfig | None = None) -> Table:
        folder = self.needed(self.root(own) / FOLDER)
        names = [f"{year}.xlsx" for year in self.natural_groups] or sorted(
            path.name for path in folder.glob("*.xlsx") if not path.name.startswith(("~", "."))
        )
        paths = tuple(self.needed(folder / name).resolve() for name in names or ["<year>.xlsx"])
        numbers = tuple(name for name in _parts(self.numbers, ";") if name in self.columns(self.features))
        categories = tuple(name for name in _parts(self.categories, ";") if name in self.columns(self.features))
        others = {"race": self.race, "sex": self.sex, "patient": self.patient}
        return _table(paths, self.label, numbers, categories, tuple(others.items()), self.features == "paper")


@lru_cache(maxsize=2)
def _table(
    paths: Sequence[Path],
    label: str,
    numbers: Sequence[str],
    categories: Sequence[str],
    others: Sequence[tuple[str, str]],
    paper: bool,
) -> Table:
    """The rows of all files; ``others`` are the columns of race, sex and patient, "" for none."""
    named = dict(others)
    kept = list(dict.fromkeys(name for name in (label, *numbers, *categories, *named.values()) if name))
    cells: dict[str, list[str]] = {name: [] for name in kept}
    measured, years = [], []
    for year, path in enumerate(paths):
        frame = on_disk.read(path)
        on_disk.need(frame, path.name, kept)
        used = frame[[name for name in (label, *numbers, *categories, named["patient"]) if name]]
        blank = used.apply(lambda column: column.astype(str).str.strip().isin(("", BLANK)))
        frame = frame[~(blank | used.isna()).any(axis=1)]
        measured.append(on_disk.numbers(frame, path.name, numbers))
        years += [year] * len(frame)
        for name in kept:
            cells[name] += on_disk.texts(frame, name)
    if not years:
        raise DataError("few_examples", f"{paths[0].name}: expected rows without an empty cell, got none")
    flags = [np.empty((len(years), 0), dtype=np.float32)]
    for name in categories:
        values, places = np.unique(cells[name], return_inverse=True)
        flags.append(on_disk.one_hot(places, len(values)))
    found, plain = np.concatenate(measured), np.hstack(flags)
    return Table(
        labels=_ranks(cells[label]),
        numbers=found[:, :0] if paper else found,
        plain=np.hstack((found.astype(np.float32), plain)) if paper else plain,
        attributes={
            # "Other (American Indian/AK Native, Asian/Pacific Islander)" is other; "Unknown" is none of the values.
            name: [cell.partition(" (")[0].lower() for cell in cells[named[name]]] if named[name] else [""] * len(years)
            for name in SeerProstate.attributes
        },
        groups=np.array(years, dtype=np.int64),
        cases=np.unique(cells[named["patient"]], return_inverse=True)[1] if named["patient"] else None,
    )


def _ranks(cells: Sequence[str]) -> np.ndarray:
    """int64 (N,): 0 for the most frequent value, ... and ``TOP`` for all but the first ten; ties by name."""
    _, places, counts = np.unique(cells, return_inverse=True, return_counts=True)
    ranks = np.argsort(np.argsort(-counts, kind="stable"))
    return np.minimum(ranks[places], TOP)


def _parts(text: str, separator: str) -> tuple[str, ...]:
    return tuple(part for part in (piece.strip() for piece in text.split(separator)) if part)
