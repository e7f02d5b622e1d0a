# SPDX-License-Identifier: Apache-2.0
"""How a file of a user's becomes what a task's network takes: the same functions that prepare training examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.clinic.readers.pictures import Reader
from fairflare.core.errors import DataError, UserError

Columns = Mapping[str, Sequence[str]]
"""Column -> its cells as text, "" where empty."""
Features = tuple[np.ndarray, np.ndarray]
"""Numbers float64 (N, n), nan where missing, which a site scales; plain float32 (N, m), taken as they are."""
LONGEST = 100_000
"""Features of a table."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """How a site prepares numbers: gaps become ``fill``, then (x - mean) / std; a spread of 0 is only centred.

    Attributes:
        fill: float64 (n,).
        mean: float64 (n,).
        std: float64 (n,), >= 0.
    """

    fill: Tensor
    mean: Tensor
    std: Tensor

    def __call__(self, rows: np.ndarray) -> Tensor:
        """Float64 (N, n) with nan -> float32 (N, n)."""
        if not rows.shape[1]:
            return torch.empty(rows.shape)
        filled = torch.from_numpy(np.where(np.isnan(rows), self.fill.numpy(), rows))
        spread = torch.where(self.std > 0, self.std, torch.ones_like(self.std))
        return ((filled - self.mean) / spread).float()

    def distance(self, rows: np.ndarray) -> np.ndarray:
        """(N, n): how many standard deviations each number is from the mean; 0 where missing or without a spread."""
        spread = self.std.numpy()
        far = np.abs(rows - self.mean.numpy()) / np.where(spread > 0, spread, np.inf)
        return np.asarray(np.where(np.isnan(rows), 0.0, far))

    def to_json(self) -> dict[str, list[float]]:
        """The three as lists; ``from_json`` reads back the same bits."""
        return {"fill": self.fill.tolist(), "mean": self.mean.tolist(), "std": self.std.tolist()}

    @classmethod
    def from_json(cls, content: Any, n: int) -> Scaling:
        """Read ``to_json`` back, from whoever it comes; raises UserError unless it is of ``n`` finite numbers each."""
        found = []
        for key in ("fill", "mean", "std"):
            values = content.get(key) if isinstance(content, dict) else None
            if not (
                isinstance(values, list)
                and len(values) == n <= LONGEST
                and all(type(v) in (int, float) and math.isfinite(v) for v in values)
            ):
                raise UserError(f"scaling: expected {n} finite numbers as {key!r}")
            found.append(torch.tensor(values, dtype=torch.float64))
        if n and float(found[2].min()) < 0:
            raise UserError("scaling: expected standard deviations of at least 0")
        return cls(*found)

    @classmethod
    def of(cls, train: np.ndarray) -> Scaling:
        """Median, mean and spread (population) of the rows; a column without a single value counts as all zeros.

        Args:
            train: float64 (n, features), nan where missing.
        """
        if not train.shape[1]:
            return cls(*(torch.empty(0, dtype=torch.float64) for _ in range(3)))
        empty = np.isnan(train).all(0)
        medians = np.nanmedian(np.where(empty, 0.0, train), axis=0)
        filled = torch.from_numpy(np.where(np.isnan(train), medians, train))
        return cls(torch.from_numpy(medians), filled.mean(0), filled.std(0, correction=0))


@dataclass(frozen=True)
class TableInputs:
    """How the rows of a table become features.

    Attributes:
        columns: that a file must have.
        numbers: names of the numbers, in the order in which ``features`` has them.
        features: columns -> features; raises DataError on a cell that it cannot read.
        known: column -> the values that it may have; empty cells are always allowed.
        attributes: columns -> sensitive attribute -> N values, "" where unknown.
        optional: columns that only attributes are made of.
        fixed: constants that every site scales by; None: each by its own training rows.
    """

    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    features: Callable[[Columns], Features]
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: Callable[[Columns], Mapping[str, Sequence[str]]] = lambda columns: {}
    optional: tuple[str, ...] = ()
    fixed: Scaling | None = None

    @property
    def own_scaling(self) -> bool:
        """Whether every site scales by its own training rows rather than by constants of the task."""
        return self.fixed is None


@dataclass(frozen=True)
class ImageInputs:
    """How an image file becomes what the network takes.

    Attributes:
        reader: from a file to uint8 (channels, size, size).
        mean: per channel on [0, 1]; as many as the network has channels.
        std: likewise, > 0.
    """

    reader: Reader
    mean: tuple[float, ...]
    std: tuple[float, ...]


def as_numbers(file: str, name: str, cells: Sequence[str]) -> np.ndarray:
    """float64 (N,), nan where a cell is empty; DataError names the first cell that is no finite number."""
    found = np.full(len(cells), np.nan)
    for i, cell in enumerate(cells):
        if cell:
            try:
                found[i] = float(cell)
            except ValueError:
                text = f"table {file}: row {i}: {name}: expected a number, got {cell!r}"
                raise DataError("number", text) from None
            if not math.isfinite(found[i]):
                raise DataError("number", f"table {file}: row {i}: {name}: expected a finite number, got {cell!r}")
    return found
