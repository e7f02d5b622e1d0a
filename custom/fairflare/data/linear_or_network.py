# SPDX-License-Identifier: Apache-2.0
"""Whether a site's table asks for more than a linear model: both are fitted there, and validation rows decide."""

from __future__ import annotations

import math
import warnings

import numpy as np

from fairflare.data.tensors import Split

LEAST_TRAIN, LEAST_VAL = 200, 50
"""Rows below which nothing is fitted: a difference between two models would be chance."""
MOST_ROWS = 5_000
"""Training rows, evenly spaced; fitting takes a second or two."""
HIDDEN, PENALTY = 64, 1.0
DIGITS = 3


def network_gain(train: Split, val: Split) -> float | None:
    """Log loss of logistic regression on ``val`` less that of a network with one hidden layer, of three digits.

    Args:
        train: rows (N, F) of finite numbers, scaled; at most ``MOST_ROWS`` are used.
        val: rows of the same kind, which neither model is fitted to.

    Returns:
        None with fewer rows than ``LEAST_TRAIN`` and ``LEAST_VAL``, or classes in ``val`` that ``train`` lacks.
    """
    if len(train) < LEAST_TRAIN or len(val) < LEAST_VAL:
        return None
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    chosen = np.linspace(0, len(train) - 1, min(len(train), MOST_ROWS)).round().astype(int)
    x, y = (part.numpy()[chosen] for part in (train.inputs, train.labels))
    vx, vy = val.inputs.numpy(), val.labels.numpy()
    known = np.unique(y)
    if (
        len(known) < 2
        or not set(vy.tolist()) <= set(known.tolist())
        or not (np.isfinite(x).all() and np.isfinite(vx).all())
    ):
        return None
    # The penalty of ``planning``: the same for both models, in each one's own terms.
    strength = x.shape[1] / 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that stops early is good enough to compare
        models = (
            LogisticRegression(C=1 / strength, max_iter=200),
            MLPClassifier((HIDDEN,), alpha=PENALTY, early_stopping=True, max_iter=100, random_state=0),
        )
        losses = [float(log_loss(vy, model.fit(x, y).predict_proba(vx), labels=known)) for model in models]
    gain = losses[0] - losses[1]
    return round(gain, DIGITS) if math.isfinite(gain) else None
