# SPDX-License-Identifier: Apache-2.0
"""SUPPORT2: will a seriously ill patient die? A real cohort of 9,105 adults in five US hospitals, 1989 to 1994."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.clinic import cohort, networks, scores
from fairflare.clinic.base import Preset, Task
from fairflare.clinic.checks import expect, expect_choices, site_index
from fairflare.clinic.partition import dirichlet_by_label, redrawn
from fairflare.clinic.tensors import Split, TensorData
from fairflare.contracts import Training
from fairflare.seeds import derive

SMALLEST_SITE = 40
"""Patients that every site of a Dirichlet split has at least."""
SMALLEST_CLASS = 15
"""Patients with either outcome that every site of a Dirichlet split has at least."""
TRAINING = Training(rounds=20, epochs=1, batch_size=64, optimizer="adam", lr=3e-3, weight_decay=5e-4)


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
    attributes = {"race": ("asian", "black", "hispanic", "other", "white"), "sex": ("female", "male")}
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
        expect_choices(self)
        if self.sites_by == "dzclass":
            expect("n_sites", self.n_sites == 4, "4 disease classes (or set sites_by=dirichlet)", self.n_sites)
        expect("n_sites", 2 <= self.n_sites <= 50, "2..50", self.n_sites)
        expect("alpha", 0 < self.alpha < math.inf, "a number above 0", self.alpha)
        for key in ("test_fraction", "val_fraction"):
            expect(key, 0 < getattr(self, key) <= 0.5, "a number in (0, 0.5]", getattr(self, key))
        expect("data_seed", self.data_seed >= 0, "at least 0", self.data_seed)

    def sites(self) -> dict[str, str]:
        """The disease class of each site, or how skewed the split is."""
        skew = [f"label skew, alpha {self.alpha:g}"] * self.n_sites
        kinds = cohort.DISEASE_CLASSES if self.sites_by == "dzclass" else skew
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def network(self) -> nn.Module:
        """46 features -> logits of (survived, died)."""
        return networks.build(self.model, cohort.N_FEATURES, len(self.classes))

    def site_data(self, site: str) -> TensorData:
        """The site's patients; ``attributes(split)`` of the result holds their race and sex."""
        rows = self.rows(site)
        scaled = cohort.fitted(cohort.numbers()[rows["train"]])
        return TensorData(**{name: self._split(rows[name], scaled) for name in rows}, n_classes=len(self.classes))

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """See ``scores.binary``."""
        return scores.binary(outputs, targets)

    def rows(self, site: str) -> dict[str, np.ndarray]:
        """Split -> the site's rows of the table, sorted; each patient is in one split of one site."""
        k = site_index(site, self.sites())
        members = np.flatnonzero(_site_of(self) == k)
        shuffled = np.random.default_rng(derive(self.data_seed, self.name, "split", k)).permutation(members)
        n_test = round(self.test_fraction * len(members))
        n_val = round(self.val_fraction * (len(members) - n_test))
        test, val, train = np.split(shuffled, (n_test, n_test + n_val))
        return {"train": np.sort(train), "val": np.sort(val), "test": np.sort(test)}

    def _split(self, rows: np.ndarray, scaled: Callable[[np.ndarray], Tensor]) -> Split:
        flags = torch.from_numpy(cohort.flags()[rows])
        inputs = torch.cat((scaled(cohort.numbers()[rows]), flags), dim=1)
        attributes = {name: [cohort.table()[name][i] for i in rows] for name in self.attributes}
        return Split(inputs, torch.from_numpy(cohort.outcome(self.label)[rows]), attributes)


@lru_cache(maxsize=4)
def _site_of(task: Support2) -> np.ndarray:
    """int64 (9105,): the site index of every patient."""
    if task.sites_by == "dzclass":
        return np.array([cohort.DISEASE_CLASSES.index(cell) for cell in cohort.table()["dzclass"]])
    labels = cohort.outcome(task.label)
    return redrawn(
        lambda seed: dirichlet_by_label(labels, task.n_sites, task.alpha, seed),
        labels,
        task.n_sites,
        task.data_seed,
        minimum=SMALLEST_SITE,
        minimum_per_class=SMALLEST_CLASS,
    )
