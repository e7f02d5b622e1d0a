# SPDX-License-Identifier: Apache-2.0
"""A table's columns by their different cells, so that what a cell is, is found out once, however many rows have it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fairflare.core.validation import CONTROL


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
        texts = np.where(self.empty, "nan", self.texts)
        with suppress(ValueError, TypeError):
            whole = "".join(texts)
            if "_" not in whole and whole.isascii():  # where NumPy and pandas read the same numbers
                return texts.astype(np.float64)
        return np.asarray(pd.to_numeric(pd.Series(self.texts, dtype=object), errors="coerce"), dtype=np.float64)

    @cached_property
    def controls(self) -> bool:
        """Whether a text holds a control character."""
        return bool(CONTROL.search("\n".join(self.texts)))

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


@dataclass(frozen=True, eq=False)
class Sites:
    """The site of each row.

    Attributes:
        names: (S,) in order.
        codes: (N,) the place in ``names`` of each row's.
    """

    names: Sequence[str]
    codes: np.ndarray

    @classmethod
    def of(cls, sites: Iterable[str]) -> Sites:
        names, codes = np.unique(np.asarray(list(sites), dtype=object), return_inverse=True)
        return cls(list(names), codes)

    @property
    def column(self) -> pd.Series:
        """Text (N,)."""
        return pd.Series(np.array(self.names, dtype=object)[self.codes], dtype=object)

    @cached_property
    def _parts(self) -> list[np.ndarray]:
        order = np.argsort(self.codes, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.codes, minlength=len(self.names)))[:-1])

    def parts(self, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Each site with its own of ``values`` (N,)."""
        return ((name, values[rows]) for name, rows in zip(self.names, self._parts, strict=True))

    def with_cells(self, cells: Cells) -> set[str]:
        """Those of which a row has a cell."""
        return {self.names[code] for code in np.unique(self.codes[~cells.empty[cells.codes]])}

    def numbered(self, cells: Cells) -> bool:
        """Whether no two rows of a site have the same cell."""
        return all(len(np.unique(own)) == len(own) for _, own in self.parts(cells.codes))

    def told_by(self, cells: Cells) -> bool:
        """Whether several sites have cells, and each the same one in all of its rows that have one."""
        filled = ~cells.empty[cells.codes]
        own, codes = self.codes[filled], cells.codes[filled]
        first = np.full(len(self.names), -1)
        first[own[::-1]] = codes[::-1]
        return int((first >= 0).sum()) > 1 and bool((codes == first[own]).all())


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
