# SPDX-License-Identifier: Apache-2.0
"""How a file of a user's becomes what a task's network takes: the same functions that prepare training examples."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.data.readers.cases import SIGN as SIGN
from fairflare.data.readers.table_features import Arrays, Columns, Feature, parsed, stacked
from fairflare.data.tensors import ImageInputs as ImageInputs

if TYPE_CHECKING:
    from fairflare.data.readers.vectors import Vectors
    from fairflare.data.site_config import SiteConfig

Features = tuple[np.ndarray, np.ndarray]
"""Numbers float64 (N, n), nan where missing, which a site scales; plain float32 (N, m), taken as they are."""
LONGEST = 100_000
"""Features of a table."""
Pooling = Literal["mean", "max", "attention"]
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,59}")
VECTORS = "fairflare.data.readers.vectors"
"""What reads an encoder's features: by a name that no reader of imports follows, as few runs need it."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """How a site prepares numbers: gaps become ``fill``, then (x - mean) / std; a spread of 0 is only centred.

    All three are float64 (n,), ``std`` >= 0.
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
            values: Any = content.get(key) if isinstance(content, dict) else None
            fits = isinstance(values, list) and len(values) == n <= LONGEST
            if not fits or not all(type(v) in (int, float) and math.isfinite(v) for v in values):
                raise UserError(f"scaling: expected {n} finite numbers as {key!r}")
            found.append(torch.tensor(values, dtype=torch.float64))
        if n and float(found[2].min()) < 0:
            raise UserError("scaling: expected standard deviations of at least 0")
        return cls(*found)

    @classmethod
    def of(cls, train: np.ndarray) -> Scaling:
        """Median, mean and population's spread of float64 (n, features), nan where missing; an empty column is 0."""
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
        numbers: features that a site scales.
        plain: features that are taken as they are.
        known: column -> the values that it may have; empty cells are always allowed.
        gaps: words that stand for a missing value, in one column as "sex=9".
        attributes: columns -> sensitive attribute -> N values, "" where unknown.
        fixed: constants that every site scales by; None: each by its own training rows.
        vectors: an encoder's features that belong to rows; None: there are none.
        renamed: column of some tables -> its name here.
        reading: how other tables say the outcome, see ``table_columns.reading_of``.
    """

    numbers: tuple[Feature, ...]
    plain: tuple[Feature, ...] = ()
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    attributes: Callable[[Columns], Mapping[str, Sequence[str]]] = lambda columns: {}
    fixed: Scaling | None = None
    vectors: Vectors | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    reading: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for one in (*self.numbers, *self.plain) for name in one.columns))

    @property
    def lists(self) -> dict[str, str]:
        """Column -> what stands between the codes of a cell."""
        return {one.column: one.separator for one in self.plain if one.separator}

    def features(self, file: str, columns: Columns) -> Features:
        """Numbers and plain features of a table's cells; raises DataError."""
        arrays = parsed(file, columns, (*self.numbers, *self.plain), self.gaps)
        return self.of(arrays, len(next(iter(columns.values()))))

    def of(self, arrays: Arrays, n: int) -> Features:
        """The same of ``n`` rows' parsed cells."""
        return stacked(self.numbers, arrays, n), stacked(self.plain, arrays, n).astype(np.float32)

    def joined(self, own: SiteConfig, columns: Mapping[str, Any]) -> dict[str, Any]:
        """``columns`` of a site's table with its pooled features, float64 (N,) each; raises DataError.

        Bags that attention pools stay where they are.
        """
        return {**columns, **(self.vectors.pooled(own, columns) if self.vectors else {})}

    def bags(
        self, own: SiteConfig, columns: Mapping[str, Any], inputs: Tensor, targets: Tensor
    ) -> Callable[[int], tuple[Tensor, Tensor]] | None:
        """Row of a site's table -> its bag beside its ``inputs``, and its target; None where no row has a bag."""
        return self.vectors.bags(own, columns, inputs, targets) if self.vectors else None
