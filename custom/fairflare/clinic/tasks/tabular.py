# SPDX-License-Identifier: Apache-2.0
"""Classification of a user's own table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.clinic import own_network, scores
from fairflare.clinic.base import OPEN_SPLIT, Preset
from fairflare.clinic.checks import expect, expect_choices
from fairflare.clinic.inputs import Scaling, TableInputs
from fairflare.clinic.kinds.own import OwnData
from fairflare.clinic.readers.table_features import Feature, parsed, stacked
from fairflare.clinic.readers.tables import SUFFIXES, read_table
from fairflare.clinic.site_config import SiteConfig
from fairflare.clinic.tensors import Split, TensorData
from fairflare.core.errors import DataError
from fairflare.core.seeds import derive
from fairflare.core.types import Training
from fairflare.core.validation import Names

SPLIT = "split"
SPLITS = ("train", "val", "test")
FEWEST = 10


@dataclass(frozen=True)
class Tabular(OwnData):
    """One CSV or Parquet file per site with named columns: a label, features that are numbers, and attributes.

    Rows without a label are left out. Each site fills gaps with its own training median and scales with its own
    training mean and spread. A column "split" with train, val or test fixes the split; without one it is drawn from
    ``data_seed``.

    Args:
        datalists: folder with <site>.csv or <site>.parquet per site on this machine.
        site_names: the sites; filled from the folder.
        labels: number of classes (the label column then holds 0, 1, ...), or the names that it holds.
        label: the label's column.
        features: columns, separated by commas; never a column that is known only after the outcome.
        attribute_values: columns of sensitive attributes and their values; they are no features unless named there too.
        test_fraction: share of the rows in the test split, in (0, .5].
        val_fraction: share of the remaining ones in the validation split, in (0, .5].
        build_data: "module.function" that builds a site's data in place of a table, see ``clinic.own_data_set``; its
            inputs then have as many numbers as ``features`` has names.
        model: "mlp" (64 hidden units), "linear", or a class of yours as {"class_path": "my_net.Net", "args": {...}}.
        data_seed: of the split; >= 0.
    """

    name = "tabular"
    title = "Classification of your own table"
    headline = "balanced_accuracy"
    quick = True
    metrics = ("accuracy", "balanced_accuracy", "macro_f1", "auc_ovo", "auc_ovr")
    suffixes = tuple(suffix for suffix in SUFFIXES if suffix != ".txt")
    presets = {
        "default": Preset(
            "a small network; seconds on a laptop",
            {},
            Training(rounds=20, batch_size=32, optimizer="adam", lr=3e-3, weight_decay=5e-4),
        )
    }

    datalists: str = ""
    site_names: Names = ""
    labels: Names = "2"
    label: str = "label"
    features: Names = ""
    attribute_values: str = ""
    test_fraction: float = 0.2
    val_fraction: float = 0.15
    build_data: str = ""
    model: str = "mlp"
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        self._check_own(fewest=2)
        own_network.check_model(self.model, ("mlp", "linear"))
        for key in ("test_fraction", "val_fraction"):
            expect(key, 0 < getattr(self, key) <= 0.5, "a number in (0, 0.5]", getattr(self, key))
        expect("data_seed", self.data_seed >= 0, "at least 0", self.data_seed)
        expect("features", self.label not in self._features(), f"no {self.label!r}, which is the label", self.features)

    def network(self) -> nn.Module:
        """Features (N, F) -> logits (N, classes)."""
        expect("features", bool(self._features()), "columns of the table, separated by commas", self.features)
        return own_network.build(self.model, (len(self._features()),), (len(self.classes),))

    def read(self, own: SiteConfig) -> TensorData:
        """The table's rows, scaled."""
        table = Path(own.data_root) / own.datalist
        if not table.is_file():
            raise DataError("no_datalist", f"table {table.name}: expected a file, found none in {table.parent}")
        columns = self._columns(table)
        rows = self._rows(table.name, columns)
        features = [Feature(name) for name in self._features()]
        numbers = stacked(features, parsed(table.name, columns, features), len(columns[self.label]))
        labels = self._labels(table.name, columns[self.label])
        scaling = scaled_by(numbers[rows["train"]])
        inputs = scaling(numbers)
        splits = {
            name: Split(inputs[index], labels[index], {a: [columns[a][i] for i in index] for a in self.attributes})
            for name, index in rows.items()
        }
        data = TensorData.of(splits, n_classes=len(self.classes))
        data.scaling = scaling
        return data

    def table_inputs(self) -> TableInputs | None:
        """The columns of ``features``; none where ``build_data`` makes the inputs."""
        if self.build_data:
            return None
        attributes = self.attributes
        return TableInputs(
            numbers=tuple(Feature(name) for name in self._features()),
            known=attributes,
            attributes=lambda columns: {name: list(columns[name]) for name in attributes if name in columns},
        )

    def unlabelled(self, own: SiteConfig) -> int:
        """How many rows of the site's table have no label."""
        table = Path(own.data_root) / own.datalist
        if not table.is_file():
            return 0
        found = read_table(table)
        return int((found[self.label] == "").sum()) if self.label in found.columns else 0

    def drawn(self) -> tuple[str, ...]:
        """The split, where a table has no column that says it."""
        return (OPEN_SPLIT,)

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """See ``scores.classification``."""
        return scores.classification(outputs, targets)

    def _features(self) -> list[str]:
        return [name for name in (part.strip() for part in self.features.split(",")) if name]

    def _columns(self, path: Path) -> dict[str, list[str]]:
        table = read_table(path)
        for name in (self.label, *self._features(), *self.attributes):
            if name not in table.columns:
                known = ", ".join(map(str, table.columns))
                raise DataError("column", f"table {path.name}: expected a column {name!r}; it has: {known}")
        table = table[table[self.label] != ""]
        if len(table) < FEWEST:
            text = f"table {path.name}: expected at least {FEWEST} rows with a label, got {len(table)}"
            raise DataError("few_examples", text)
        return {name: list(table[name]) for name in table.columns}

    def _rows(self, file: str, columns: dict[str, list[str]]) -> dict[str, np.ndarray]:
        """Split -> row numbers, sorted."""
        n = len(columns[self.label])
        if SPLIT in columns:
            strange = sorted(set(columns[SPLIT]) - set(SPLITS))
            if strange:
                text = f"table {file}: {SPLIT}: expected {', '.join(SPLITS)}, got {strange[0]!r}"
                raise DataError("split", text)
            return {name: np.flatnonzero(np.array(columns[SPLIT]) == name) for name in SPLITS}
        shuffled = np.random.default_rng(derive(self.data_seed, self.name, n)).permutation(n)
        n_test = round(self.test_fraction * n)
        n_val = round(self.val_fraction * (n - n_test))
        test, val, train = np.split(shuffled, (n_test, n_test + n_val))
        return {"train": np.sort(train), "val": np.sort(val), "test": np.sort(test)}

    def _labels(self, file: str, cells: list[str]) -> Tensor:
        names = [str(k) for k in range(len(self.classes))] if self.numbered else list(self.classes)
        place = {name: k for k, name in enumerate(names)}
        for i, cell in enumerate(cells):
            if cell not in place:
                text = f"table {file}: row {i}: {self.label}: expected {', '.join(names)}, got {cell!r}"
                raise DataError("label", text)
        return torch.tensor([place[cell] for cell in cells], dtype=torch.int64)


def scaled_by(train: np.ndarray) -> Scaling:
    """A site's own scaling: gaps as the training median, 0 where a column has no training value at all.

    Args:
        train: float64 (n, features), nan where missing.
    """
    known = ~np.isnan(train).all(axis=0)
    medians = np.zeros(train.shape[1])
    medians[known] = np.nanmedian(train[:, known], axis=0)
    filled = np.where(np.isnan(train), medians, train)
    return Scaling(*(torch.from_numpy(part) for part in (medians, filled.mean(axis=0), filled.std(axis=0))))
