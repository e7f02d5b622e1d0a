# SPDX-License-Identifier: Apache-2.0
"""The International Stroke Trial: who is dead or dependent six months after a stroke? 466 hospitals, 36 countries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Annotated, Literal

import numpy as np
import torch

from fairflare.core.types import Training
from fairflare.core.validation import Range
from fairflare.data.checks import expect
from fairflare.data.inputs import Scaling, TableInputs
from fairflare.data.readers.table_features import Columns, as_numbers
from fairflare.datasets.kinds.centres import Centres, CentreTask, fixed_split
from fairflare.datasets.readers import trial
from fairflare.tasks.base import Preset

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
    model: Literal["logistic", "linear", "mlp"] = "logistic"

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("least", self.least >= 1, "at least 1", self.least)
        trial.check(self.columns())

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]  # depends on an option
        """Of ``outcome``."""
        return ("survived", "died") if self.outcome == "death" else ("independent", "dependent or dead")

    def columns(self) -> tuple[str, ...]:
        """The columns that features are made of."""
        return tuple(part.strip() for part in self.features.split(",")) if self.features else trial.AT_RANDOMISATION

    def centres(self) -> Centres:
        """The patients; their attributes are sex, age, consciousness and stroke type."""
        return _centres(self.sites_by, self.least, self.outcome, self.columns())

    def scaled_by(self, train: np.ndarray) -> Scaling:
        """(x - mean) / sd with constants, or with the site's own training patients where they are enough."""
        if self.scaling == "site" and len(train) >= ENOUGH:
            return Scaling.of(train)
        known = [trial.NUMBERS[name] for name in self.columns() if name in trial.NUMBERS]
        mean, sd = torch.tensor(known, dtype=torch.float64).reshape(-1, 2).unbind(1)
        return Scaling(mean, mean, sd)

    def table_inputs(self) -> TableInputs:
        """The trial's columns by their names; a missing number of a new patient becomes the mean."""
        numbers, plain = trial.made_of(self.columns())
        known = {name: values for name, values in _codes().items() if name in self.columns()}
        fixed = self.scaled_by(np.empty((0, 0))) if self.scaling == "shared" else None
        return TableInputs(numbers, plain, known, attributes=attributes_of, fixed=fixed)


@lru_cache(maxsize=8)
def _centres(sites_by: str, least: int, outcome: str, columns: tuple[str, ...]) -> Centres:
    labels = trial.outcome(outcome)
    rows, kinds = {}, {}
    for site, (kind, members) in _members(sites_by).items():
        split = {name: part[labels[part] >= 0] for name, part in fixed_split(members, "ist", site).items()}
        if len(members) >= least and len(split["train"]):
            rows[site], kinds[site] = split, kind
    expect("least", len(rows) > 1, f"a number of patients that two sites by {sites_by} have", least)
    return Centres(labels, *trial.features(columns), rows, kinds, _attributes())


@cache
def _members(sites_by: str) -> dict[str, tuple[str, np.ndarray]]:
    """Site -> what it is, and the rows of its patients; a hospital has its number in the trial."""
    countries, numbers = trial.column("COUNTRY"), trial.column("HOSPNUM").astype(np.int64)
    if sites_by == "country":
        names = sorted(trial.COUNTRIES.items(), key=lambda item: item[1])
        found = {words: (code, np.flatnonzero(countries == code)) for code, words in names}
        return {words: (f"{_hospitals(numbers[rows])}, code {code}", rows) for words, (code, rows) in found.items()}
    members = [(number, np.flatnonzero(numbers == number)) for number in np.unique(numbers)]
    return {f"hospital-{number:03d}": (trial.COUNTRIES[countries[rows[0]]], rows) for number, rows in members}


def _hospitals(numbers: np.ndarray) -> str:
    found = len(np.unique(numbers))
    return f"{found} hospital{'s' * (found > 1)}"


@cache
def _attributes() -> dict[str, list[str]]:
    return attributes_of(trial.table())


def attributes_of(columns: Columns) -> dict[str, list[str]]:
    """Sensitive attribute -> each patient's value, "" where unknown; none without the column."""
    found = {name: [names.get(cell, "") for cell in columns.get(column, ())] for name, (column, names) in CODES.items()}
    ages = as_numbers("", "AGE", columns.get("AGE", ()))
    bands = ["" if np.isnan(age) else AGES[int(age > 65) + int(age > 75)] for age in ages]
    return {name: values for name, values in {**found, "age": bands}.items() if values}


def _codes() -> dict[str, tuple[str, ...]]:
    """Column -> the codes that it may hold."""
    return {**trial.CATEGORIES, "RXHEP": (*trial.CATEGORIES["RXHEP"], "H")}
