# SPDX-License-Identifier: Apache-2.0
"""The sites' updates side by side, in pieces that stay in cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fairflare.core.types import Reply

BLOCK = 1 << 16
"""Positions worked on at once: 256 KB of float32."""


def blocks_of(replies: Sequence[Reply], key: str, size: int = BLOCK) -> Iterator[tuple[slice, list[np.ndarray]]]:
    """Positions, and each reply's update there in float32 or wider, without a copy where it is that already."""
    flat = [_array(reply.update[key]) for reply in replies]
    for start in range(0, flat[0].size, size):
        block = slice(start, start + size)
        yield block, [update[block] for update in flat]


def square_of(block: np.ndarray) -> float:
    """The sum of squares; in float64 where float32 overflows."""
    with np.errstate(over="ignore"):
        square = float(np.dot(block, block))
    return square if np.isfinite(square) else float(np.dot(block.astype(np.float64), block.astype(np.float64)))


def _array(update: Tensor) -> np.ndarray:
    return update.detach().reshape(-1).to(torch.promote_types(update.dtype, torch.float32)).numpy()
