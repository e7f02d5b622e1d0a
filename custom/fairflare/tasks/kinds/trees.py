# SPDX-License-Identifier: Apache-2.0
"""Gradient boosting on a site's own rows (scikit-learn's histogram trees, as LightGBM grows them: Ke et al., NeurIPS
2017): what a site would have without a federation and without a network. Nothing of it leaves but metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.types import SiteData

Outputs = Callable[[Tensor], Tensor]
LEAST = 1e-6
"""Of a probability or rate."""
BATCH = 256


def rows(data: SiteData) -> tuple[np.ndarray, np.ndarray] | None:
    """Inputs (N, F) and targets (N, ...) of the training split; None where inputs are no rows, or not finite."""
    batches = list(data.fixed("train", BATCH))
    if not batches or batches[0].inputs.dim() != 2:
        return None
    x, y = (torch.cat([getattr(batch, name).cpu() for batch in batches]).numpy() for name in ("inputs", "targets"))
    return (x, y) if np.isfinite(x).all() else None


def of_classes(x: np.ndarray, y: np.ndarray, n_classes: int) -> Outputs:
    """Inputs -> log probabilities (N, C) of a classifier of classes ``y``; constant where they are all the same."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    known = np.unique(y).astype(np.int64)
    model = _fitted(HistGradientBoostingClassifier(random_state=0), x, y) if len(known) > 1 else None

    def outputs(inputs: Tensor) -> Tensor:
        found = np.full((len(inputs), n_classes), LEAST)
        found[:, known] = 1.0 if model is None else model.predict_proba(inputs.numpy()).clip(LEAST, 1.0)
        return torch.from_numpy(np.log(found)).float()

    return outputs


def of_amounts(x: np.ndarray, y: np.ndarray, exposures: np.ndarray | None = None, *, counts: bool = False) -> Outputs:
    """Inputs -> (N, 1): amounts ``y``, or of counts ``y`` the logarithms of their rates."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    if not counts:
        model = _fitted(HistGradientBoostingRegressor(random_state=0), x, y)
        return lambda inputs: torch.from_numpy(model.predict(inputs.numpy())[:, None]).float()
    if not y.any():
        return lambda inputs: torch.full((len(inputs), 1), float(np.log(LEAST)))
    weights = np.ones(len(y)) if exposures is None else exposures
    rate = _fitted(HistGradientBoostingRegressor(loss="poisson", random_state=0), x, y / weights, weights)
    return lambda inputs: torch.from_numpy(np.log(rate.predict(inputs.numpy()).clip(LEAST))[:, None]).float()


def _fitted(model: Any, x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> Any:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # sites share the machine, and one thread adds in one order
        return model.fit(x, y, sample_weight=weights)
