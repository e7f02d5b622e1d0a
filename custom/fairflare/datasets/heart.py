# SPDX-License-Identifier: Apache-2.0
"""Heart disease at four hospitals: has a patient a narrowed coronary artery? Real patients of 1981 to 1987.

Origin and licence of the files are in data/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import numpy as np
import torch

from fairflare.core.types import Training
from fairflare.data.inputs import Scaling, TableInputs
from fairflare.data.readers.table_features import Columns, Feature, as_numbers
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import Grouping, TensorData
from fairflare.datasets.patients import Centres, CentreTask, fixed_split
from fairflare.tasks.base import Preset, expect

FILES = {
    "Cleveland": ("processed.cleveland.data", "Cleveland Clinic Foundation, United States"),
    "Hungary": ("processed.hungarian.data", "Hungarian Institute of Cardiology, Budapest"),
    "Switzerland": ("processed.switzerland.data", "University Hospitals of Zurich and Basel"),
    "VA": ("processed.va.data", "Veterans Affairs Medical Center, Long Beach, United States"),
}
"""Site -> its file and what it is."""
KINDS = {site: words for site, (_, words) in FILES.items()}
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip
"""Of every file; num is the diagnosis, 0 for no disease."""
VALUES = {
    "sex": (0, 1),
    "cp": (1, 2, 3, 4),
    "fbs": (0, 1),
    "restecg": (0, 1, 2),
    "exang": (0, 1),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}
"""The codebook's values of the columns that are categories."""
IMPOSSIBLE = ("trestbps", "chol")
"""Columns in which 0 stands for a missing value: blood pressure, and cholesterol at all of Switzerland."""


@cache
def patients(site: str) -> dict[str, np.ndarray]:
    """Column -> float64 values of the site's patients in the file's order, nan where missing, 0 as it stands there."""
    text = resources.files("fairflare.datasets").joinpath(f"data/{FILES[site][0]}").read_text()
    return dict(zip(COLUMNS, np.loadtxt(text.splitlines(), delimiter=",").T, strict=True))


def diseased(site: str) -> np.ndarray:
    """int64 (N,): 1 where num is above 0."""
    return (patients(site)["num"] > 0).astype(np.int64)


FLAMBY = Training(
    rounds=15, batch_size=4, optimizer="sgd", lr=1e-3, momentum=0.0, weight_decay=0.0, local_steps=100
)  # fmt: skip
"""FLamby's federated training of FedAvg, FedProx and SCAFFOLD."""
FULL = Training(rounds=40, epochs=1, batch_size=8, optimizer="adam", lr=5e-3, weight_decay=0.0)
DROPPED = ("slope", "ca", "thal")
"""Columns 10, 11 and 12, which are mostly missing outside Cleveland."""
DUMMIES = ("cp", "restecg")
"""Columns 2 and 6."""
FLAMBY_TRAIN = {
    "Cleveland": "fbfb7f5fdf4c3a623b75fc4afa3fb7ef783ffe536bcfe7f57b8fea5a67b6ed9f071dffe3141a",
    "Hungary": "eeff7b8347be2bd3778ff2aeff6c796e672ebbecb7b7edd096c5fbee7fd6ef45c8",
    "Switzerland": "f879c5737f3c",
    "VA": "b9b7ffdba49afdf147a4fb779ffc58ba40",
}
"""Site -> a bit for each complete patient, set where FLamby's split trains: scikit-learn's ``train_test_split``."""
NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak", "ca")
GAPS = ("trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal")
"""Columns with a missing value somewhere: "full" says of each whether it is missing."""


@dataclass(frozen=True)
class Heart(CentreTask):
    """Angiographic disease status (Detrano et al., American Journal of Cardiology 64, 1989).

    Args:
        protocol: "flamby": Fed-Heart-Disease of FLamby (Ogier du Terrail et al., NeurIPS 2022 datasets track): columns
            slope, ca and thal and then patients with anything missing are left out; 13 features, each standardised with
            the mean and standard deviation (ddof 1) of the centre's own training patients; FLamby's fixed split, which
            has no validation patients. A batch that would hold one patient joins the one before (VA's last), unless
            ``reference``. "full": all 920 patients and 13 columns, one-hot where they are categories, gaps filled with
            the centre's own training median and one column more that says so; 60, 10 and 30 per cent for training,
            validation and testing. Cholesterol and blood pressure of 0 are missing values there; "flamby" takes them as
            numbers, as FLamby does.
        model: "logistic": one linear layer and a sigmoid, FLamby's; "linear": one logit for each class; "mlp" (64
            hidden units).
        reference: what FLamby's code does beside its protocol: the run's seed itself draws the initial model, as torch
            draws it after ``manual_seed``, and a batch of one patient is a batch.
        scaling: whose mean and standard deviation training patients of "flamby" are standardised with: "centre", their
            own centre's; "pooled", those of all centres' training patients, as FLamby's pooled training has them.
            Test patients always have their centre's own.
    """

    name = "heart"
    title = "Heart disease at four hospitals"
    real = "920 patients of four hospitals (UCI Heart Disease, doi 10.24432/C52P4X, CC BY 4.0)"
    classes = ("no disease", "disease")
    headline = "accuracy"
    primary = "accuracy of the worst hospital; benefit of joining: a hospital's accuracy against its own local model's"
    attributes = {"sex": ("female", "male"), "age": ("up to 50", "51 to 60", "over 60")}
    presets = {
        "flamby": Preset(
            "FLamby's Fed-Heart-Disease, to the letter: 740 patients, no validation split; seconds", {}, FLAMBY
        ),
        "full": Preset("all 920 patients, missing values marked; seconds", {"protocol": "full"}, FULL),
    }

    protocol: Literal["flamby", "full"] = "flamby"
    model: Literal["logistic", "linear", "mlp", "regression"] = "logistic"
    reference: bool = False
    scaling: Literal["centre", "pooled"] = "centre"

    def __post_init__(self) -> None:
        super().__post_init__()
        expect("scaling", self.scaling == "centre" or self.protocol == "flamby", "centre", self.scaling)

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        data = super().local_data(site, own)
        if self.scaling == "pooled":
            table = self.table()
            everyone = np.concatenate([splits["train"] for splits in table.rows.values()])
            scaled = self.scaled_by(table.numbers[everyone])
            data.splits["train"] = table.split(table.rows[site]["train"], scaled)
            data.grouped(Grouping())
        return data

    def sites(self) -> dict[str, str]:
        return dict(KINDS)  # no split, hence no scikit-learn

    def table(self, own: SiteConfig | None = None) -> Centres:
        return _centres(self.protocol)

    def scaled_by(self, train: np.ndarray) -> Scaling:
        """(x - mean) / sd of the centre's training patients; a column without spread there is only centred.

        No patient of "flamby" has a gap; a new one's is filled with the mean.
        """
        if self.protocol == "full":
            return Scaling.of(train)
        mean, sd = torch.from_numpy(train.mean(0)), torch.from_numpy(train.std(0, ddof=1))
        return Scaling(mean, mean, sd)

    def table_inputs(self) -> TableInputs:
        return inputs_of(self.protocol)


def inputs_of(protocol: str) -> TableInputs:
    """How the columns become features: the 13 numbers of "flamby", dummies among them, or all of "full"."""
    used = [name for name in COLUMNS[:-1] if protocol == "full" or name not in DROPPED]
    if protocol == "full":
        numbers = tuple(Feature(name, zero_is_missing=name in IMPOSSIBLE) for name in NUMBERS)
        flags = [Feature(name, (float(value),)) for name, values in VALUES.items() for value in values]
        plain = (*flags, *(Feature(name, missing=True, zero_is_missing=name in IMPOSSIBLE) for name in GAPS))
    else:
        dummies = [Feature(name, (float(value),)) for name in DUMMIES for value in VALUES[name][1:]]
        numbers, plain = (*(Feature(name) for name in used if name not in DUMMIES), *dummies), ()
    known = {name: tuple(map(str, values)) for name, values in VALUES.items() if name in used}
    return TableInputs(numbers, plain, known, ("?", "NaN", "nan"), _attributes_of)


@cache
def _centres(protocol: str) -> Centres:
    full = protocol == "full"
    kept = [name for name in COLUMNS[:-1] if full or name not in DROPPED]
    cells, labels, rows, start = [], [], {}, 0
    for site in FILES:
        found, y = np.stack([patients(site)[name] for name in kept], axis=1), diseased(site)
        whole = full | ~np.isnan(found).any(1)
        cells.append(found[whole])
        labels.append(y[whole])
        n = len(labels[-1])
        split = fixed_split(np.arange(n), "heart", site) if full else _flamby_split(site, n)
        rows[site] = {name: start + part for name, part in split.items()}
        start += n
    table = dict(zip(kept, np.concatenate(cells).T))
    return Centres(np.concatenate(labels), *inputs_of(protocol).of(table, start), _attributes(table), rows, KINDS)


def _flamby_split(site: str, n: int) -> dict[str, np.ndarray]:
    """Split -> sorted places of a centre's ``n`` patients."""
    trains = np.unpackbits(np.frombuffer(bytes.fromhex(FLAMBY_TRAIN[site]), np.uint8))[:n]
    return {"train": np.flatnonzero(trains), "val": np.empty(0, dtype=np.int64), "test": np.flatnonzero(1 - trains)}


def _attributes_of(columns: Columns) -> dict[str, list[str]]:
    """Sex and age band from a file's cells; none without both columns."""
    if not {"sex", "age"} <= set(columns):
        return {}
    cells = {name: ["" if cell in ("?", "NaN", "nan") else cell for cell in columns[name]] for name in ("sex", "age")}
    return _attributes({name: as_numbers("", name, found) for name, found in cells.items()})


def _attributes(table: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    sexes, bands = (Heart.attributes[name] for name in ("sex", "age"))
    return {
        "sex": [sexes[int(value)] if value in (0, 1) else "" for value in table["sex"]],
        "age": ["" if np.isnan(value) else bands[int(value > 50) + int(value > 60)] for value in table["age"]],
    }
