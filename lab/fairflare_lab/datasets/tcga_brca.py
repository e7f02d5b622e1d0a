# SPDX-License-Identifier: Apache-2.0
"""Survival of breast cancer in six regions: FLamby's Fed-TCGA-BRCA, a table that the user brings.

In the data folder, as FLamby (Ogier du Terrail et al., NeurIPS 2022 datasets track) has the files:

    tcga_brca/brca.csv               pid, 39 covariates, E (1: death) and T (days)
    tcga_brca/train_test_split.csv   pid, fold (train or test) and fold2 (train_0 .. test_5)
    tcga_brca/centers.csv            codes of hospitals and their regions
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fairflare.core.errors import DataError
from fairflare.core.types import Training
from fairflare.data.inputs import Scaling, TableInputs
from fairflare.data.readers.table_features import Feature, as_numbers
from fairflare.data.readers.tables import read_columns
from fairflare.data.site_config import SiteConfig
from fairflare.datasets.patients import Centres, CentreTask
from fairflare.tasks.base import Preset, TestSet
from fairflare.tasks.kinds.survival import Cox
from fairflare_lab.datasets.on_disk import OnDisk

FOLDER = "tcga_brca"
FILES = ("brca.csv", "train_test_split.csv", "centers.csv")
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
"""FLamby's centres 0 to 5."""
TOGETHER = "all regions"
"""The test set of all regions' test patients: a pair of two regions can be compared there."""
N_COVARIATES = 39
AGE = "age_at_index"
RACES = {"race_asian": "asian", "race_black or african american": "black", "race_white": "white"}
AGES = ("up to 50", "51 to 65", "over 65")
YEARS = tuple(365.25 * k for k in (1, 2, 3, 5, 8))
"""At which curves are drawn."""
FLAMBY = Training(rounds=5, batch_size=8, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, local_steps=100)
"""FLamby's federated training of FedAvg and FedProx."""


@dataclass(frozen=True)
class TcgaBrca(CentreTask, OnDisk):
    """Overall survival from 39 covariates, all of 0 and 1 but the age (Liu et al., Cell 173, 2018; FLamby's table).

    The split is FLamby's, which has no validation patients. 12 patients have a time of 0 and stay: they are in the risk
    sets of time 0 alone.

    Args:
        model: "linear", one log risk, FLamby's; "regression": see the method ``glm``.
        scaling: "none", FLamby's: the age in years; "age": less 58 and by 13, which are constants of the task.
        reference: as in FLamby's code the run's seed itself draws the initial model, as torch draws it after
            ``manual_seed``, and the final model is also scored on the test patients of all regions together.
    """

    name = "tcga-brca"
    title = "Survival of breast cancer in six regions (FLamby's Fed-TCGA-BRCA)"
    real = "1,088 patients of The Cancer Genome Atlas, a table that you bring (FLamby's, or the GDC's)"
    classes = ()
    kind = Cox(ends=YEARS)  # type: ignore[assignment]  # the base class names one of classes
    headline = "harrell_c"
    primary = "C-index of the worst region"
    attributes = {"race": ("asian", "black", "white"), "age": AGES}
    presets = {"flamby": Preset("FLamby's protocol: linear Cox, batches of 8; seconds, on files you bring", {}, FLAMBY)}

    model: Literal["linear", "regression"] = "linear"
    scaling: Literal["none", "age"] = "none"
    reference: bool = False

    def sites(self) -> dict[str, str]:
        return {region: f"region {k} of FLamby's" for k, region in enumerate(REGIONS)}  # no file is read for it

    def n_features(self) -> int:
        return N_COVARIATES

    @property
    def outcome_columns(self) -> tuple[str, ...]:
        return ("E", "T")

    @property
    def has_test_sets(self) -> bool:
        return self.reference

    def test_sets(self) -> tuple[TestSet, ...]:
        if not self.reference:
            return ()
        parts = [self.site_data(region).splits["test"] for region in REGIONS]
        inputs, targets = (torch.cat([getattr(part, key) for part in parts]) for key in ("inputs", "targets"))
        return (TestSet(TOGETHER, False, inputs, targets),)

    def check_data(self) -> None:
        self.table()

    def table(self, own: SiteConfig | None = None) -> Centres:
        return self._read(own)[0]

    def _read(self, own: SiteConfig | None = None) -> tuple[Centres, tuple[str, ...]]:
        folder = self.root(own) / FOLDER
        return _centres(tuple(self.needed(folder / name) for name in FILES))

    def scaled_by(self, train: np.ndarray) -> Scaling:
        mean, sd = torch.zeros(N_COVARIATES, dtype=torch.float64), torch.ones(N_COVARIATES, dtype=torch.float64)
        if self.scaling == "age":
            mean[0], sd[0] = 58.0, 13.0
        return Scaling(mean, mean, sd)

    def table_inputs(self) -> TableInputs:
        names = self._read()[1]
        return TableInputs(tuple(Feature(name) for name in names), fixed=self.scaled_by(np.empty((0, 0))))


@lru_cache(maxsize=2)
def _centres(paths: tuple[Path, ...]) -> tuple[Centres, tuple[str, ...]]:
    """The patients of the split in its order, and the names of the covariates."""
    cells, split, centers = (read_columns(path) for path in paths)
    covariates = tuple(name for name in cells if name not in ("pid", "E", "T"))
    if len(covariates) != N_COVARIATES or covariates[0] != AGE or not {"pid", "E", "T"} <= set(cells):
        raise DataError("column", f"brca.csv: expected pid, {N_COVARIATES} covariates from {AGE} on, E and T")
    place = {pid: row for row, pid in enumerate(cells["pid"])}
    if lost := [pid for pid in split["pid"] if pid not in place]:
        raise DataError("missing_file", f"train_test_split.csv: {len(lost)} patients are not in brca.csv")
    order = np.array([place[pid] for pid in split["pid"]])
    numbers = np.stack([as_numbers("brca.csv", name, cells[name]) for name in covariates], axis=1)[order]
    outcome = np.stack([as_numbers("brca.csv", name, cells[name]) for name in ("T", "E")], axis=1)[order]
    if not (np.isfinite(numbers).all() and (outcome[:, 0] >= 0).all() and np.isin(outcome[:, 1], (0, 1)).all()):
        raise DataError("label", "brca.csv: expected numbers, T of at least 0 and E of 0 or 1 for every patient")
    folds = np.array(split["fold2"])
    rows = {
        region: {
            "train": np.flatnonzero(folds == f"train_{k}"),
            "val": np.empty(0, dtype=np.int64),
            "test": np.flatnonzero(folds == f"test_{k}"),
        }
        for k, region in enumerate(REGIONS)
    }
    _check_regions(split["pid"], folds, dict(zip(centers["TSS Code"], centers["Region"], strict=True)))
    empty = np.empty((len(order), 0), dtype=np.float32)
    about = _attributes(covariates, numbers)
    kinds = {region: "" for region in REGIONS}
    return Centres(outcome.astype(np.float32), numbers, empty, about, rows, kinds), covariates


def _check_regions(pids: Sequence[str], folds: np.ndarray, region_of: dict[str, str]) -> None:
    """Raise DataError where a patient's hospital lies in another region than the fold says."""
    for pid, fold in zip(pids, folds.tolist(), strict=True):
        number = fold.rpartition("_")[2]
        known = region_of.get(pid[5:7], "")
        if not number.isdigit() or int(number) >= len(REGIONS) or (known and known != REGIONS[int(number)]):
            raise DataError("split", f"train_test_split.csv: fold2: expected train_0 .. test_5 by region, got {fold}")


def _attributes(names: Sequence[str], numbers: np.ndarray) -> dict[str, list[str]]:
    races = np.stack([numbers[:, names.index(name)] for name in RACES], axis=1)
    values = tuple(RACES.values())
    return {
        "race": [values[int(row.argmax())] if row.any() else "" for row in races],
        "age": [AGES[int(age > 50) + int(age > 65)] for age in numbers[:, 0]],
    }
