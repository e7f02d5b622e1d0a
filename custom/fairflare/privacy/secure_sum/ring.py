# SPDX-License-Identifier: Apache-2.0
"""How entries of updates become whole numbers modulo 2^64 or 2^32, and sums of these entries again.

With 64 bits every entry counts in steps of 2^-40, a hundredth of float32's own rounding at 1e-5. With 32 bits, half as
much to mask and to send, parameters count in steps that follow from the received model, which all sites of a sum have
alike: 2^-24 where a tensor's largest entry is at most 1, else as much coarser as the next power of two above it.
Statistics keep 64 bits: their size says nothing of how they change.

Rounding is to the nearest step, ties to even. A sum over K sites is off by at most K / 2 steps, and by sqrt(K / 12) in
root mean square where the entries' remainders are independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

WIDTHS = (64, 32)
"""What the run key ``mask_bits`` may be."""
STEP = 2.0**-40
LARGEST = 2.0**16
"""Of the entries of a sum with 64 bits; masks that do not cancel leave entries up to 2^23."""
RANGE = 2.0**28
"""Steps of the largest entry of a sum with 32 bits; masks that do not cancel leave up to 2^31."""
TIMES = 16.0
"""That entry, beside the power of two above the model's largest one."""


@dataclass(frozen=True)
class Scale:
    """How one tensor's entries are written.

    Attributes:
        bits: 64 or 32.
        step: what the whole number 1 stands for, a power of two.
        reach: the largest entry of a sum.
    """

    bits: int = 64
    step: float = STEP
    reach: float = LARGEST

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if self.bits == 64 else torch.int32

    @property
    def unsigned(self) -> np.dtype[Any]:
        """Of masks, whose arithmetic wraps around."""
        return np.dtype(f"<u{self.bits // 8}")

    def most(self, sites: int, weight: float) -> float:
        """The largest entry that a site may add, so that a sum over ``sites`` whose weights add up to 1 stays in reach.

        With 32 bits half of the reach is shared out by weights, so that D_k may be half of it large at any site, and
        half evenly.
        """
        return self.reach / sites if self.bits == 64 else self.reach * (weight + 1 / sites) / 2


WIDE = Scale()


@dataclass(frozen=True)
class Ring:
    """The scales of a run; ``bits``: 64, or 32 for the parameters."""

    bits: int = 64
    parameters: frozenset[str] = frozenset()

    def scales(self, model: Mapping[str, Any]) -> dict[str, Scale]:
        """Entry -> its scale, for the floating-point entries of the received model, tensors or arrays."""
        found = {key: torch.as_tensor(value) for key, value in model.items()}
        return {key: self._scale(key, value) for key, value in found.items() if value.is_floating_point()}

    def _scale(self, key: str, value: torch.Tensor) -> Scale:
        if self.bits == 64 or key not in self.parameters or not value.numel():
            return WIDE
        low, high = (float(extreme) for extreme in torch.aminmax(value.detach()))
        largest = max(-low, high)
        if not math.isfinite(largest):
            return WIDE
        above = 2.0 ** max(0, math.ceil(math.log2(max(largest, 1.0))))
        return Scale(32, TIMES * above / RANGE, TIMES * above)
