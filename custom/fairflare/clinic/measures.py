# SPDX-License-Identifier: Apache-2.0
"""The metrics that have intervals over a site's patients, computed for many resamples of them at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fairflare.functional import intervals
from fairflare.functional.resampling import Array, weighted_auc, weighted_mean, weighted_recall

BINARY = ("auc", "brier_loss")
"""What every outcome of two classes has beside the headline metric."""
AUCS = ("auc", "auc_ovo", "auc_ovr")
"""Names of one number where there are two classes."""
Ends = tuple[float, float, float]
"""A value, and the lower and the upper end of its interval."""
OF_CLASSES = ("accuracy", "balanced_accuracy", *BINARY)


def names(headline: str, n_classes: int, class_labels: bool) -> tuple[str, ...]:
    """The metrics of a task, the headline first; of one whose headline is unknown here: accuracy."""
    if not class_labels:
        return (headline,)
    first = headline if headline in OF_CLASSES and (n_classes == 2 or headline not in BINARY) else "accuracy"
    return (first, *(name for name in BINARY if n_classes == 2 and name != first))


def means(headline: str, n_classes: int, class_labels: bool) -> tuple[str, ...]:
    """Those that are means over cases, which a group of patients has too."""
    if not class_labels:
        return (headline,)
    return ("accuracy", "brier_loss") if n_classes == 2 else ("accuracy",)


def of_classes(logits: Tensor, targets: Tensor, hits: Tensor, counts: Array) -> dict[str, Array]:
    """Each of ``OF_CLASSES`` that goes with so many classes under ``counts``, as ``risk.metrics`` defines them.

    Args:
        logits: (N, C) finite, N at least 1.
        targets: int64 (N,).
        hits: (N,) 1 where the largest logit is the target's, else 0.
        counts: (B, N), how often each resample holds each case.

    Returns:
        metric -> (B,), nan where a resample leaves it undefined.
    """
    right, classes = hits.double().cpu().numpy(), targets.cpu().numpy().astype(np.int64)
    found = {"accuracy": weighted_mean(right, counts), "balanced_accuracy": weighted_recall(right, classes, counts)}
    if logits.shape[1] == 2:
        p, squares = _risks(logits, classes)
        found["auc"] = weighted_auc(p, classes == 1, counts)
        found["brier_loss"] = weighted_mean(squares, counts)
    return found


def ends_of_classes(logits: Tensor, targets: Tensor, hits: Tensor, least: int, level: float) -> dict[str, Ends]:
    """Metric -> its value and interval, of those of ``OF_CLASSES`` that go with so many classes.

    Args:
        logits: (N, C) finite, N at least 1.
        targets: int64 (N,).
        hits: (N,) 1 where the largest logit is the target's, else 0.
        least: the fewest cases of every class that is there for an interval of what depends on classes.
        level: in (0, 1), e.g. 0.95.
    """
    right, classes = hits.cpu().numpy() > 0.5, targets.cpu().numpy().astype(np.int64)
    present, sizes = np.unique(classes, return_counts=True)
    found = {"accuracy": (float(right.mean()), *intervals.of_share(int(right.sum()), len(right), level))}
    if sizes.min() >= least:
        hit = [int(right[classes == k].sum()) for k in present]
        recall = float(np.mean(np.array(hit) / sizes))
        found["balanced_accuracy"] = (recall, *intervals.of_recalls(hit, sizes.tolist(), level))
    if logits.shape[1] != 2:
        return found
    p, squares = _risks(logits, classes)
    found["brier_loss"] = (float(squares.mean()), *intervals.of_mean(squares, level))
    ends = intervals.of_auc(p, classes == 1, level) if len(present) == 2 and sizes.min() >= least else None
    if ends is not None:
        area = (float(weighted_auc(p, classes == 1, np.ones((1, len(p))))[0]), *ends)
        found |= dict.fromkeys(AUCS, area)
    return found


def _risks(logits: Tensor, classes: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    """(N,) probabilities of the second of two classes, and (N,) their squared errors."""
    p = logits.detach().double().cpu().softmax(1).numpy()[:, 1]
    return p, np.square(p - classes, dtype=np.float64)
