# SPDX-License-Identifier: Apache-2.0
"""What a hospital has alone, if not a ridge regression: gradient boosting, or a model that it brings.

A brought model is a class with scikit-learn's ``fit`` and ``predict_proba``. It is fitted to every training part, and
asked for patients that it has not seen. A model that was made elsewhere ignores ``fit``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import UserError
from fairflare.core.validation import expected
from fairflare.decision.regression import Array, Hospital

RIDGE, TREES = "ridge", "trees"
SEED = 0


def maker(name: str) -> Callable[[], Any]:
    """What makes an unfitted model of "trees", "FILE.py:CLASS" or "MODULE:CLASS"; raises UserError where none does."""
    if name == TREES:
        try:
            from sklearn.ensemble import HistGradientBoostingClassifier
        except ImportError:
            raise UserError("--own-model trees: expected scikit-learn: pip install scikit-learn") from None
        return lambda: HistGradientBoostingClassifier(early_stopping=False, random_state=SEED)
    place, _, called = name.rpartition(":")
    expected("--own-model", bool(place and called), f"{RIDGE}, {TREES}, FILE.py:CLASS or MODULE:CLASS", name)
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        found = getattr(module, called)
    except (ImportError, OSError, AttributeError) as error:
        raise UserError(f"--own-model {name}: expected a class that can be imported ({error})") from None
    lacking = [method for method in ("fit", "predict_proba") if not hasattr(found, method)]
    expected(f"--own-model {name}", not lacking, "a class with fit and predict_proba", f"none of {lacking}")
    return found  # type: ignore[no-any-return]  # checked above


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
            raise UserError(f"--own-model: {type(error).__name__}: {error}") from error
        fits = each.shape == (len(y), 2) and bool(((each >= 0) & (each <= 1)).all())
        expected("--own-model: predict_proba", fits, f"probabilities of shape {(len(y), 2)}", str(each.shape))
        found[k] = each[:, 1]
    return found
