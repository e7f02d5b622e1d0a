# SPDX-License-Identifier: Apache-2.0
"""The sites' updates side by side, in pieces that stay in cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fairflare.core.lazy_tensors import Entries
from fairflare.core.types import Reply

BLOCK = 1 << 16
"""Positions worked on at once: 256 KB of float32."""


class Side(Sequence["np.ndarray"]):
    """Each reply's update at one block of positions, read when it is asked for."""

    def __init__(self, updates: Sequence[np.ndarray | Entries], key: str, block: slice) -> None:
        """``updates``: of the replies: (N,) what lies in memory, and the rest with its other entries."""
        self._updates, self._key, self._block = updates, key, block

    def __len__(self) -> int:
        return len(self._updates)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[one] for one in range(len(self))[k]]
        update = self._updates[k]
        return update[self._block] if isinstance(update, np.ndarray) else _array(update.part(self._key, self._block))

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[k] for k in range(len(self._updates)))


def blocks_of(replies: Sequence[Reply], key: str, size: int = BLOCK) -> Iterator[tuple[slice, Sequence[np.ndarray]]]:
    """Positions, and each reply's update there in float32 or wider, without a copy where it is that already.

    What lies in files is read block by block: as many blocks are in memory as the caller keeps.
    """
    updates = [r.update if isinstance(r.update, Entries) else _array(r.update[key].reshape(-1)) for r in replies]
    entries = replies[0].update[key].numel()
    for start in range(0, entries, size):
        block = slice(start, start + size)
        yield block, Side(updates, key, block)


def square_of(block: np.ndarray) -> float:
    """The sum of squares; in float64 where float32 overflows."""
    return inner(block, block)


def inner(one: np.ndarray, other: np.ndarray) -> float:
    """The inner product; in float64 where float32 overflows."""
    found = float(np.vdot(one, other))
    return found if math.isfinite(found) else float(np.dot(one.astype(np.float64), other.astype(np.float64)))


def _array(update: torch.Tensor) -> np.ndarray:
    return update.detach().to(torch.promote_types(update.dtype, torch.float32)).numpy()
