# SPDX-License-Identifier: Apache-2.0
"""Classification of a user's own table."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairflare.core.errors import DataError, UserError
from fairflare.core.seeds import derive
from fairflare.core.types import Training
from fairflare.core.validation import Names, Text, shown, some
from fairflare.data import table_columns
from fairflare.data.inputs import NAME, VECTORS, Pooling, Scaling, TableInputs
from fairflare.data.readers.cases import identities_of, patient_keys, patients_of
from fairflare.data.readers.table_features import check_cells
from fairflare.data.readers.tables import MISSING, SUFFIXES, read_table
from fairflare.data.site_config import SiteConfig
from fairflare.data.table_columns import Column, by_range, features_of, open_levels
from fairflare.data.tensors import Split, TensorData
from fairflare.networks import builtin as networks
from fairflare.networks import own as own_network
from fairflare.tasks.base import OPEN_SPLIT, Preset, expect
from fairflare.tasks.kinds.own import OwnData, OwnGrades

if TYPE_CHECKING:
    import pandas

    from fairflare.data.readers.files import FileSplit

SPLIT = "split"
SPLITS = ("train", "val", "test")
FEWEST = 10
SEEDS = 2.0**63
"""How many different seeds there are."""
GAPS = tuple(sorted({form for word in MISSING if word for form in (word, word.upper(), word.title(), "NaN")}))
"""Words that stand for a missing value, as far as they are no level of their column."""


@dataclass(frozen=True)
class Tabular(OwnData):
    """One table per site (CSV, Excel, Parquet) with named columns: a label, features, and attributes.

    Rows without a label are left out. A column "split" with train, val or test fixes the split; without one it is drawn
    from ``data_seed``. A column "patient" holds the same text in all rows of one patient, who is then in one split and
    in one fold; it is no feature and stays at the site. Numbers are scaled by what ``scaling`` says, which a run fills
    in from all sites' training rows (``tasks.fingerprint``), so that a patient's risk depends on that patient alone.
    Categories become a 0 or 1 for each level and one for every other value, and are not scaled.

    Args:
        datalists: folder with a table per site on this machine, <site>.csv or with another of the suffixes.
        labels: number of classes (the label column then holds 0, 1, ...), or the names that it holds.
        label: the label's column.
        features: columns, separated by commas, a name with a comma in double quotes; never a column that is known only
            after the outcome.
        columns: JSON: column -> how it is read, for features that are no plain numbers: {"kind": "category", "levels":
            [...]}, {"kind": "yes_no", "yes": [...], "no": [...]}, {"kind": "days", "since": "date column"} or {"kind":
            "number"}, each with "missing": true for a feature that says that the cell is empty, and "codes": ["999"],
            cells that count as empty. A run fills in levels. Numbers and days may have "range": [lowest, highest], a
            category "separator": ";" between several codes of a cell.
        scaling: JSON of three lists, "fill", "mean" and "std" of the numbers, in the order of ``features``; "site":
            each site fills gaps with its own training median and scales by its own training mean and spread. Empty:
            what the sites have agreed on; where a task is made without a plan, by the ranges of ``columns`` if all
            numbers have one, else as "site".
        renamed: columns of some tables and their names in the others, as Alter=age; tables of sites have these names,
            further ones (``predict``, ``evaluate``) may have those.
        reading: JSON: how the outcome stood in the tables that ``init`` read; ``evaluate`` reads further ones so.
        attribute_values: columns of sensitive attributes and their values; they are no features unless named there too.
        test_fraction: share of the rows in the test split, in (0, .5].
        val_fraction: share of the remaining ones in the validation split, in (0, .5].
        model: "mlp" (64 hidden units), "linear", or a class of yours as {"class_path": "my_net.Net", "args": {...}}.
        vectors: a folder of features that an encoder has computed, see ``data.readers.vectors``; they are joined to the
            table's rows by the column patient_id, patient, slide_id or id. Empty: none.
        encoder: what made them, "NAME:NUMBERS:SHA256"; every site's must be this one. A run fills it in where the
            sites' files are on its machine.
        pooling: what a bag of several vectors becomes: their "mean", the "max" of each number, or a sum whose weights
            are learned ("attention").
        split_by: how rows are drawn for a split. "order": as many as the fractions say, by their place in the table;
            "row": each by its own cells, so that one row more or less moves no other to another split.
        data_seed: of the split; >= 0.
    """

    name = "tabular"
    title = "Classification of your own table"
    headline = "balanced_accuracy"
    quick = True
    fewest: ClassVar[int] = 2
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
    columns: Annotated[str, Text(most=2**20)] = ""
    scaling: Annotated[str, Text(most=2**21)] = ""
    renamed: Names = ""
    reading: Annotated[str, Text(most=2**16)] = ""
    attribute_values: str = ""
    test_fraction: float = 0.2
    val_fraction: float = 0.15
    model: str = "mlp"
    vectors: Annotated[str, Text(pattern=f"({NAME.pattern})?", words="a folder's name")] = ""
    encoder: str = ""
    pooling: Pooling = "mean"
    split_by: Literal["order", "row"] = "order"
    data_seed: int = 2024

    def __post_init__(self) -> None:
        self._check_own(self.fewest)
        own_network.check_model(self.model, ("mlp", "linear", "regression"))
        expect("vectors", bool(self.vectors) or not self.encoder, "a folder of features beside encoder", self.vectors)
        if self.attends:
            known = self.model != "regression"
            expect(
                "pooling", bool(self.vectors) and known, "mean or max for model=regression or no vectors", self.pooling
            )
        for key in ("test_fraction", "val_fraction"):
            expect(key, 0 < getattr(self, key) <= 0.5, "a number in (0, 0.5]", getattr(self, key))
        expect("data_seed", self.data_seed >= 0, "at least 0", self.data_seed)
        for name in self.outcome_columns:
            expect("features", name not in self.feature_names(), f"no {name!r}, which is the label", self.features)
        table_columns.renamed_of(self.renamed)
        table_columns.reading_of(self.reading)
        columns = self.read_columns()
        numbers, _ = features_of(self.feature_names(), columns)
        scaling = table_columns.read_scaling(self.scaling, len(numbers)) if self.scaling else None
        # One way to write each, so that a run is the same however its options were spelled.
        object.__setattr__(self, "columns", table_columns.as_text(columns))
        if scaling:
            object.__setattr__(self, "scaling", table_columns.as_scaling(scaling))

    @property
    def attends(self) -> bool:
        """Whether an example is a whole bag."""
        return self.pooling == "attention"

    def network(self) -> nn.Module:
        inputs = self._inputs()
        n = len(inputs.numbers) + len(inputs.plain)
        n += self._width() if self.attends else 0
        expect("features", n > 0, "columns of the table, separated by commas", self.features)
        outputs, options = self.kind.head(self.classes)
        network = own_network.build(self.model, (n,), (outputs,), **options)
        return networks.Attended(n, network) if self.attends else network

    def read(self, own: SiteConfig) -> TensorData:
        table, columns, rows, labels = self.table(own)
        prepared = self._inputs()
        numbers, plain = prepared.features(table.name, columns)
        scaling = prepared.fixed or scaled_by(numbers[rows["train"]])
        inputs = torch.cat((scaling(numbers), torch.from_numpy(plain)), dim=1)
        whose, identities = patients_of(columns), identities_of(columns, own.patient_key)
        bags = prepared.bags(own, columns, inputs, labels)
        splits: dict[str, Split | FileSplit] = {}
        for name, index in rows.items():
            about = {a: [columns[a][i] for i in index] for a in self.attributes}
            owners = None if whose is None else whose[index]
            if bags is None:
                known = None if identities is None else identities[index]
                splits[name] = Split(inputs[index], labels[index], about, owners, known)
            else:
                told = labels[index] if self.kind.has_classes else labels[:0]
                threads, reader = own.threads, importlib.import_module(VECTORS)
                splits[name] = reader.FileSplit(index.tolist(), bags, told, about, 0.0, threads, patients=owners)
        data = TensorData.of(splits, n_classes=self.kind.n_classes(self.classes))
        data.scaling, data.conversion, data.keyed = scaling, own.conversion, bool(own.patient_key)
        there = ~np.isnan(numbers[rows["train"]])
        data.filled = None if there.all() else there
        return data

    def table_inputs(self) -> TableInputs:
        return self._inputs()

    @property
    def lacks_levels(self) -> bool:
        """Whether a category's levels are not agreed yet, so that nobody knows how many features there are."""
        return bool(table_columns.open_levels(self.read_columns()))

    def targets(self, own: SiteConfig) -> Tensor:
        """Those of the training rows; raises DataError as ``read``."""
        _, _, rows, targets = self.table(own)
        return targets[rows["train"]]

    def unlabelled(self, own: SiteConfig) -> int:
        table = Path(own.data_root) / own.datalist
        if not table.is_file():
            return 0
        found = converted(read_table(table), table, own, self._gaps(), self._lists())
        there = {*self.outcome_columns} <= {*found.columns}
        return self.kind.known(found, self.outcome_columns).count(False) if there else 0

    def not_public(self) -> str:
        columns = self.read_columns()
        numbers, _ = features_of(self.feature_names(), columns)
        if self.scaling:
            return "scaling: expected none, and a range for each number in columns,"
        if lacking := open_levels(columns):
            return f"columns: {shown(lacking)}: expected levels"
        if lacking := next((one.column for one in numbers if not one.limits), ""):
            example = json.dumps({lacking: {"kind": "number", "range": [0, 1]}})
            return f"columns: {shown(lacking)}: expected a range from a data dictionary, such as '{example}',"
        return "" if self.split_by == "row" else "split_by: expected row, got order"

    def drawn(self) -> tuple[str, ...]:
        return (OPEN_SPLIT,)

    def feature_names(self) -> list[str]:
        """Columns of the table, and the numbers of its vectors where each row has one."""
        own = table_columns.names_of(self.features)
        if self.attends or not self.vectors:
            return own
        return own + importlib.import_module(VECTORS).names(self.vectors, self._width())

    def _width(self) -> int:
        """Numbers of an encoder's vector."""
        return int(importlib.import_module(VECTORS).Encoder.of(self.encoder).width)

    def read_columns(self) -> dict[str, Column]:
        return table_columns.read_columns(self.columns, self.feature_names())

    @property
    def named(self) -> tuple[str, ...]:
        return (*self.outcome_columns, *self.needed(), *self.attributes)

    def needed(self) -> tuple[str, ...]:
        since = [one.since for one in self.read_columns().values() if one.since]
        return tuple(dict.fromkeys((*table_columns.names_of(self.features), *since)))

    def _inputs(self) -> TableInputs:
        columns = self.read_columns()
        if lacking := table_columns.open_levels(columns):
            text = "expected levels; `fairflare plan` agrees on those of all sites"
            raise UserError(f"columns: {lacking!r}: {text}")
        numbers, plain = features_of(self.feature_names(), columns)
        attributes = self.attributes
        levels = {
            name: one.levels or () for name, one in columns.items() if one.kind == "category" and not one.separator
        }
        both = {name: tuple(dict.fromkeys((*attributes[name], *levels[name]))) for name in {*attributes} & {*levels}}
        return TableInputs(
            numbers=numbers,
            plain=plain,
            known={**attributes, **levels, **both},
            renamed=table_columns.renamed_of(self.renamed),
            reading=table_columns.reading_of(self.reading),
            gaps=self._gaps(),
            attributes=lambda columns: {name: list(columns[name]) for name in attributes if name in columns},
            vectors=self._vectors(),
            fixed=by_range(numbers) if not self.scaling else table_columns.read_scaling(self.scaling, len(numbers)),
        )

    def _vectors(self) -> Any:
        """What reads an encoder's features; None without."""
        reader = importlib.import_module(VECTORS) if self.vectors else None
        return reader and reader.Vectors(self.vectors, self.encoder, self.pooling)

    def table(self, own: SiteConfig) -> tuple[Path, dict[str, Any], dict[str, np.ndarray], Tensor]:
        """The file, its labelled rows' cells, the row numbers of each split, and the labels."""
        table = Path(own.data_root) / own.datalist
        if not table.is_file():
            raise DataError("no_datalist", f"table {table.name}: expected a file, found none in {table.parent}")
        columns = self._columns(table, own)
        return table, columns, self._rows(table.name, columns), self._targets(table.name, columns)

    def _columns(self, path: Path, own: SiteConfig) -> dict[str, Any]:
        table = converted(read_table(path), path, own, self._gaps(), self._lists())
        for name in self.named:
            if name not in table.columns:
                known = some([name[:100] for name in table.columns], 12)
                raise DataError("column", f"table {path.name}: expected a column {name!r}; it has: {known}")
        table = table[self.kind.known(table, self.outcome_columns)]
        if len(table) < FEWEST:
            text = f"table {path.name}: expected at least {FEWEST} rows with a label, got {len(table)}"
            raise DataError("few_examples", text)
        columns: dict[str, Any] = {name: list(table[name]) for name in table.columns}
        return self._inputs().joined(own, columns) if self.vectors else columns

    def _lists(self) -> dict[str, str]:
        """Column -> what stands between the codes of a cell."""
        return {name: one.separator for name, one in self.read_columns().items() if one.separator}

    def _gaps(self) -> tuple[str, ...]:
        """What stands for a missing value, see ``table_features.gaps_of``."""
        return (*GAPS, *table_columns.coded(self.read_columns()))

    def _rows(self, file: str, columns: dict[str, list[str]]) -> dict[str, np.ndarray]:
        """Split -> row numbers, sorted."""
        n = len(columns[self.outcome_columns[0]])
        if SPLIT in columns:
            strange = sorted(set(columns[SPLIT]) - set(SPLITS))
            if strange:
                text = f"table {file}: {SPLIT}: expected {', '.join(SPLITS)}, got {shown(strange[0])}"
                raise DataError("split", text)
            return _whole(file, columns, {name: np.flatnonzero(np.array(columns[SPLIT]) == name) for name in SPLITS})
        if self.split_by == "row":
            return self._drawn_by_row(columns, n)
        owner = np.arange(n) if (whose := patients_of(columns)) is None else whose
        patients = owner.max() + 1
        shuffled = np.random.default_rng(derive(self.data_seed, self.name, n)).permutation(patients)
        n_test = round(self.test_fraction * patients)
        n_val = round(self.val_fraction * (patients - n_test))
        test, val, train = np.split(shuffled, (n_test, n_test + n_val))
        return {name: np.flatnonzero(np.isin(owner, one)) for name, one in zip(SPLITS, (train, val, test))}

    def _drawn_by_row(self, columns: dict[str, list[str]], n: int) -> dict[str, np.ndarray]:
        """Split -> row numbers; where a row goes follows from its patient's cell, or else from its own cells alone.

        So one row more moves no other row, whatever its patient is.
        """
        whose = patient_keys(columns) or [""] * n
        names = sorted({*self.named})
        cells = (json.dumps([whose[row]] if whose[row] else [columns[name][row] for name in names]) for row in range(n))
        drawn = np.array([derive(self.data_seed, self.name, one) for one in cells], dtype=np.float64) / SEEDS
        test = drawn < self.test_fraction
        val = ~test & (drawn < self.test_fraction + self.val_fraction * (1 - self.test_fraction))
        parts = {"train": ~test & ~val, "val": val, "test": test}
        return {name: np.flatnonzero(part) for name, part in parts.items()}

    def _targets(self, file: str, columns: dict[str, list[str]]) -> Tensor:
        if not self.kind.has_classes:
            return self.kind.of_cells(file, columns, self.outcome_columns, self.classes)
        cells = columns[self.label]
        names = [str(k) for k in range(len(self.classes))] if self.numbered else list(self.classes)
        place = {name: k for k, name in enumerate(names)}
        check_cells(file, self.label, [cell in place for cell in cells], some(names, 12), columns)
        return torch.tensor([place[cell] for cell in cells], dtype=torch.int64)


def converted(
    table: pandas.DataFrame, path: Path, own: SiteConfig, gaps: Sequence[str], lists: Mapping[str, str]
) -> pandas.DataFrame:
    """``table`` in the federation's units and words; raises DataError where the site's file names another column."""
    known = some([*table.columns], 12)
    if lacking := own.convert(table, gaps, lists):
        text = (
            f"table {path.name}: {', '.join(own.conversion)}: expected a column among {known}, got {shown(lacking[0])}"
        )
        raise DataError("column", text)
    return table


def _whole(file: str, columns: Mapping[str, list[str]], rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``rows`` of each split; raises DataError where a patient is in two."""
    if (whose := patients_of(columns)) is not None:
        patients = {name: {*whose[part].tolist()} for name, part in rows.items()}
        for one, other in itertools.combinations(SPLITS, 2):
            if both := patients[one] & patients[other]:
                text = f"table {file}: expected each patient in one split, got {len(both)} in {one} and {other}"
                raise DataError("patient_overlap", text)
    return rows


def scaled_by(train: np.ndarray) -> Scaling:
    """A site's own scaling by ``train`` (n, features): a gap, nan, as the median, 0 of a column without any value."""
    known = ~np.isnan(train).all(axis=0)
    medians = np.zeros(train.shape[1])
    medians[known] = np.nanmedian(train[:, known], axis=0)
    filled = np.where(np.isnan(train), medians, train)
    return Scaling(*(torch.from_numpy(part) for part in (medians, filled.mean(axis=0), filled.std(axis=0))))


@dataclass(frozen=True)
class Ordinal(OwnGrades, Tabular):
    """One table per site, as ``Tabular`` describes it, whose classes have an order."""

    name = "ordinal"
    title = "Classes in an order on your own table"
