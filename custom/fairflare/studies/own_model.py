# SPDX-License-Identifier: Apache-2.0
"""The best that a hospital's table gives alone: penalised regression or boosted trees, chosen by cross-validation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fairflare.tasks.kinds.survival import efron_loss

Array = npt.NDArray[np.float64]
INNER, PENALTIES = 5, np.logspace(-3, 2, 6)
COX_PENALTIES = np.logspace(0, 3, 4)
SCORE = "neg_brier_score"
REGRESSION, TREES, COX = "regression", "trees", "cox"
GROWN = {
    "learning_rate": 0.05,
    "max_iter": 100,
    "max_leaf_nodes": 8,
    "min_samples_leaf": 10,
    "l2_regularization": 1.0,
}


def own_risks(x: Array, y: Array, new: Array) -> tuple[Array, str]:
    """Risks (M,) of the rows ``new`` (M, F) by the own model of the rows (x, y), and its kind; see ``own_model``."""
    from threadpoolctl import threadpool_limits

    model, kind = own_model(x, y)
    with threadpool_limits(1):
        return np.asarray(model.predict_proba(new)[:, 1]), kind


def own_model(x: Array, y: Array) -> tuple[Any, str]:
    """The better of two models of the rows (x, y), and which it is.

    Args:
        x: (N, F) finite.
        y: (N,) 0 or 1, two or more of each.

    Returns:
        A fitted classifier of scikit-learn, and "regression" or "trees". Classes of fewer than three patients give a
        regression without cross-validation.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
    from threadpoolctl import threadpool_limits

    folds = min(INNER, int(min(y.sum(), len(y) - y.sum())))
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # of a solver that stops before it has converged
        if folds < 3:
            return LogisticRegression(C=0.1).fit(x, y), REGRESSION
        inner = StratifiedKFold(folds, shuffle=True, random_state=0)
        ridge = GridSearchCV(LogisticRegression(max_iter=300), {"C": PENALTIES}, scoring=SCORE, cv=inner).fit(x, y)
        trees = HistGradientBoostingClassifier(**GROWN, random_state=0)
        if cross_val_score(trees, x, y, scoring=SCORE, cv=inner).mean() > ridge.best_score_:
            return trees.fit(x, y), TREES
        return ridge.best_estimator_, REGRESSION


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

    return np.asarray(new @ _ridge(rows, times, min(COX_PENALTIES, key=lost)).numpy())


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
