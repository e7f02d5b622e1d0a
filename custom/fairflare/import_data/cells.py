# SPDX-License-Identifier: Apache-2.0
"""A table's columns by their different cells, so that what a cell is, is found out once, however many rows have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd


@dataclass(frozen=True, eq=False)
class Cells:
    """One column.

    Attributes:
        codes: (N,) the place in ``texts`` of each row's cell.
        texts: (K,) the different cells in order of appearance; some may stand in no row.
    """

    codes: np.ndarray
    texts: np.ndarray

    @classmethod
    def of(cls, column: Iterable[str]) -> Cells:
        codes, texts = pd.factorize(np.asarray(column, dtype=object))
        return cls(codes.astype(np.int32), texts)

    @cached_property
    def counts(self) -> np.ndarray:
        """(K,) rows of each text."""
        return np.bincount(self.codes, minlength=len(self.texts))

    @cached_property
    def numbers(self) -> np.ndarray:
        """float64 (K,), nan where a text is no number."""
        return np.asarray(pd.to_numeric(self.texts, errors="coerce"), dtype=np.float64)

    @cached_property
    def empty(self) -> np.ndarray:
        """bool (K,)."""
        return np.asarray(self.texts == "", dtype=bool)

    @property
    def column(self) -> pd.Series:
        """Text (N,)."""
        return pd.Series(self.texts[self.codes], dtype=object)

    def where(self, keep: np.ndarray) -> Cells:
        """With the texts that are not to ``keep``, bool (K,), as ""."""
        if keep.all():
            return self
        merged = Cells.of(np.where(keep, self.texts, ""))
        return Cells(merged.codes[self.codes], merged.texts)

    def that(self, says: Callable[[str], object]) -> np.ndarray:
        """bool (K,): of which texts ``says`` is true."""
        return np.fromiter((bool(says(text)) for text in self.texts), dtype=bool, count=len(self.texts))

    def rows(self, which: np.ndarray) -> int:
        """How many rows have a text of ``which``, bool (K,)."""
        return int(self.counts[which].sum())

    def share(self, which: np.ndarray) -> float:
        """The share of rows, among those that are not empty, with a text of ``which``."""
        return self.rows(which & ~self.empty) / self.rows(~self.empty)


Sites = Mapping[str, np.ndarray]
"""Site -> the numbers of its rows, sites in order."""


def rows_of_sites(sites: Iterable[str]) -> Sites:
    """``Sites`` of the site of each row."""
    whose = np.asarray(list(sites), dtype=object)
    return {str(site): rows for site, rows in pd.Series(whose).groupby(whose).indices.items()}


class Row(Mapping[str, str]):
    """One row of ``columns``."""

    __slots__ = ("columns", "number")

    def __init__(self, columns: Mapping[str, Cells], number: int) -> None:
        self.columns, self.number = columns, number

    def __getitem__(self, name: str) -> str:
        cells = self.columns[name]
        return str(cells.texts[cells.codes[self.number]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)
