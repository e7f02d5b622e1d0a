# SPDX-License-Identifier: Apache-2.0
"""Rows of a table as the examples of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from fairflare.data.inputs import Scaling
from fairflare.data.tensors import Split


class Rows(Protocol):
    """The patients of a table, N of them."""

    @property
    def labels(self) -> np.ndarray:
        """int64 (N,), classes."""

    @property
    def numbers(self) -> np.ndarray:
        """float64 (N, n), nan where missing."""

    @property
    def plain(self) -> np.ndarray:
        """float32 (N, m), taken as they are."""

    @property
    def attributes(self) -> Mapping[str, Sequence[str]]:
        """Sensitive attribute -> N values."""


def split_of(table: Rows, rows: np.ndarray, scaled: Scaling) -> Split:
    """The patients at ``rows`` (their places in the table) with their numbers as the site prepares them."""
    inputs = torch.cat((scaled(table.numbers[rows]), torch.from_numpy(table.plain[rows])), dim=1)
    attributes = {name: [values[i] for i in rows] for name, values in table.attributes.items()}
    return Split(inputs, torch.from_numpy(table.labels[rows]), attributes)
