# SPDX-License-Identifier: Apache-2.0
"""The metrics that have intervals over a site's patients, computed for many resamples of them at once."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fairflare.functional.resampling import Array, weighted_auc, weighted_mean, weighted_recall

BINARY = ("auc", "brier_loss")
"""What every outcome of two classes has beside the headline metric."""
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
        p = logits.detach().double().cpu().softmax(1).numpy()[:, 1]
        found["auc"] = weighted_auc(p, classes == 1, counts)
        found["brier_loss"] = weighted_mean(np.square(p - classes, dtype=np.float64), counts)
    return found
