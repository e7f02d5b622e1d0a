# SPDX-License-Identifier: Apache-2.0
"""The best that a hospital's table gives alone: penalised regression or boosted trees, chosen by cross-validation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from fairflare.functional.decision import Array

INNER, PENALTIES = 5, np.logspace(-3, 2, 6)
SCORE = "neg_brier_score"
REGRESSION, TREES = "regression", "trees"
GROWN = {"learning_rate": 0.05, "max_iter": 100, "max_leaf_nodes": 8, "min_samples_leaf": 10, "l2_regularization": 1.0}


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
