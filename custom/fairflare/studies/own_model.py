# SPDX-License-Identifier: Apache-2.0
"""The best that a hospital's table gives alone: penalised regression or boosted trees, chosen by cross-validation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from fairflare.core.errors import UserError
from fairflare.inference.mix import REGRESSION, TREES, Regression, Trees

Array = npt.NDArray[np.float64]
INNER, PENALTIES = 5, np.logspace(-3, 2, 6)
SCORE = "neg_brier_score"
CLOSE = 1e-6
"""The largest difference between the risks of scikit-learn's model and of what is stored of it."""
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


def as_module(model: Any, kind: str, x: Array) -> Regression | Trees:
    """The own model as plain numbers, which need no pickle; compared with the model on the rows ``x`` (N, F).

    Raises:
        UserError: scikit-learn keeps its trees in another way than is known here.
    """
    import torch

    made = _regression(model) if kind == REGRESSION else _trees(model)
    rows = torch.from_numpy(x).float()
    found = torch.sigmoid(made(rows)).numpy()
    if not np.abs(found - model.predict_proba(rows.double().numpy())[:, 1]).max() < CLOSE:
        raise UserError(f"own model: this version of scikit-learn keeps {kind} in another way; expected the same risks")
    return made


def _regression(model: Any) -> Regression:
    made = Regression(model.coef_.shape[1])
    _fill(made, coefficients=model.coef_[0], intercept=model.intercept_[0])
    return made


def _trees(model: Any) -> Trees:
    """A leaf leads to itself; what fills up a smaller tree is never reached."""
    every = [tree[0].nodes for tree in model._predictors]
    shape = len(every), max(len(nodes) for nodes in every)
    made = Trees(*shape, max(1, *(int(nodes["depth"].max()) for nodes in every)))
    ends = np.broadcast_to(np.arange(shape[1]), shape)
    found = {"feature": np.zeros(shape), "threshold": np.zeros(shape), "value": np.zeros(shape)}
    found |= {"left": ends.copy(), "right": ends.copy()}
    for k, nodes in enumerate(every):
        inner = np.flatnonzero(nodes["is_leaf"] == 0)
        for name, field in (("feature", "feature_idx"), ("threshold", "num_threshold"), ("left", "left")):
            found[name][k, inner] = nodes[field][inner]
        found["right"][k, inner] = nodes["right"][inner]
        found["value"][k, : len(nodes)] = nodes["value"]
    _fill(made, first=model._baseline_prediction.ravel()[0], **found)
    return made


def _fill(made: Regression | Trees, **values: Any) -> None:
    import torch

    for name, value in values.items():
        own = getattr(made, name)
        own.copy_(torch.as_tensor(np.asarray(value)).to(own.dtype))
