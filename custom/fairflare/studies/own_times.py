# SPDX-License-Identifier: Apache-2.0
"""What a hospital would have alone for times to an event: Cox's regression with a cross-validated ridge penalty."""

from __future__ import annotations

import numpy as np
import torch

from fairflare.studies.own_model import INNER, Array
from fairflare.tasks.kinds.survival import efron_loss

COX = "cox"
PENALTIES = np.logspace(0, 3, 4)


def own_log_risks(x: Array, y: Array, new: Array) -> Array:
    """Log risks (M,) of rows ``new`` (M, F) by a ridge Cox regression of rows x (N, F) with times and events y (N, 2).

    The penalty is that of the largest cross-validated partial likelihood (Verweij and van Houwelingen, Statistics in
    Medicine 12, 1993).
    """
    place = np.random.default_rng(0).permutation(len(x)) % INNER
    rows, times = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y))
    parts = [(rows[place != fold], times[place != fold]) for fold in range(INNER)]

    def lost(penalty: float) -> float:
        found = [(part, _ridge(*part, penalty)) for part in parts]
        return sum(float(_cox_loss(rows, times, at) - _cox_loss(*part, at)) for part, at in found)

    return np.asarray(new @ _ridge(rows, times, min(PENALTIES, key=lost)).numpy())


def _cox_loss(rows: torch.Tensor, times: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return efron_loss((rows @ at)[:, None], times) * len(rows)


def _ridge(rows: torch.Tensor, times: torch.Tensor, penalty: float) -> torch.Tensor:
    """(F,) Cox's coefficients with a ridge penalty."""
    at = torch.zeros(rows.shape[1], dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([at], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        search.zero_grad()
        found = _cox_loss(rows, times, at) + penalty * at @ at / 2
        found.backward()
        return found

    search.step(loss)
    return at.detach()
