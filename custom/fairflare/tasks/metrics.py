# SPDX-License-Identifier: Apache-2.0
"""The package's metrics, each an object: see ``core.metric``.

Those of classes take ``tasks.kinds.classes.ClassCases``, those of masks ``tasks.kinds.masks.MaskCases``. Nothing here
imports PyTorch, so that a report can ask for a label.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fairflare.core.metric import LARGEST_LOSS, Metric
from fairflare.functional import intervals
from fairflare.functional.resampling import Array, weighted_auc, weighted_recall
from fairflare.tasks import scores

if TYPE_CHECKING:
    from fairflare.tasks.kinds.classes import ClassCases

Interval = tuple[float, float]


def _half(n_classes: int) -> float:
    return 0.5


def _share_interval(cases: ClassCases, level: float) -> Interval:
    """Of accuracy, whose values are 0 and 1."""
    right = cases.right > 0.5
    return intervals.of_share(int(right.sum()), len(right), level)


def _recalls_interval(cases: ClassCases, level: float) -> Interval:
    present, sizes = np.unique(cases.labels, return_counts=True)
    hit = [int((cases.right[cases.labels == k] > 0.5).sum()) for k in present]
    return intervals.of_recalls(hit, sizes.tolist(), level)


def _auc_interval(cases: ClassCases, level: float) -> Interval | None:
    """Of two classes, where every AUC is the same number."""
    if cases.n_classes != 2 or len(np.unique(cases.labels)) != 2:
        return None
    return intervals.of_auc(cases.risks, cases.labels == 1, level)


ACCURACY = Metric(
    "accuracy",
    meaning="the share of correct answers; 1 is perfect",
    value=lambda cases: float(cases.confusion.trace() / cases.confusion.sum()),
    each=lambda cases: cases.right,
    interval=_share_interval,
    groups=True,
)
BALANCED_ACCURACY = Metric(
    "balanced_accuracy",
    meaning="the share of correct answers, averaged over the classes; 1 is perfect",
    chance=lambda n_classes: 1 / n_classes if n_classes > 1 else None,
    flat=True,
    value=lambda cases: scores.mean_recall(cases.confusion),
    weighted=lambda cases, counts: weighted_recall(cases.right, cases.labels, counts),
    interval=_recalls_interval,
    of_classes=True,
)
MACRO_F1 = Metric(
    "macro_f1",
    label="F1 score (macro)",
    value=lambda cases: scores.macro_f1(cases.confusion),
)
area = partial(Metric, chance=_half, flat=True, interval=_auc_interval, of_classes=True)
AUC_OVO = area(
    "auc_ovo",
    label="AUC (one-vs-one)",
    meaning="how well pairs of classes are separated; 1 is perfect",
    value=lambda cases: scores.auc_ovo(cases.wins, cases.sizes),
)
AUC_OVR = area(
    "auc_ovr",
    label="AUC (one-vs-rest)",
    meaning="how well each class is separated from the rest; 1 is perfect",
    value=lambda cases: scores.auc_ovr(cases.wins, cases.sizes),
)


def _auc_weighted(cases: ClassCases, counts: Array) -> Array:
    return weighted_auc(cases.risks, cases.labels == 1, counts)


AUC = area(
    "auc",
    label="AUC",
    meaning="how often a case is ranked above a control; 1 is perfect",
    value=lambda cases: scores.auc_ovo(cases.wins, cases.sizes),
    weighted=_auc_weighted,
    two_classes=True,
    benefit=True,
)
BRIER_LOSS = Metric(
    "brier_loss",
    label="Brier score",
    meaning="the mean squared distance of risk and outcome; 0 is perfect",
    higher_is_better=False,
    value=lambda cases: float(((cases.probabilities[:, 1] - cases.targets.double()) ** 2).mean()),
    each=lambda cases: np.square(cases.risks - cases.labels, dtype=np.float64),
    two_classes=True,
    benefit=True,
    groups=True,
)
"""Brier, Monthly Weather Review 78, 1950."""
CALIBRATION_ERROR = Metric(
    "calibration_error",
    meaning="how far the mean predicted risk is from the share of patients with the outcome; 0 is perfect",
    higher_is_better=False,
    value=lambda cases: float((cases.probabilities[:, 1].mean() - cases.targets.double().mean()).abs()),
    two_classes=True,
)
"""Calibration in the large, without its sign."""
DICE = Metric(
    "dice",
    label="Dice score",
    meaning="the overlap with the reference outline; 1 is perfect",
    value=lambda cases: float(cases.means.mean()),
    each=lambda cases: cases.dice.mean(1).numpy(),
    kind="segmentation",
    groups=True,
)
LOSS, TRAIN_LOSS = (Metric(name, high=LARGEST_LOSS, higher_is_better=False, kind="") for name in ("loss", "train_loss"))
