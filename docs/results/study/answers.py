# SPDX-License-Identifier: Apache-2.0
"""What the kept outputs of a model say of each patient or image: one logit of two classes, or a logit per class."""

from __future__ import annotations

import numpy as np


def correct(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether the likelier class is the true one, bool (n,).

    Args:
        z: the logit of the second class (n,), or a logit per class (n, classes).
        y: the classes (n,).
    """
    return np.asarray((z.argmax(1) == y) if z.ndim == 2 else ((z > 0) == (y > 0)))


def squared(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The Brier score of each, (n,): of the second class's risk, 0 to 1; of all classes, their sum, 0 to 2."""
    if z.ndim == 1:
        return np.asarray((risk(z) - y) ** 2)
    return np.asarray(((shares(z) - np.eye(z.shape[1])[y]) ** 2).sum(1))


def excess(z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Risk minus outcome (n,); of more than two classes the likelier one's probability minus whether it is true."""
    return np.asarray(risk(z) - y if z.ndim == 1 else shares(z).max(1) - correct(z, y))


def risk(z: np.ndarray) -> np.ndarray:
    """The logistic function."""
    return np.asarray(0.5 * (1 + np.tanh(z / 2)))


def shares(z: np.ndarray) -> np.ndarray:
    """Softmax of (n, classes)."""
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def of_prior(counts: np.ndarray, n: int) -> np.ndarray:
    """Outputs for ``n`` patients that say how frequent each class is among a site's own training patients.

    Args:
        counts: of each class, (classes,); one more is counted of each, so that none is impossible.
        n: rows.
    """
    logs = np.log(counts + 1.0)
    return np.full(n, logs[1] - logs[0]) if len(logs) == 2 else np.tile(logs, (n, 1))
