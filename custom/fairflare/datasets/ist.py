# SPDX-License-Identifier: Apache-2.0
"""The International Stroke Trial: who is dead or dependent six months after a stroke? 466 hospitals, 36 countries.

Origin, licence and columns of the file are in data/README.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import Annotated, Literal

import numpy as np
import torch

from fairflare.core.errors import UserError
from fairflare.core.types import Training
from fairflare.core.validation import Range, shown
from fairflare.data.inputs import Scaling, TableInputs
from fairflare.data.readers.table_features import Columns, Feature, as_numbers
from fairflare.data.site_config import SiteConfig
from fairflare.datasets.patients import Centres, CentreTask, fixed_split, packed
from fairflare.tasks.base import Preset, expect
from fairflare.tasks.kinds.survival import Cox, Hazards, Survival

NUMBERS = {"RDELAY": (20.0, 12.0), "AGE": (72.0, 12.0), "RSBP": (160.0, 28.0)}
"""Columns used as numbers -> rounded mean and standard deviation of the trial's patients: hours since the stroke,
years, mmHg. They are constants of the task, so that a hospital of one patient needs no statistics."""
CATEGORIES: dict[str, tuple[str, ...]] = {
    "RCONSC": ("F", "D", "U"),
    "SEX": ("M", "F"),
    **dict.fromkeys(("RSLEEP", "RATRIAL", "RCT", "RVISINF", "RHEP24", "RASP3"), ("N", "Y")),
    **{f"RDEF{k}": ("N", "Y", "C") for k in range(1, 9)},
    "STYPE": ("TACS", "PACS", "POCS", "LACS", "OTH"),
    "RXASP": ("N", "Y"),
    "RXHEP": ("N", "L", "M"),
}
"""Columns used as categories -> their values. The first one is the reference, which is a row of zeros like a missing
value; H and M of RXHEP are one dose."""
AT_RANDOMISATION = (*NUMBERS, *CATEGORIES)
"""What was known, or allocated, when a patient was randomised; nothing else may be a feature."""
COUNTRY_NAMES = {
    "ARGE": "Argentina", "AUSL": "Australia", "AUST": "Austria", "BELG": "Belgium", "BRAS": "Brazil", "CANA": "Canada",
    "CHIL": "Chile", "CZEC": "Czech-Republic", "DENM": "Denmark", "EIRE": "Ireland", "FINL": "Finland",
    "FRAN": "France", "GREE": "Greece", "HONG": "Hong-Kong", "HUNG": "Hungary", "INDI": "India", "ISRA": "Israel",
    "ITAL": "Italy", "JAPA": "Japan", "NETH": "Netherlands", "NEW": "New-Zealand", "NORW": "Norway", "POLA": "Poland",
    "PORT": "Portugal", "ROMA": "Romania", "SING": "Singapore", "SLOK": "Slovakia", "SLOV": "Slovenia",
    "SOUT": "South-Africa", "SPAI": "Spain", "SRI": "Sri-Lanka", "SWED": "Sweden", "SWIT": "Switzerland",
    "TURK": "Turkey", "UK": "UK", "USA": "USA",
}  # fmt: skip
"""The file's codes."""


table_of = partial(packed, "ist.csv.gz")
"""19,435 cells of each column."""


def column_of(name: str) -> np.ndarray:
    return np.array(table_of()[name])


def outcomes(label: str) -> np.ndarray:
    """int64 (N,): 1 where the outcome occurred, 0 where not, -1 where nobody knows.

    "dependent-or-dead" six months after the stroke (OCCODE 1 or 2; the trial's own), or "death" at any time (DIED).
    """
    if label == "death":
        return column_of("DIED").astype(np.int64)
    code = column_of("OCCODE")
    return np.where(np.isin(code, ("1", "2")), 1, np.where(np.isin(code, ("3", "4")), 0, -1))


def check_columns(names: Sequence[str]) -> None:
    """Raise UserError unless ``names`` are different columns that were known at randomisation."""
    if lost := [name for name in names if name not in AT_RANDOMISATION]:
        known = ", ".join(AT_RANDOMISATION)
        raise UserError(f"features: expected columns known at randomisation ({known}), got {shown(lost[0])}")
    if len(set(names)) < len(names) or not names:
        raise UserError(f"features: expected different columns, got {shown(', '.join(names))}")


def made_of(names: Sequence[str]) -> tuple[tuple[Feature, ...], tuple[Feature, ...]]:
    """Numbers and plain features that the columns ``names`` make; raises UserError for a column that is none."""
    check_columns(names)
    numbers = tuple(Feature(name) for name in names if name in NUMBERS)
    pairs = [(name, value) for name in names if name in CATEGORIES for value in CATEGORIES[name][1:]]
    return numbers, tuple(Feature(pair[0], (pair[1], "H") if pair == ("RXHEP", "M") else pair[1:]) for pair in pairs)


def features_of(names: Sequence[str] = AT_RANDOMISATION) -> tuple[np.ndarray, np.ndarray]:
    """The features that the columns ``names`` make: numbers float64 (N, n), and 0 or 1 as float32 (N, m)."""
    return TableInputs(*made_of(names)).features("ist.csv.gz", table_of())


COUNTRIES = Training(rounds=30, epochs=1, batch_size=32, optimizer="sgd", lr=0.02, momentum=0.9, weight_decay=0.0)
HOSPITALS = Training(rounds=50, epochs=1, batch_size=32, optimizer="sgd", lr=0.5, momentum=0.0, weight_decay=0.0)
"""A hospital of usual size makes one step in a round, so that the steps must be long; chosen on validation patients."""
ENOUGH = 20
"""Training patients from which on a site's own mean and standard deviation are used, with scaling=site."""
AGES = ("up to 65", "66 to 75", "over 75")
CODES = {
    "sex": ("SEX", {"F": "female", "M": "male"}),
    "consciousness": ("RCONSC", {"F": "alert", "D": "drowsy", "U": "unconscious"}),
    "stroke": (
        "STYPE",
        {"TACS": "total anterior", "PACS": "partial anterior", "POCS": "posterior", "LACS": "lacunar", "OTH": "other"},
    ),
}
"""Attribute -> its column, and code -> value."""


@dataclass(frozen=True)
class Ist(CentreTask):
    """Outcome of acute ischaemic stroke from what was known at randomisation (Sandercock et al., Trials 12:101, 2011).

    Splits of 60, 10 and 30 per cent for training, validation and testing are drawn once within each site from its name;
    neither outcome nor seed plays a part. Patients whose outcome nobody knows (150 of "dependent-or-dead") are left out
    afterwards, and a hospital that then has none to train on takes no part: three of 466. Hospitals are small: a
    quarter have 9 patients or fewer, 14 have one. Many test sets are empty or have one class; metrics that are then
    undefined are left out.

    Args:
        sites_by: "country" or "hospital".
        least: patients that a country or hospital has at least; others take no part.
        outcome: "dependent-or-dead" at six months, the trial's own primary outcome, or "death" within the follow-up.
        features: columns known at randomisation, separated by commas; empty: all of them. Any other is refused.
        scaling: "shared": delay, age and blood pressure are scaled by constants, so that a hospital of one patient is
            like any other; "site": by the mean and standard deviation of the site's own training patients where these
            are 20 or more, else by the constants.
        model: "logistic": one linear layer and a sigmoid; "linear": one logit for each class; "mlp" (64 hidden units).
    """

    name = "ist"
    title = "International Stroke Trial: outcome after six months"
    real = (
        "19,435 patients of 466 hospitals in 36 countries, 1991 to 1996 (Sandercock, Niewada, Czlonkowska: "
        "International Stroke Trial database, version 2, University of Edinburgh, doi 10.7488/ds/104, ODC-By)"
    )
    primary = "calibration error and AUC of the worst country"
    attributes = {name: tuple(values.values()) for name, (_, values) in CODES.items()} | {"age": AGES}
    presets = {
        "countries": Preset("17 countries with 200 patients or more; a minute on a laptop", {}, COUNTRIES),
        "hospitals": Preset(
            "all 466 hospitals, 1 to 524 patients each, and death, which is known of every patient; minutes",
            {"sites_by": "hospital", "least": 1, "outcome": "death"},
            HOSPITALS,
        ),
    }

    sites_by: Literal["country", "hospital"] = "country"
    least: Annotated[int, Range(1, 10_000)] = 200
    outcome: Literal["dependent-or-dead", "death"] = "dependent-or-dead"
    features: str = ""
    scaling: Literal["shared", "site"] = "shared"
    model: Literal["logistic", "linear", "mlp", "regression"] = "logistic"

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("least", self.least >= 1, "at least 1", self.least)
        check_columns(self.columns())

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on an option
        return ("survived", "died") if self.outcome == "death" else ("independent", "dependent or dead")

    def columns(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.features.split(",")) if self.features else AT_RANDOMISATION

    def table(self, own: SiteConfig | None = None) -> Centres:
        return _centres(self.sites_by, self.least, self.outcome, self.columns())

    def scaled_by(self, train: np.ndarray) -> Scaling:
        """(x - mean) / sd with constants, or with the site's own training patients where they are enough."""
        if self.scaling == "site" and len(train) >= ENOUGH:
            return Scaling.of(train)
        known = [NUMBERS[name] for name in self.columns() if name in NUMBERS]
        mean, sd = torch.tensor(known, dtype=torch.float64).reshape(-1, 2).unbind(1)
        return Scaling(mean, mean, sd)

    def table_inputs(self) -> TableInputs:
        numbers, plain = made_of(self.columns())
        codes = {**CATEGORIES, "RXHEP": (*CATEGORIES["RXHEP"], "H")}
        known = {name: values for name, values in codes.items() if name in self.columns()}
        fixed = self.scaled_by(np.empty((0, 0))) if self.scaling == "shared" else None
        return TableInputs(numbers, plain, known, attributes=attributes_of, fixed=fixed)


DAYS = (7.0, 14.0, 30.0, 60.0, 90.0, 120.0, 150.0, 180.0)
"""Ends of the intervals in days: two weeks, and six months, were the trial's own times."""


@dataclass(frozen=True)
class IstSurvival(CentreTask):
    """Days from randomisation to death in the same trial, censored at the end of each patient's follow-up.

    Sites, splits and features are those of ``ist`` by country. Two patients without a time are left out; a time of 0
    counts in the first interval. Little is known after six months: the curves end there.

    Args:
        least: patients that a country has at least; others take no part.
        output: "hazards": that of each interval up to 180 days; "cox": one log risk.
        model: "linear", "mlp" (64 hidden units), or with output=cox "regression", see the method ``glm``.
    """

    name = "ist-survival"
    title = "International Stroke Trial: days until death"
    real = Ist.real
    primary = "C-index of the worst country"
    classes = ()
    headline = "harrell_c"
    attributes = Ist.attributes
    presets = {"countries": Preset("17 countries with 200 patients or more; a minute on a laptop", {}, COUNTRIES)}

    least: Annotated[int, Range(1, 10_000)] = 200
    output: Literal["hazards", "cox"] = "hazards"
    model: Literal["linear", "mlp", "regression"] = "linear"

    @property
    def kind(self) -> Survival:  # type: ignore[override]  # depends on an option
        return (Cox if self.output == "cox" else Hazards)(ends=DAYS)

    def table(self, own: SiteConfig | None = None) -> Centres:
        return _times_of_centres(self.least)

    def scaled_by(self, train: np.ndarray) -> Scaling:
        return Ist().scaled_by(train)

    def table_inputs(self) -> TableInputs:
        return Ist().table_inputs()


@cache
def _times_of_centres(least: int) -> Centres:
    """Those of deaths, with times and events (N, 2) in place of labels."""
    made = _centres("country", least, "death", AT_RANDOMISATION)
    times = as_numbers("ist.csv.gz", "TD", table_of()["TD"])
    targets = np.stack((times, made.labels), axis=1).astype(np.float32)
    known = ~np.isnan(times)
    rows = {site: {name: part[known[part]] for name, part in splits.items()} for site, splits in made.rows.items()}
    return replace(made, labels=targets, rows=rows)


@lru_cache(maxsize=8)
def _centres(sites_by: str, least: int, outcome: str, columns: tuple[str, ...]) -> Centres:
    labels = outcomes(outcome)
    rows, kinds = {}, {}
    for site, (kind, members) in _members(sites_by).items():
        split = {name: part[labels[part] >= 0] for name, part in fixed_split(members, "ist", site).items()}
        if len(members) >= least and len(split["train"]):
            rows[site], kinds[site] = split, kind
    expect("least", len(rows) > 1, f"a number of patients that two sites by {sites_by} have", least)
    return Centres(labels, *features_of(columns), attributes_of(table_of()), rows, kinds)


@cache
def _members(sites_by: str) -> dict[str, tuple[str, np.ndarray]]:
    """Site -> what it is, and the rows of its patients; a hospital has its number in the trial."""
    countries, numbers = column_of("COUNTRY"), column_of("HOSPNUM").astype(np.int64)
    if sites_by == "country":
        names = sorted(COUNTRY_NAMES.items(), key=lambda item: item[1])
        found = {words: (code, np.flatnonzero(countries == code)) for code, words in names}
        many = {words: len(np.unique(numbers[rows])) for words, (_, rows) in found.items()}
        said = {words: f"{n} hospital{'s' * (n > 1)}, code {found[words][0]}" for words, n in many.items()}
        return {words: (said[words], rows) for words, (_, rows) in found.items()}
    members = [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers)]
    return {f"hospital-{number:03d}": (COUNTRY_NAMES[countries[rows[0]]], rows) for number, rows in members}


def attributes_of(columns: Columns) -> dict[str, list[str]]:
    """Sensitive attribute -> each patient's value, "" where unknown; none without the column."""
    found = {name: [names.get(cell, "") for cell in columns.get(column, ())] for name, (column, names) in CODES.items()}
    ages = as_numbers("", "AGE", columns.get("AGE", ()))
    bands = ["" if np.isnan(age) else AGES[int(age > 65) + int(age > 75)] for age in ages]
    return {name: values for name, values in {**found, "age": bands}.items() if values}
