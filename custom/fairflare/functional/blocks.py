# SPDX-License-Identifier: Apache-2.0
"""The sites' updates side by side, in pieces that stay in cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.stored import Entries, part_of
from fairflare.core.types import Reply

BLOCK = 1 << 16
"""Positions worked on at once: 256 KB of float32."""


class Side(Sequence[np.ndarray]):
    """Each reply's update at one block of positions, read when it is asked for."""

    def __init__(self, updates: Sequence[Mapping[str, Tensor]], key: str, block: slice) -> None:
        """
        Args:
            updates: of the replies.
            key: the entry.
            block: the positions.
        """
        self._updates, self._key, self._block = updates, key, block

    def __len__(self) -> int:
        return len(self._updates)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[one] for one in range(len(self))[k]]
        part = part_of(self._updates[k], self._key, self._block)
        return part.detach().to(torch.promote_types(part.dtype, torch.float32)).numpy()


def blocks_of(replies: Sequence[Reply], key: str, size: int = BLOCK) -> Iterator[tuple[slice, Sequence[np.ndarray]]]:
    """Positions, and each reply's update there in float32 or wider, without a copy where it is that already.

    What lies in files is read block by block: as many blocks are in memory as the caller keeps.
    """
    updates = [r.update if isinstance(r.update, Entries) else {key: r.update[key].reshape(-1)} for r in replies]
    entries = replies[0].update[key].numel()
    for start in range(0, entries, size):
        block = slice(start, min(start + size, entries))
        yield block, Side(updates, key, block)


def square_of(block: np.ndarray) -> float:
    """The sum of squares; in float64 where float32 overflows."""
    with np.errstate(over="ignore"):
        square = float(np.dot(block, block))
    return square if np.isfinite(square) else float(np.dot(block.astype(np.float64), block.astype(np.float64)))
