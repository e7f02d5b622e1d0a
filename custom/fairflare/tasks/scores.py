# SPDX-License-Identifier: Apache-2.0
"""Classification metrics from a confusion matrix, or from how often one class is ranked above another.

FedISM+ prints balanced accuracy as "ACC" and the one-versus-one macro AUC as "AUC".
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """P(score of a positive > score of a negative), ties counted half, by the rank sum (Mann and Whitney 1947).

    scikit-learn spends 50 times as long, on checks.

    Args:
        scores: (N,) float, finite.
        positive: (N,) bool with at least one of either kind.

    Returns:
        the area in [0, 1]: the exact share, rounded once.
    """
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    n = int(positive.sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * (len(positive) - n)))


def confusion(predicted: np.ndarray, y: np.ndarray, n_classes: int) -> np.ndarray:
    """(C, C): row = true class, column = predicted class."""
    return np.bincount(y * n_classes + predicted, minlength=n_classes**2).reshape(n_classes, n_classes)


def mean_recall(confusion: np.ndarray) -> float:
    """Mean recall over the classes that are present, in [0, 1]."""
    support = confusion.sum(1)
    return float((confusion.diagonal()[support > 0] / support[support > 0]).mean())


def macro_f1(confusion: np.ndarray) -> float:
    """Mean F1 over the classes that are present or predicted, in [0, 1]."""
    size = confusion.sum(0) + confusion.sum(1)
    return float((2 * confusion.diagonal()[size > 0] / size[size > 0]).mean())


def auc_ovo(wins: np.ndarray, sizes: np.ndarray) -> float | None:
    """The mean over pairs of present classes of the pair's two AUCs (Hand and Till, Machine Learning 45, 2001).

    Args:
        wins: (C, C) of ``wins``.
        sizes: (C,) examples of each class.

    Returns:
        None when fewer than two classes are present.
    """
    present = np.flatnonzero(sizes)
    rows, columns = (present[places] for places in _ordered_pairs(len(present)))
    return float(np.mean(wins[rows, columns] / (sizes[rows] * sizes[columns]))) if len(rows) else None


@lru_cache(maxsize=64)
def _ordered_pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """First and second of every ordered pair of n things: each pair, then the same the other way round."""
    one, other = np.triu_indices(n, 1)
    return np.stack((one, other), 1).ravel(), np.stack((other, one), 1).ravel()


def auc_ovr(wins: np.ndarray, sizes: np.ndarray) -> float | None:
    """The mean over the present classes of the AUC of a class against all others; arguments as in ``auc_ovo``."""
    present = np.flatnonzero(sizes)
    own = sizes[present]
    return float(np.mean(wins[present].sum(1) / (own * (own.sum() - own)))) if len(present) > 1 else None


def wins(probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How often an example of one class is ranked above one of another: what all AUCs are made of, from one sort each.

    Args:
        probabilities: (N, C) float, finite.
        y: (N,) classes.

    Returns:
        (C, C): in row c and column b the pairs of an example of c and one of b in which the first has the larger
        probability of c, ties counted half; exact, as every number is a half of a whole one. The diagonal is 0.
    """
    n_classes = probabilities.shape[1]
    found = np.zeros((n_classes, n_classes))
    for c in np.unique(y).tolist():
        scores = probabilities[:, c]
        own = np.sort(scores[y == c])
        above = len(own) - (np.searchsorted(own, scores, "left") + np.searchsorted(own, scores, "right")) / 2
        found[c] = np.bincount(y, weights=above, minlength=n_classes)
        found[c, c] = 0.0
    return found
