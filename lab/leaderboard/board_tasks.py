# SPDX-License-Identifier: Apache-2.0
"""The leaderboard's federations, from the folder FAIRFLARE_DATA or the one above it, and what a site makes alone.

Heart and IST come with the package; ``tcga_brca``, ``ptbxl`` and ``ham10000`` are folders of data that a user brings.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from board_list import HELD_OUT, LEAST_OF_CLASS, SOURCES
from torch import nn

from fairflare.core.errors import UserError
from fairflare.core.seeds import derive
from fairflare.core.types import Training
from fairflare.data.tensors import Split, TensorData
from fairflare.datasets.heart import Heart
from fairflare.datasets.ist import Ist
from fairflare.datasets.patients import Centres
from fairflare.engine.setup import tasks
from fairflare.networks import builtin as networks
from fairflare.tasks.base import SPLIT, Preset, Task, site_index

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "docs"), str(ROOT / "lab" / "regimes")]
import decision_tables  # noqa: E402
import regime_tasks  # noqa: E402

SPLITS = ("test", "val", "train")
MOST_COLUMNS, COMPONENTS = 200, 50
"""Trees of more columns are grown on as many principal components of the site's own training patients."""
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Inputs (N, p) with nan where missing, outcomes (N,) of 0 and 1, names of sites (N,)."""


def folder_of(name: str) -> Path:
    """Where the data ``name`` lie."""
    start = regime_tasks.data_folder()
    found = [base / name for base in (start, start.parent) if (base / name).is_dir()]
    if not found:
        raise UserError(f"FAIRFLARE_DATA: expected a folder with {name} in it or beside it, got {start}")
    return found[0]


def centres(table: Centres) -> Rows:
    rows = {site: np.concatenate(list(parts.values())) for site, parts in table.rows.items()}
    order = np.concatenate(list(rows.values()))
    sites = np.repeat(list(rows), [len(one) for one in rows.values()])
    return np.concatenate([table.numbers, table.plain], axis=1)[order], table.labels[order], sites


def from_table(table: pd.DataFrame, event: str) -> Rows:
    """The first row of every patient."""
    one = table.drop_duplicates("patient")
    x = one.drop(columns=["patient", "outcome", "site"]).to_numpy(np.float64)
    return x, (one["outcome"] == event).to_numpy(np.int64), one["site"].to_numpy(str)


def photographs() -> Rows:
    y = np.array([row["dx"] in decision_tables.MALIGNANT for row in regime_tasks.lesions()], np.int64)
    return regime_tasks.lesion_features("clean"), y, np.array([row["site"] for row in regime_tasks.lesions()])


def toy() -> Rows:
    rng, sites = np.random.default_rng(0), np.repeat(["a", "b", "c"], (120, 60, 40))
    x = rng.normal(size=(len(sites), 5)) + (sites == "c")[:, None]
    return x, (x[:, 0] + rng.normal(size=len(x)) > 0).astype(np.int64), sites


READ = {
    "heart": lambda: centres(Heart(protocol="full").table()),
    "ist": lambda: centres(Ist().table()),
    "tcga-brca": lambda: from_table(decision_tables.tcga(folder_of("tcga_brca")), "died"),
    "ptbxl": lambda: from_table(decision_tables.ptbxl(folder_of("ptbxl")), "abnormal"),
    "ham10000": photographs,
    "toy": toy,
}


@lru_cache(maxsize=1)
def rows_of(source: str) -> Rows:
    """Those of the sites that are large enough."""
    x, y, sites = READ[source]()
    counts = {site: np.bincount(y[sites == site], minlength=2) for site in np.unique(sites)}
    large = [site for site, n in counts.items() if n.sum() >= SOURCES[source].least and n.min() >= LEAST_OF_CLASS]
    kept = np.isin(sites, large)
    return x[kept], y[kept], sites[kept]


@lru_cache(maxsize=1)
def names_of(source: str) -> list[str]:
    return [str(site) for site in np.unique(rows_of(source)[2])]


Parts = Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]
"""Site -> split -> inputs (N, p), float32, and outcomes (N,)."""


@lru_cache(maxsize=4)
def parts_of(source: str, data_seed: int) -> Parts:
    """Each site's patients, dealt by outcome; inputs are filled and scaled by the training patients of all sites."""
    x, y, sites = rows_of(source)
    rows: dict[str, dict[str, np.ndarray]] = {}
    for site in np.unique(sites):
        rng, dealt = np.random.default_rng(derive(data_seed, source, str(site))), {name: [] for name in SPLITS}
        for outcome in (0, 1):
            mine = rng.permutation(np.flatnonzero((sites == site) & (y == outcome)))
            ends = np.ceil(np.cumsum(HELD_OUT) * len(mine)).astype(int)
            for name, part in zip(SPLITS, np.split(mine, ends), strict=True):
                dealt[name].append(part)
        rows[str(site)] = {name: np.concatenate(part) for name, part in dealt.items()}
    train = x[np.concatenate([of["train"] for of in rows.values()])]
    mean, spread = np.nanmean(train, 0), np.maximum(np.nanstd(train, 0), 1e-3)
    scaled = np.nan_to_num((x - mean) / spread).clip(-5, 5).astype(np.float32)
    return {site: {name: (scaled[k], y[k]) for name, k in of.items()} for site, of in rows.items()}


@dataclass(frozen=True)
class Board(Task):
    """A yes or no about the patients of real sites, by a linear model; ``data_seed`` draws who tests and who trains.

    Args:
        source: where the patients come from.
        norm: whether BatchNorm stands before the linear layer, as FedBN needs.
    """

    name = "board"
    title = "The leaderboard's patients"
    real = "the patients"
    simulated = "nothing"
    classes = ("no", "yes")
    headline = "accuracy"
    presets: ClassVar[Mapping[str, Preset]] = {"board": Preset("see lab/leaderboard", {}, Training())}

    source: Literal["heart", "ist", "tcga-brca", "ptbxl", "ham10000", "toy"] = "heart"
    norm: bool = False
    data_seed: int = 0

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("accuracy", "auc", "brier_loss", "calibration_error")

    def drawn(self) -> tuple[str, ...]:
        return (SPLIT,)

    def sites(self) -> dict[str, str]:
        return dict.fromkeys(names_of(self.source), "real")

    def network(self) -> nn.Module:
        features = rows_of(self.source)[0].shape[1]
        if not self.norm:
            return networks.linear(features, 2)
        return nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(features), head=nn.Linear(features, 2)))

    def site_data(self, site: str) -> TensorData:
        site_index(site, self.sites())
        found = {
            name: Split(torch.from_numpy(x), torch.from_numpy(y))
            for name, (x, y) in parts_of(self.source, self.data_seed)[site].items()
        }
        return TensorData.of(found, n_classes=2)


tasks.ADDED[Board.name] = Board


def alone(kind: str, value: float, parts: Parts) -> dict[str, dict[str, dict[str, float]]]:
    """Site -> split -> metrics of a model of the site's own training patients.

    Args:
        kind: "ridge" (``value``: C of scikit-learn's logistic regression) or "trees" (learning rate of 100 trees).
    """
    from sklearn.decomposition import PCA
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    trees = {"max_leaf_nodes": 8, "min_samples_leaf": 10, "max_features": 0.2, "random_state": 0}
    task, found = Board(), dict[str, dict[str, dict[str, float]]]()
    for site, of in parts.items():
        ridge = LogisticRegression(C=value, max_iter=500)
        model: Any = ridge if kind == "ridge" else HistGradientBoostingClassifier(learning_rate=value, **trees)
        if kind == "trees" and of["train"][0].shape[1] > MOST_COLUMNS:
            model = make_pipeline(PCA(COMPONENTS, random_state=0), model)
        model.fit(*of["train"])
        found[site] = {}
        for split in ("val", "test"):
            x, y = of[split]
            outputs = torch.from_numpy(np.log(model.predict_proba(x).clip(1e-6, 1 - 1e-6))).float()
            found[site][split] = task.evaluate(*task.condense(outputs, torch.from_numpy(y)))
    return found
