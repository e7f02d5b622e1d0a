# SPDX-License-Identifier: Apache-2.0
"""Metrics of classes in an order; they take ``tasks.kinds.classes.ClassCases``. Nothing here imports PyTorch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fairflare.core.metric import LARGEST_LOSS, Metric
from fairflare.functional.intervals import Array, of_positive_mean, weighted_mean

if TYPE_CHECKING:
    from fairflare.tasks.kinds.classes import ClassCases


def distances(cases: ClassCases) -> Array:
    """(N,) how many classes the likeliest class is away from the true one."""
    return np.abs(cases.probabilities.numpy().argmax(1) - cases.labels).astype(np.float64)


def weighted_kappa(cases: ClassCases, counts: Array) -> Array:
    """(B,) Cohen's kappa with quadratic weights (Psychological Bulletin 70, 1968); nan where all are of one class."""
    predicted, true = cases.probabilities.numpy().argmax(1).astype(np.float64), cases.labels.astype(np.float64)
    mp, mt = weighted_mean(predicted, counts), weighted_mean(true, counts)
    spread = weighted_mean(predicted**2, counts) - mp**2 + weighted_mean(true**2, counts) - mt**2 + (mp - mt) ** 2
    found: Array = np.full(len(counts), np.nan)
    np.divide(weighted_mean((predicted - true) ** 2, counts), spread, out=found, where=spread > 1e-9)
    return 1 - found


grade = partial(Metric, kind="ordinal")
KAPPA = grade(
    "weighted_kappa",
    label="quadratic-weighted kappa",
    meaning="the agreement beyond chance, in squared steps; 1 is perfect",
    low=-1.0,
    chance=lambda n_classes: 0.0,
    flat=True,
    needs="true or predicted classes that differ",
    weighted=weighted_kappa,
    of_classes=True,
)
STEPS = grade(
    "mean_class_error",
    label="mean absolute class error",
    meaning="how many classes the answer is away from the true one; 0 is perfect",
    high=LARGEST_LOSS,
    higher_is_better=False,
    each=distances,
    interval=lambda cases, level: of_positive_mean(distances(cases), level),
    benefit=True,
    groups=True,
)
