# SPDX-License-Identifier: Apache-2.0
"""Classification of a user's own table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.clinic import networks, scores
from fairflare.clinic.base import Preset, standardise
from fairflare.clinic.checks import expect, expect_choices
from fairflare.clinic.own import OwnData
from fairflare.clinic.tensors import Split, TensorData
from fairflare.contracts import Training
from fairflare.errors import UserError
from fairflare.seeds import derive

SPLIT = "split"
SPLITS = ("train", "val", "test")
FEWEST = 10


@dataclass(frozen=True)
class Tabular(OwnData):
    """One CSV file per site with a header: a label column, feature columns of numbers, and attribute columns.

    Each site fills gaps with its own training median and scales with its own training mean and spread. A column "split"
    with train, val or test fixes the split; without one it is drawn from ``data_seed``.

    Args:
        datalists: folder with <site>.csv per site on this machine.
        site_names: the sites; filled from the folder.
        labels: number of classes (the label column then holds 0, 1, ...), or the names that it holds.
        label: the label's column.
        features: columns, separated by commas; never a column that is known only after the outcome.
        attribute_values: columns of sensitive attributes and their values; they are no features unless named there too.
        test_fraction: share of the rows in the test split, in (0, .5].
        val_fraction: share of the remaining ones in the validation split, in (0, .5].
        model: "mlp" (64 hidden units) or "linear".
        data_seed: of the split; >= 0.
    """

    name = "tabular"
    title = "Classification of your own table"
    headline = "balanced_accuracy"
    metrics = ("accuracy", "balanced_accuracy", "macro_f1", "auc_ovo", "auc_ovr")
    suffix = ".csv"
    presets = {
        "default": Preset(
            "a small network; seconds on a laptop",
            {},
            Training(rounds=20, batch_size=32, optimizer="adam", lr=3e-3, weight_decay=5e-4),
        )
    }

    datalists: str = ""
    site_names: str = ""
    labels: str = "2"
    label: str = "label"
    features: str = ""
    attribute_values: str = ""
    test_fraction: float = 0.2
    val_fraction: float = 0.15
    model: Literal["mlp", "linear"] = "mlp"
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        self._check_own(fewest=2)
        for key in ("test_fraction", "val_fraction"):
            expect(key, 0 < getattr(self, key) <= 0.5, "a number in (0, 0.5]", getattr(self, key))
        expect("data_seed", self.data_seed >= 0, "at least 0", self.data_seed)
        expect("features", self.label not in self._features(), f"no {self.label!r}, which is the label", self.features)

    def network(self) -> nn.Module:
        """Features (N, F) -> logits (N, classes)."""
        expect("features", bool(self._features()), "columns of the table, separated by commas", self.features)
        return networks.build(self.model, len(self._features()), len(self.classes))

    def read(self, datalist: Path, root: Path) -> TensorData:
        """The table's rows, scaled."""
        if not datalist.is_file():
            raise UserError(f"table {datalist.name}: expected a file, found none in {datalist.parent}")
        columns = self._columns(datalist)
        rows = self._rows(datalist.name, columns)
        numbers = np.stack([_numbers(datalist.name, name, columns[name]) for name in self._features()], axis=1)
        filled = _filled(numbers, rows["train"])
        labels = self._labels(datalist.name, columns[self.label])
        mean, std = (torch.from_numpy(f(filled[rows["train"]], axis=0)) for f in (np.mean, np.std))
        inputs = standardise(torch.from_numpy(filled), mean, std).float()
        splits = {
            name: Split(inputs[index], labels[index], {a: [columns[a][i] for i in index] for a in self.attributes})
            for name, index in rows.items()
        }
        return TensorData(**splits, n_classes=len(self.classes))

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """See ``scores.classification``."""
        return scores.classification(outputs, targets)

    def _features(self) -> list[str]:
        return [name for name in (part.strip() for part in self.features.split(",")) if name]

    def _columns(self, path: Path) -> dict[str, list[str]]:
        import pandas as pd

        try:
            table = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
        except Exception as error:  # pandas raises its own and its parsers' errors
            raise UserError(f"table {path.name}: cannot be read as CSV ({type(error).__name__})") from None
        for name in (self.label, *self._features(), *self.attributes):
            if name not in table.columns:
                known = ", ".join(map(str, table.columns))
                raise UserError(f"table {path.name}: expected a column {name!r}; it has: {known}")
        if len(table) < FEWEST:
            raise UserError(f"table {path.name}: expected at least {FEWEST} rows, got {len(table)}")
        return {str(name): [str(cell).strip() for cell in table[name]] for name in table.columns}

    def _rows(self, file: str, columns: dict[str, list[str]]) -> dict[str, np.ndarray]:
        """Split -> row numbers, sorted."""
        n = len(columns[self.label])
        if SPLIT in columns:
            strange = sorted(set(columns[SPLIT]) - set(SPLITS))
            if strange:
                raise UserError(f"table {file}: {SPLIT}: expected {', '.join(SPLITS)}, got {strange[0]!r}")
            return {name: np.flatnonzero(np.array(columns[SPLIT]) == name) for name in SPLITS}
        shuffled = np.random.default_rng(derive(self.data_seed, self.name, n)).permutation(n)
        n_test = round(self.test_fraction * n)
        n_val = round(self.val_fraction * (n - n_test))
        test, val, train = np.split(shuffled, (n_test, n_test + n_val))
        return {"train": np.sort(train), "val": np.sort(val), "test": np.sort(test)}

    def _labels(self, file: str, cells: list[str]) -> Tensor:
        numbered = self.labels.strip().isdigit()
        names = [str(k) for k in range(len(self.classes))] if numbered else list(self.classes)
        place = {name: k for k, name in enumerate(names)}
        for i, cell in enumerate(cells):
            if cell not in place:
                raise UserError(f"table {file}: row {i}: {self.label}: expected {', '.join(names)}, got {cell!r}")
        return torch.tensor([place[cell] for cell in cells], dtype=torch.int64)


def _numbers(file: str, name: str, cells: list[str]) -> np.ndarray:
    """float64 (N,), nan where a cell is empty."""
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell:
            try:
                found[i] = float(cell)
            except ValueError:
                raise UserError(f"table {file}: row {i}: {name}: expected a number, got {cell!r}") from None
            if not math.isfinite(found[i]):
                raise UserError(f"table {file}: row {i}: {name}: expected a finite number, got {cell!r}")
    return found


def _filled(numbers: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Gaps as the median of the training rows, 0 where a column has no training value at all."""
    known = ~np.isnan(numbers[train]).all(axis=0)
    medians = np.zeros(numbers.shape[1])
    medians[known] = np.nanmedian(numbers[train][:, known], axis=0)
    return np.where(np.isnan(numbers), medians, numbers)
