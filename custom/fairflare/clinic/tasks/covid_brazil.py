# SPDX-License-Identifier: Apache-2.0
"""COVID-19 in Brazil: will a hospitalised patient die? The table of FedUFO, which the user brings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.clinic import covid, networks, scores
from fairflare.clinic.base import Preset, Task
from fairflare.clinic.checks import expect, expect_choices, site_index
from fairflare.clinic.cohort import fitted
from fairflare.clinic.partition import dirichlet_by_label, redrawn
from fairflare.clinic.tensors import Split, TensorData
from fairflare.contracts import Training
from fairflare.seeds import derive

SMALLEST_SITE = 40
"""Patients that every site has at least."""
SMALLEST_CLASS = 10
"""Patients with either outcome that every site has at least."""
TRAINING = Training(rounds=20, epochs=1, batch_size=32, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
"""FedUFO's batch of 32. Plain SGD, where upstream has Adam, because Adam undoes a weight on the loss; FedAvg levels off
within these 20 rounds."""
FEATURES = {"clean": 24, "paper": 30}


@dataclass(frozen=True)
class CovidBrazil(Task):
    """Binary prognosis at admission, after Baqui et al. and FedUFO; see ``fairflare.clinic.covid`` for the table.

    The table is read from the folder that the environment variable FAIRFLARE_DATA names, when data are first asked for.
    Splits are drawn within each outcome, since the smallest region has 105 patients, 28 of whom died. Its test split
    has 21, and over six values of ``data_seed`` FedAvg's AUC there lies anywhere from .76 to .89. It stays a site of
    its own, as real small regions do: compare several seeds before saying that a method serves it better.

    Args:
        sites_by: "region": the country's five regions, 105 to 4,929 patients, of whom 27 % to 73 % died; "dirichlet":
            label skew over ``n_sites``.
        n_sites: 5 for "region", else 2..50; FedUFO has 2.
        alpha: concentration > 0 of the Dirichlet split; FedUFO's is 0.5, and 1 in its equal-opportunity runs. Unlike
            there, each site keeps its own test patients out of its share, and none are set aside before.
        features: "clean": what is known at admission; age is standardised with the site's own training patients, the
            rest is 0 or 1, and the region, which tells the site, is left out. "paper": what the table holds of FedUFO's
            columns, unscaled like upstream. That tells something of the outcome, since it includes the days until then,
            and needs a smaller step than the presets': optimizer=adam lr=0.019 are upstream's.
        test_fraction: share of each site's patients in its test split, in (0, .5].
        val_fraction: share of the remaining ones in its validation split, in (0, .5].
        model: "mlp" (64 hidden units) or "linear", upstream's.
        data_seed: of the split over sites and into train, val and test; >= 0.
    """

    name = "covid-brazil"
    title = "COVID-19: death of patients in Brazilian hospitals"
    real = "6,882 patients, 24 features and their outcomes (SIVEP-Gripe 2020), a file that you bring"
    simulated = "the hospitals: a site is a region or a share of a label-skewed split"
    classes = ("survived", "died")
    headline = "auc"
    metrics = ("accuracy", "balanced_accuracy", "macro_f1", "auc")
    attributes = {name: values for name, (values, _) in covid.ATTRIBUTES.items()}
    presets = {
        "regions": Preset("five natural sites, the regions of Brazil; needs covid_brazil.csv", {}, TRAINING),
        "dirichlet": Preset(
            "FedUFO's two sites with skewed death rates; needs covid_brazil.csv",
            {"sites_by": "dirichlet", "n_sites": 2},
            TRAINING,
        ),
    }

    sites_by: Literal["region", "dirichlet"] = "region"
    n_sites: int = 5
    alpha: float = 0.5
    features: Literal["clean", "paper"] = "clean"
    test_fraction: float = 0.2
    val_fraction: float = 0.15
    model: Literal["mlp", "linear"] = "mlp"
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        if self.sites_by == "region":
            expect("n_sites", self.n_sites == 5, "5 regions (or set sites_by=dirichlet)", self.n_sites)
        expect("n_sites", 2 <= self.n_sites <= 50, "2..50", self.n_sites)
        expect("alpha", 0 < self.alpha < math.inf, "a number above 0", self.alpha)
        for key in ("test_fraction", "val_fraction"):
            expect(key, 0 < getattr(self, key) <= 0.5, "a number in (0, 0.5]", getattr(self, key))
        expect("data_seed", self.data_seed >= 0, "at least 0", self.data_seed)

    def sites(self) -> dict[str, str]:
        """The region of each site, or how skewed the split is; known without the file."""
        skew = [f"label skew, alpha {self.alpha:g}"] * self.n_sites
        kinds = covid.REGIONS if self.sites_by == "region" else skew
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def network(self) -> nn.Module:
        """24 or 30 features -> logits of (survived, died)."""
        return networks.build(self.model, FEATURES[self.features], len(self.classes))

    def check_data(self) -> None:
        """Read the table; see ``covid.patients``."""
        covid.patients()

    def site_data(self, site: str) -> TensorData:
        """The site's patients; ``attributes(split)`` of the result holds race, white, sex and age.

        Raises:
            UserError: the file is missing or not the table that is expected.
        """
        table, rows = covid.patients(), self.rows(site)
        inputs = self._inputs(table, rows["train"])
        attributes = {name: covid.named(of(table), values) for name, (values, of) in covid.ATTRIBUTES.items()}
        splits = {
            name: Split(
                inputs[chosen],
                torch.from_numpy(table.died[chosen]),
                {key: [values[i] for i in chosen] for key, values in attributes.items()},
            )
            for name, chosen in rows.items()
        }
        return TensorData(**splits, n_classes=len(self.classes))

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """See ``scores.binary``."""
        return scores.binary(outputs, targets)

    def rows(self, site: str) -> dict[str, np.ndarray]:
        """Split -> the site's rows of the table, sorted; each patient is in one split of one site."""
        k, table = site_index(site, self.sites()), covid.patients()
        parts: dict[str, list[np.ndarray]] = {"train": [], "val": [], "test": []}
        for outcome in range(len(self.classes)):
            members = np.flatnonzero((_site_of(self, table) == k) & (table.died == outcome))
            shuffled = np.random.default_rng(derive(self.data_seed, self.name, "split", k, outcome)).permutation(
                members
            )
            n_test = round(self.test_fraction * len(members))
            n_val = round(self.val_fraction * (len(members) - n_test))
            for name, part in zip(("test", "val", "train"), np.split(shuffled, (n_test, n_test + n_val))):
                parts[name].append(part)
        return {name: np.sort(np.concatenate(found)) for name, found in parts.items()}

    def _inputs(self, table: covid.Patients, train: np.ndarray) -> Tensor:
        """float32 (N, features) of all patients, scaled with the rows ``train`` alone where anything is."""
        if self.features == "paper":
            return torch.from_numpy(covid.paper_features(table))
        age = table.age[:, None]
        return torch.cat((fitted(age[train])(age), torch.from_numpy(covid.clean_flags(table))), dim=1)


@lru_cache(maxsize=4)
def _site_of(task: CovidBrazil, table: covid.Patients) -> np.ndarray:
    """int64 (N,): the site index of every patient."""
    if task.sites_by == "region":
        for k, region in enumerate(covid.REGIONS):
            counts = np.bincount(table.died[table.region == k], minlength=2)
            enough = counts.sum() >= SMALLEST_SITE and counts.min() >= SMALLEST_CLASS
            expected = f"at least {SMALLEST_SITE} patients of {region}, {SMALLEST_CLASS} with either outcome"
            expect(covid.FILE, enough, expected, counts.tolist())
        return table.region
    return redrawn(
        lambda seed: dirichlet_by_label(table.died, task.n_sites, task.alpha, seed),
        table.died,
        task.n_sites,
        task.data_seed,
        minimum=SMALLEST_SITE,
        minimum_per_class=SMALLEST_CLASS,
    )
