# SPDX-License-Identifier: Apache-2.0
"""What a hospital has alone, if not a ridge regression: gradient boosting, or a model that it brings.

A brought model is a class with scikit-learn's ``fit`` and ``predict_proba``. It is fitted to every training part, and
asked for patients that it has not seen. A model that was made elsewhere ignores ``fit``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.user_code import load_object
from fairflare.core.validation import expected
from fairflare.decision.regression import Array, Hospital

RIDGE, TREES = "ridge", "trees"


def maker(name: str) -> Callable[[], Any]:
    """What makes an unfitted model of "trees" or "module.Name", a class in a user's own file.

    Raises UserError: another name, or no such class.
    """
    if name == TREES:
        try:
            from sklearn.ensemble import HistGradientBoostingClassifier
        except ImportError:
            raise UserError("own_model: trees need scikit-learn: pip install scikit-learn") from None
        return lambda: HistGradientBoostingClassifier(early_stopping=False, random_state=0)
    expected("own_model", "." in name, f"{RIDGE}, {TREES} or module.Name", name)
    made: Callable[[], Any] = load_object(name, "own_model", _fits, "a class with fit and predict_proba")
    return made


def _fits(found: Any) -> bool:
    return isinstance(found, type) and hasattr(found, "fit") and hasattr(found, "predict_proba")


def risks(hospital: Hospital, training_rows: Array, make: Callable[[], Any]) -> Array:
    """(B, N) risks of all rows by a model of each training part, (B, N) of 0 and 1.

    Raises UserError: the model failed, or gave no probability of the second class for each row.
    """
    x, y = hospital.x[:, 1:], hospital.y.astype(np.int64)
    found = np.empty(training_rows.shape)
    for k, rows in enumerate(training_rows > 0):
        try:
            model = make()
            model.fit(x[rows], y[rows])
            each = np.asarray(model.predict_proba(x), dtype=np.float64)
        except Exception as error:  # the hospital's own code
            raise UserError(f"own_model: {type(error).__name__}: {error}") from error
        fits = each.shape == (len(y), 2) and bool(((each >= 0) & (each <= 1)).all())
        expected("own_model: predict_proba", fits, f"probabilities of shape {(len(y), 2)}", str(each.shape))
        found[k] = each[:, 1]
    return found
