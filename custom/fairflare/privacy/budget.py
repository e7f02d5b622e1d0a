# SPDX-License-Identifier: Apache-2.0
"""What a site's training has told of a record, in epsilon and delta, and where its noise comes from.

Two data sets are neighbours if one has one record more. The accountant is Opacus's for Renyi differential privacy of
the subsampled Gaussian mechanism (Mironov, Talwar and Zhang 2019, arXiv:1908.10530). Only jobs
whose trainer is private carry this module.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fairflare.core.errors import UserError

ORDERS = (*range(2, 65), 80, 96, 128, 256, 512, 1024)
"""Of the Renyi divergence. Whole ones alone: their sums are finite, where the series of others may not converge, and
dp-accounting then leaves them out."""
LEAST = 1e-3
"""The smallest noise that is looked for, as a multiple of the clipping norm."""


@dataclass(frozen=True)
class Mechanism:
    """So many steps that add Gaussian noise to the sum over a Poisson sample.

    Attributes:
        noise: standard deviation over the clipping norm, > 0.
        rate: chance of each record to be in the sample, in (0, 1].
        steps: how many, >= 0.
    """

    noise: float
    rate: float
    steps: int


def epsilon_of(spent: Sequence[Mechanism], delta: float) -> float:
    """The epsilon that goes with ``delta`` after all of ``spent``; 0 where nothing was."""
    from opacus.accountants.analysis import rdp

    if not any(one.steps for one in spent):
        return 0.0
    total: Any = sum(one.steps * _of_a_step(one.noise, one.rate) for one in spent)
    with warnings.catch_warnings():  # the largest or smallest order's bound is right, if not the best
        warnings.simplefilter("ignore", UserWarning)
        return max(0.0, float(rdp.get_privacy_spent(orders=list(ORDERS), rdp=total, delta=delta)[0]))


@lru_cache(maxsize=1024)
def _of_a_step(noise: float, rate: float) -> Any:
    """The divergence of one step, order by order; that of several is their sum."""
    from opacus.accountants.analysis import rdp

    return np.asarray(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=list(ORDERS)))


@lru_cache(maxsize=256)
def noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The least noise with which ``steps`` stay within the budget, to a part in 10,000; raises UserError for none."""
    low, high = LEAST, 1e6
    if epsilon_of([Mechanism(high, rate, steps)], delta) > epsilon:
        raise UserError(f"epsilon: expected one that some noise can keep to over {steps} steps, got {epsilon:g}")
    while high > low * 1.0001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if epsilon_of([Mechanism(middle, rate, steps)], delta) <= epsilon else (middle, high)
    return high


class Draws:
    """Uniform and Gaussian numbers made of random bytes.

    Args:
        seed: None takes every byte from the operating system, which nobody can foretell or repeat; a seed, which
            server and sites know, is for simulations: it protects nobody.
    """

    def __init__(self, seed: int | None) -> None:
        self._bytes = os.urandom if seed is None else np.random.default_rng(seed).bytes

    def uniform(self, n: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(n,) in (0, 1), multiples of 2^-53."""
        return np.asarray(((np.frombuffer(self._bytes(8 * n), "<u8") >> 11) + 0.5) * 2.0**-53, dtype=np.float64)

    def normal(self, like: torch.Tensor) -> torch.Tensor:
        """Standard normal numbers of the shape, type and device of ``like``.

        Each is the sum of four halves, so that floating-point numbers do not tell what was added to (Holohan and
        Braghin 2021, arXiv:2107.10138, as Opacus's secure mode does).
        """
        from scipy.special import ndtri

        drawn = ndtri(self.uniform(4 * like.numel())).reshape(4, -1).sum(0) / 2
        return torch.from_numpy(drawn).reshape(like.shape).to(like)
