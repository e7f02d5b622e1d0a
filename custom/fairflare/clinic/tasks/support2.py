# SPDX-License-Identifier: Apache-2.0
"""SUPPORT2: will a seriously ill patient die? A real cohort of 9,105 adults in five US hospitals, 1989 to 1994."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.clinic import networks, scores
from fairflare.clinic.base import Preset, Task, standardise
from fairflare.clinic.checks import expect, site_index
from fairflare.clinic.partition import dirichlet_by_label, redrawn
from fairflare.clinic.tensors import Split, TensorData
from fairflare.contracts import Training
from fairflare.seeds import derive

NUMBERS = tuple(
    [
        "age",
        "num.co",
        "edu",
        "scoma",
        "meanbp",
        "wblc",
        "hrt",
        "resp",
        "temp",
        "pafi",
        "alb",
        "bili",
        "crea",
        "sod",
        "ph",
        "glucose",
        "bun",
        "urine",
        "adlp",
        "adls",
    ]
)
"""Columns used as numbers; a missing value becomes the median of the site's training patients."""
CATEGORIES: dict[str, tuple[str, ...]] = {
    "sex": ("female", "male"),
    "race": ("asian", "black", "hispanic", "other", "white"),
    "income": ("under $11k", "$11-$25k", "$25-$50k", ">$50k"),
    "dzgroup": tuple(
        ["ARF/MOSF w/Sepsis", "CHF", "COPD", "Cirrhosis", "Colon Cancer", "Coma", "Lung Cancer", "MOSF w/Malig"]
    ),
    "ca": ("no", "yes", "metastatic"),
    "diabetes": ("0", "1"),
    "dementia": ("0", "1"),
}
"""The codebook's values of the columns used one-hot; a missing or unknown value is a row of zeros."""
DISEASE_CLASSES = ("ARF/MOSF", "COPD/CHF/Cirrhosis", "Cancer", "Coma")
LABELS = {"hospital_death": "hospdead", "death": "death"}
SMALLEST_SITE = 40
"""Patients that every site of a Dirichlet split has at least."""
SMALLEST_CLASS = 15
"""Patients with either outcome that every site of a Dirichlet split has at least."""
TRAINING = Training(rounds=20, epochs=1, batch_size=64, optimizer="adam", lr=3e-3, weight_decay=5e-4)

Columns = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Support2(Task):
    """Binary prognosis from what is known on day 3 (Knaus et al., Annals of Internal Medicine 122, 1995).

    Each site fills gaps and scales numbers with statistics of its own training patients only.

    Args:
        label: "hospital_death" (26 %) or "death" (at any time of the follow-up, 68 %).
        sites_by: "dzclass": one site per disease class, so four; "dirichlet": label skew over ``n_sites``.
        n_sites: 4 for "dzclass", else 2..50.
        alpha: concentration > 0 of the Dirichlet split.
        test_fraction: share of each site's patients in its test split, in (0, .5].
        val_fraction: share of the remaining ones in its validation split, in (0, .5].
        model: "mlp" (64 hidden units) or "linear".
        data_seed: of the split over sites and into train, val and test; >= 0.
    """

    name = "support2"
    title = "SUPPORT2: death of seriously ill adults"
    real = "9,105 patients, 27 features and their outcomes (UCI 880, CC BY 4.0)"
    simulated = "the hospitals: a site is a disease class or a share of a label-skewed split"
    classes = ("survived", "died")
    headline = "auc"
    metrics = ("accuracy", "balanced_accuracy", "macro_f1", "auc")
    attributes = ("race", "sex")
    presets = {
        "default": Preset("four natural sites, one per disease class; seconds on a laptop", {}, TRAINING),
        "dirichlet": Preset("eight sites with skewed death rates", {"sites_by": "dirichlet", "n_sites": 8}, TRAINING),
    }

    label: Literal["hospital_death", "death"] = "hospital_death"
    sites_by: Literal["dzclass", "dirichlet"] = "dzclass"
    n_sites: int = 4
    alpha: float = 5.0
    test_fraction: float = 0.2
    val_fraction: float = 0.15
    model: Literal["mlp", "linear"] = "mlp"
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect("label", self.label in LABELS, f"one of {', '.join(LABELS)}", self.label)
        expect("sites_by", self.sites_by in ("dzclass", "dirichlet"), "one of dzclass, dirichlet", self.sites_by)
        if self.sites_by == "dzclass":
            expect("n_sites", self.n_sites == 4, "4, as there are disease classes (sites_by=dirichlet takes others)",
                   self.n_sites)  # fmt: skip
        expect("n_sites", 2 <= self.n_sites <= 50, "2..50", self.n_sites)
        expect("alpha", 0 < self.alpha < math.inf, "a number above 0", self.alpha)
        for key in ("test_fraction", "val_fraction"):
            expect(key, 0 < getattr(self, key) <= 0.5, "a number in (0, 0.5]", getattr(self, key))
        expect("model", self.model in ("mlp", "linear"), "one of mlp, linear", self.model)
        expect("data_seed", self.data_seed >= 0, "at least 0", self.data_seed)

    def sites(self) -> dict[str, str]:
        """The disease class of each site, or how skewed the split is."""
        skew = [f"label skew, alpha {self.alpha:g}"] * self.n_sites
        kinds = DISEASE_CLASSES if self.sites_by == "dzclass" else skew
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def network(self) -> nn.Module:
        """46 standardised features -> logits of (survived, died)."""
        return networks.build(self.model, len(NUMBERS) + sum(map(len, CATEGORIES.values())), len(self.classes))

    def site_data(self, site: str) -> TensorData:
        """The site's patients; ``attributes(split)`` of the result holds their race and sex."""
        k = site_index(site, self.sites())
        train, val, test = self._split(np.flatnonzero(_site_of(self) == k), k)
        numbers, flags = _numbers(), _flags()
        known = fitted(numbers[train])
        labels = _outcome(self.label)

        def split(rows: np.ndarray) -> Split:
            inputs = torch.cat((known(numbers[rows]), torch.from_numpy(flags[rows])), dim=1)
            attributes = {name: [table()[name][i] for i in rows] for name in self.attributes}
            return Split(inputs, torch.from_numpy(labels[rows]), attributes)

        return TensorData(train=split(train), val=split(val), test=split(test), n_classes=len(self.classes))

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """See ``scores.binary``."""
        return scores.binary(outputs, targets)

    def _split(self, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A site's rows of the table, shuffled and cut into train, val and test; each sorted."""
        shuffled = np.random.default_rng(derive(self.data_seed, "support2", "split", k)).permutation(rows)
        n_test = round(self.test_fraction * len(rows))
        n_val = round(self.val_fraction * (len(rows) - n_test))
        test, val, train = np.split(shuffled, (n_test, n_test + n_val))
        return np.sort(train), np.sort(val), np.sort(test)


@cache
def table() -> Columns:
    """Column name -> its 9,105 cells as text, "" where missing, in the order of the original file."""
    packed = resources.files("fairflare.clinic").joinpath("data/support2.csv.gz").read_bytes()
    rows = csv.reader(io.StringIO(gzip.decompress(packed).decode()))
    names = next(rows)
    return dict(zip(names, zip(*rows)))


def fitted(train: np.ndarray):
    """How a site prepares numbers: gaps become the training median, then (x - mean) / std of the training rows.

    Args:
        train: float64 (n, features), nan where missing; a column without a single value counts as all zeros.

    Returns:
        A function from such an array of any length to a float32 tensor of its shape without gaps.
    """
    empty = np.isnan(train).all(0)
    medians = np.nanmedian(np.where(empty, 0.0, train), axis=0)
    filled = torch.from_numpy(np.where(np.isnan(train), medians, train))
    mean, std = filled.mean(0), filled.std(0, correction=0)
    return lambda rows: standardise(torch.from_numpy(np.where(np.isnan(rows), medians, rows)), mean, std).float()


@cache
def _numbers() -> np.ndarray:
    """float64 (9105, 20), nan where missing."""
    return np.array([[float(cell or "nan") for cell in table()[name]] for name in NUMBERS]).T


@cache
def _flags() -> np.ndarray:
    """float32 (9105, 26): the one-hot columns in the order of ``CATEGORIES``."""
    flags = [np.array(table()[name]) == value for name, values in CATEGORIES.items() for value in values]
    return np.stack(flags, axis=1).astype(np.float32)


@cache
def _outcome(label: str) -> np.ndarray:
    return np.array(table()[LABELS[label]], dtype=np.int64)


@lru_cache(maxsize=4)
def _site_of(task: Support2) -> np.ndarray:
    """int64 (9105,): the site index of every patient."""
    if task.sites_by == "dzclass":
        return np.array([DISEASE_CLASSES.index(cell) for cell in table()["dzclass"]])
    labels = _outcome(task.label)
    return redrawn(
        lambda seed: dirichlet_by_label(labels, task.n_sites, task.alpha, seed),
        labels,
        task.n_sites,
        task.data_seed,
        minimum=SMALLEST_SITE,
        minimum_per_class=SMALLEST_CLASS,
    )
