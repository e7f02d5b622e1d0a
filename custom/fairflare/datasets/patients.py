# SPDX-License-Identifier: Apache-2.0
"""Tasks on one table of patients.

They are dealt out to sites by natural groups, label-skewed shares, or such shares of each group (``TableTask``); or the
sites are real centres, and who is where and in which split is fixed once for all (``CentreTask``).
"""

from __future__ import annotations

import csv
import gzip
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn

from fairflare.core.errors import UserError
from fairflare.core.findings import SPLIT_NAMES
from fairflare.core.seeds import derive
from fairflare.data.inputs import Scaling
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import Split, TensorData
from fairflare.datasets.partition import redrawn
from fairflare.networks import builtin as networks
from fairflare.tasks.base import PARTITION, SPLIT, Task, expect, expect_choices, site_index
from fairflare.tasks.kinds.classes import RISKS

DIRICHLET = "dirichlet"
SPLITS = ("test", "val", "train")


@dataclass(frozen=True, eq=False)
class Patients:
    """The patients of all sites; equal only to itself, so that it can be a key.

    Attributes:
        labels: int64 (N,), classes.
        numbers: float64 (N, n), nan where missing; filled and scaled as the task says.
        plain: float32 (N, m), taken as they are.
        attributes: sensitive attribute -> N values, "" where unknown.
    """

    labels: np.ndarray
    numbers: np.ndarray
    plain: np.ndarray
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        return self.numbers.shape[1] + self.plain.shape[1]

    def split(self, rows: np.ndarray, scaled: Scaling) -> Split:
        inputs = torch.cat((scaled(self.numbers[rows]), torch.from_numpy(self.plain[rows])), dim=1)
        attributes = {name: [values[i] for i in rows] for name, values in self.attributes.items()}
        return Split(inputs, torch.from_numpy(self.labels[rows]), attributes)


@cache
def packed(file: str, package: str = "fairflare.datasets") -> Mapping[str, tuple[str, ...]]:
    """Column -> its cells as text, "" where missing, of a packed CSV file of ``package``, in the file's order."""
    content = gzip.decompress(resources.files(package).joinpath(f"data/{file}").read_bytes())
    names, *rows = csv.reader(content.decode().splitlines())
    return dict(zip(names, zip(*rows)))


@dataclass(frozen=True, eq=False)
class Table(Patients):
    """Patients that the sites of a task share out.

    Attributes:
        groups: int64 (N,), the natural group of each patient, where there are any.
        cases: int64 (N,), equal for rows that belong together and stay in one split of one site; None: each by itself.
    """

    groups: np.ndarray | None = None
    cases: np.ndarray | None = None


class PatientTask(Task):
    """A task on one table of patients; a concrete one is a frozen dataclass with the option ``model``."""

    quick = True
    reference = False  # no field: a task that has the option declares it
    data_kind: ClassVar[type[TensorData]] = TensorData

    model: str

    @abstractmethod
    def table(self, own: SiteConfig | None = None) -> Patients:
        """All patients; the same object for the same file and options.

        Raises:
            UserError: a file is missing or not the table that is expected.
        """

    @abstractmethod
    def rows(self, site: str, own: SiteConfig | None = None) -> dict[str, np.ndarray]:
        """Split -> the site's rows of the table, sorted; each patient is in one split of one site at most."""

    def n_features(self) -> int:
        """Columns of ``numbers`` and ``plain`` together."""
        return self.table().n_features

    def scaled_by(self, train: np.ndarray) -> Scaling:
        """How a site with the training numbers ``train`` (n, columns) prepares numbers."""
        return Scaling.of(train)

    def initial_seed(self, seed: int) -> int:
        return seed if self.reference else super().initial_seed(seed)

    def network(self) -> nn.Module:
        return networks.build(self.model, self.n_features(), self.kind.head(self.classes)[0])

    def site_data(self, site: str) -> TensorData:
        return self.local_data(site, None)

    def local_data(self, site: str, own: SiteConfig | None) -> TensorData:
        table, rows = self.table(own), self.rows(site, own)
        scaled = self.scaled_by(table.numbers[rows["train"]])
        splits = {name: table.split(chosen, scaled) for name, chosen in rows.items()}
        data = self.data_kind.of(splits, n_classes=len(self.classes))
        data.scaling, data.lone = scaled, self.reference
        return data


@dataclass(frozen=True)
class TableTask(PatientTask):
    """A task whose sites are natural groups of one table's rows, label-skewed shares of all, or such shares of a group.

    A concrete task is a frozen dataclass with the fields below; with natural groups also sites_by: ``natural``,
    "dirichlet" or both joined with "+", where ``n_sites`` is a multiple of the number of groups.

    Args:
        n_sites: in all.
        alpha: concentration > 0 of the Dirichlet split.
        test_fraction: share of each site's patients in its test split, in (0, .5].
        val_fraction: share of the remaining ones in its validation split, in (0, .5].
        model: "mlp" (64 hidden units) or "linear".
        limit: the most patients of a split, at least 2; none: all.
        data_seed: of the split over sites and into train, val and test; >= 0.
    """

    natural: ClassVar[str] = ""
    """What ``sites_by`` calls the natural groups; empty: there are none."""
    natural_words: ClassVar[str] = ""
    """The natural groups in an error message, e.g. "regions"."""
    natural_groups: ClassVar[Sequence[str]] = ()
    """Their names, in the order of the sites."""
    smallest_site: ClassVar[int]
    """Patients that every site has at least."""
    smallest_class: ClassVar[int]
    """Patients of every class that every site has at least."""
    stratified: ClassVar[bool] = True
    """Whether splits are drawn within each class."""

    # No fields: a task that has one of these options declares it.
    sites_by = DIRICHLET
    limit = None  # type: int | None

    n_sites: int = 2
    alpha: float = 1.0
    test_fraction: float = 0.2
    val_fraction: float = 0.15
    model: Literal["mlp", "linear", "regression"] = "mlp"
    data_seed: int = 2024

    def __post_init__(self) -> None:
        expect_choices(self)
        natural = len(self.natural_groups)
        if self.sites_by == self.natural:
            groups = f"{natural} {self.natural_words} (or set sites_by={DIRICHLET})"
            expect("n_sites", self.n_sites == natural, groups, self.n_sites)
        elif self.sites_by != DIRICHLET:
            fits = natural and self.n_sites % natural == 0
            expect("n_sites", bool(fits), f"a multiple of the {natural} {self.natural_words}", self.n_sites)
        expect("n_sites", 2 <= self.n_sites <= 50, "2..50", self.n_sites)
        expect("alpha", 0 < self.alpha < math.inf, "a number above 0", self.alpha)
        for key in ("test_fraction", "val_fraction"):
            expect(key, 0 < getattr(self, key) <= 0.5, "a number in (0, 0.5]", getattr(self, key))
        expect("data_seed", self.data_seed >= 0, "at least 0", self.data_seed)

    @abstractmethod
    def table(self, own: SiteConfig | None = None) -> Table: ...

    def sites(self) -> dict[str, str]:
        skew = f"label skew, alpha {self.alpha:g}"
        if self.sites_by == DIRICHLET:
            kinds = [skew] * self.n_sites
        elif self.sites_by == self.natural:
            kinds = list(self.natural_groups)
        else:
            natural = len(self.natural_groups)
            kinds = [f"{group}; {skew}" for group in self.natural_groups for _ in range(self.n_sites // natural)]
        return {f"site-{k}": kind for k, kind in enumerate(kinds, start=1)}

    def drawn(self) -> tuple[str, ...]:
        return (SPLIT,) if self.sites_by == self.natural else (PARTITION, SPLIT)

    def check_data(self) -> None:
        self.table()

    def rows(self, site: str, own: SiteConfig | None = None) -> dict[str, np.ndarray]:
        k, table = site_index(site, self.sites()), self.table(own)
        members = np.flatnonzero(_site_of(self, table) == k)
        classes, place = _cases(table, members)
        strata = [((c,), np.flatnonzero(classes == c)) for c in range(len(self.classes))]
        split = np.empty(len(classes), dtype=np.int64)
        for key, cases in strata if self.stratified else [((), np.arange(len(classes)))]:
            rng = np.random.default_rng(derive(self.data_seed, self.name, "split", k, *key))
            n_test = round(self.test_fraction * len(cases))
            n_val = round(self.val_fraction * (len(cases) - n_test))
            for number, part in enumerate(np.split(rng.permutation(cases), (n_test, n_test + n_val))):
                split[part] = number
        return {name: members[split[place] == SPLITS.index(name)][: self.limit] for name in SPLIT_NAMES}


def _cases(table: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class of each case among ``rows``, its rows' most frequent one, and int64 (len(rows),): the case of each."""
    labels = table.labels[rows]
    if table.cases is None:
        return labels, np.arange(len(rows))
    found, place = np.unique(table.cases[rows], return_inverse=True)
    counts = np.zeros((len(found), int(labels.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(counts, (place, labels), 1)
    return counts.argmax(1), place


@lru_cache(maxsize=8)
def _site_of(task: TableTask, table: Table) -> np.ndarray:
    """int64 (N,): the site index of every row."""
    everyone = np.arange(len(table.labels))
    if task.sites_by == DIRICHLET:
        return _dealt(task, table, everyone, task.n_sites, task.data_seed)
    if task.sites_by == task.natural:
        for k, group in enumerate(task.natural_groups):
            counts = np.bincount(table.labels[table.groups == k], minlength=len(task.classes))
            enough = counts.sum() >= task.smallest_site and counts.min() >= task.smallest_class
            expected = f"at least {task.smallest_site} patients of {group}, {task.smallest_class} of each class"
            expect(f"task {task.name}", enough, expected, counts.tolist())
        assert table.groups is not None  # a task that names its natural groups reads them
        return table.groups
    per_group = task.n_sites // len(task.natural_groups)
    sites = np.empty(len(everyone), dtype=np.int64)
    for k, group in enumerate(task.natural_groups):
        members = np.flatnonzero(table.groups == k)
        seed = derive(task.data_seed, task.name, "skew", group) % 2**32
        try:
            sites[members] = k * per_group + _dealt(task, table, members, per_group, seed)
        except UserError as error:
            raise UserError(f"{group}: {error}") from None
    return sites


def _dealt(task: TableTask, table: Table, rows: np.ndarray, n_sites: int, seed: int) -> np.ndarray:
    """int64 (len(rows),) in 0..n_sites-1: label-skewed shares of ``rows`` that are large enough."""
    expect(f"task {task.name}", len(rows) > 0, "patients", 0)
    least = {"minimum": task.smallest_site, "minimum_per_class": task.smallest_class}
    return redrawn(table.labels[rows], n_sites, task.alpha, seed, cases=_cases(table, rows), **least)


TEST_SHARE, VAL_SHARE = 0.3, 0.1
"""Shares of a site's patients in its test and validation splits."""


@dataclass(frozen=True, eq=False)
class Centres(Patients):
    """Patients of real centres, with their splits.

    Attributes:
        rows: site -> split -> its patients' places, sorted; each is in one split of one site at most.
        kinds: site -> what it is, in words.
    """

    rows: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)


class CentreData(TensorData):
    """The patients of one centre, which may have treated a single one."""

    least: ClassVar[int] = 1


class CentreTask(PatientTask):
    """Binary risk from a table whose sites are real centres; a concrete task is a frozen dataclass with ``model``.

    No seed draws anything: there is no ``data_seed``, and ``compare`` repeats initial model and order alone.
    """

    headline = "auc"
    kind = RISKS
    small_sites: ClassVar[bool] = True
    simulated = "nothing"
    data_kind = CentreData

    def __post_init__(self) -> None:
        expect_choices(self)

    @abstractmethod
    def table(self, own: SiteConfig | None = None) -> Centres: ...

    def sites(self) -> dict[str, str]:
        return dict(self.table().kinds)

    def rows(self, site: str, own: SiteConfig | None = None) -> dict[str, np.ndarray]:
        found = self.table(own).rows
        site_index(site, found)
        return dict(found[site])


def fixed_split(rows: np.ndarray, task: str, site: str) -> dict[str, np.ndarray]:
    """Split -> those of a site's ``rows`` in it, sorted: 60, 10 and 30 per cent, the same for ever.

    The shares of test and validation are rounded, so that the one patient of a site of one is for training. Outcomes
    play no part: a patient is in the same split whatever is predicted.
    """
    rng = np.random.default_rng(derive(0, task, "natural split", site))
    n_test, n_val = round(TEST_SHARE * len(rows)), round(VAL_SHARE * len(rows))
    test, val, train = np.split(rng.permutation(rows), (n_test, n_test + n_val))
    return {"train": np.sort(train), "val": np.sort(val), "test": np.sort(test)}
