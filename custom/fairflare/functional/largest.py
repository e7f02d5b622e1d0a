# SPDX-License-Identifier: Apache-2.0
"""The largest entries of an update: all other positions are set to zero."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch


def bounds(sizes: np.ndarray, counts: Sequence[int]) -> list[float]:
    """For each count in [0, N] the size of that many-th largest of N finite magnitudes; infinite for a count of 0.

    Ties keep more than the count.
    """
    places = sorted({len(sizes) - count for count in counts if count})
    ordered = np.partition(sizes, places) if places else sizes
    return [float(ordered[len(sizes) - count]) if count else math.inf for count in counts]


def layer_bounds(update: torch.Tensor, fractions: Sequence[float], always_drop: bool = False) -> list[float]:
    """For each fraction q the bound that keeps the ceil(q N) largest of one layer's N entries.

    Args:
        fractions: each in [0, 1].
        always_drop: True keeps N - 1 at most, as the code of CGSV and CFFL does, but for layers of one entry, on which
            it fails.
    """
    sizes = _magnitudes(update)
    most = max(len(sizes) - always_drop, 1)
    return bounds(sizes, [min(math.ceil(len(sizes) * q), most) if len(sizes) else 0 for q in fractions])


def whole_bounds(update: Mapping[str, torch.Tensor], keys: Collection[str], fractions: Sequence[float]) -> list[float]:
    """For each fraction q the bound that keeps the floor(q N) largest of all N entries under ``keys``."""
    sizes = np.concatenate([_magnitudes(update[key]) for key in keys])
    return bounds(sizes, [int(len(sizes) * q) for q in fractions])


def at_least(update: torch.Tensor, bound: float) -> torch.Tensor:
    return torch.where(update.abs() >= bound, update, torch.zeros_like(update))


def _magnitudes(update: torch.Tensor) -> np.ndarray:
    """(N,), in float32 or wider."""
    wide = update.detach().to(torch.promote_types(update.dtype, torch.float32))
    sizes: np.ndarray = wide.reshape(-1).abs().numpy()
    return sizes
