# SPDX-License-Identifier: Apache-2.0
"""The best that a hospital's table gives alone: penalised regression or boosted trees, chosen by cross-validation."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
INNER, PENALTIES = 5, np.logspace(-3, 2, 6)
SCORE = "neg_brier_score"
TREES = {"learning_rate": 0.05, "max_iter": 100, "max_leaf_nodes": 8, "min_samples_leaf": 10, "l2_regularization": 1.0}


def own_risks(x: Array, y: Array, new: Array) -> tuple[Array, str]:
    """Risks of the rows ``new`` by the better of two models of the rows (x, y), and which it was.

    Args:
        x: (N, F) finite.
        y: (N,) 0 or 1, two or more of each.
        new: (M, F).

    Returns:
        (M,) risks of 1, and "regression" or "trees". Classes of fewer than three patients give a regression without
        cross-validation.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
    from threadpoolctl import threadpool_limits

    folds = min(INNER, int(min(y.sum(), len(y) - y.sum())))
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # of a solver that stops before it has converged
        if folds < 3:
            return np.asarray(LogisticRegression(C=0.1).fit(x, y).predict_proba(new)[:, 1]), "regression"
        inner = StratifiedKFold(folds, shuffle=True, random_state=0)
        ridge = GridSearchCV(LogisticRegression(max_iter=300), {"C": PENALTIES}, scoring=SCORE, cv=inner).fit(x, y)
        trees = HistGradientBoostingClassifier(**TREES, random_state=0)
        better = cross_val_score(trees, x, y, scoring=SCORE, cv=inner).mean() > ridge.best_score_
        model = trees.fit(x, y) if better else ridge
        return np.asarray(model.predict_proba(new)[:, 1]), "trees" if better else "regression"
