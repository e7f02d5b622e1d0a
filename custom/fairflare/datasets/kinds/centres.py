# SPDX-License-Identifier: Apache-2.0
"""Tasks on real patients of real centres: who is where, and in which split, is fixed once for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from torch import nn

from fairflare.core.seeds import derive
from fairflare.data.checks import expect_choices, site_index
from fairflare.data.inputs import Scaling
from fairflare.data.tensors import TensorData
from fairflare.datasets.kinds.rows import split_of
from fairflare.networks import builtin as networks
from fairflare.tasks.base import Task
from fairflare.tasks.kinds.classes import RISKS

TEST, VAL = 0.3, 0.1
"""Shares of a site's patients in its test and validation splits."""


@dataclass(frozen=True, eq=False)
class Centres:
    """The patients of all sites and their splits; equal only to itself, so that it can be a key.

    Attributes:
        labels: int64 (N,), 1 where the outcome occurred.
        numbers: float64 (N, n), nan where missing; scaled by the task.
        plain: float32 (N, m), taken as they are.
        attributes: sensitive attribute -> N values, "" where unknown.
        rows: site -> split -> its patients' places above, sorted; each is in one split of one site at most.
        kinds: site -> what it is, in words.
    """

    labels: np.ndarray
    numbers: np.ndarray
    plain: np.ndarray
    rows: Mapping[str, Mapping[str, np.ndarray]]
    kinds: Mapping[str, str]
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """Columns of ``numbers`` and ``plain`` together."""
        return self.numbers.shape[1] + self.plain.shape[1]


class CentreData(TensorData):
    """The patients of one centre, which may have treated a single one."""

    least: ClassVar[int] = 1


class CentreTask(Task):
    """Binary risk from a table whose sites are real centres; a concrete task is a frozen dataclass with ``model``.

    No seed draws anything: there is no ``data_seed``, and ``compare`` repeats initial model and order alone.
    """

    headline = "auc"
    quick = True
    kind = RISKS
    small_sites: ClassVar[bool] = True
    simulated = "nothing"

    model: str

    def __post_init__(self) -> None:
        expect_choices(self)

    @abstractmethod
    def centres(self) -> Centres:
        """All patients; the same object for the same options."""

    @abstractmethod
    def scaled_by(self, train: np.ndarray) -> Scaling:
        """How a site with the training numbers ``train`` (n, columns) prepares numbers."""

    def sites(self) -> dict[str, str]:
        """The centres."""
        return dict(self.centres().kinds)

    def network(self) -> nn.Module:
        """Features (N, F) -> logits (N, 2)."""
        return networks.build(self.model, self.centres().n_features, len(self.classes))

    def rows(self, site: str) -> dict[str, np.ndarray]:
        """Split -> places of the site's patients in the table."""
        site_index(site, self.centres().rows)
        return dict(self.centres().rows[site])

    def site_data(self, site: str) -> TensorData:
        """The centre's patients, with their sensitive attributes."""
        table, rows = self.centres(), self.rows(site)
        scaled = self.scaled_by(table.numbers[rows["train"]])
        splits = {name: split_of(table, chosen, scaled) for name, chosen in rows.items()}
        data = CentreData.of(splits, n_classes=len(self.classes))
        data.scaling = scaled
        return data


def fixed_split(rows: np.ndarray, task: str, site: str) -> dict[str, np.ndarray]:
    """Split -> those of a site's ``rows`` in it, sorted: 60, 10 and 30 per cent, the same for ever.

    The shares of test and validation are rounded, so that the one patient of a site of one is for training. Outcomes
    play no part: a patient is in the same split whatever is predicted.
    """
    rng = np.random.default_rng(derive(0, task, "natural split", site))
    n_test, n_val = round(TEST * len(rows)), round(VAL * len(rows))
    test, val, train = np.split(rng.permutation(rows), (n_test, n_test + n_val))
    return {"train": np.sort(train), "val": np.sort(val), "test": np.sort(test)}
