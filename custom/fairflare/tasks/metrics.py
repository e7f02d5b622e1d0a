# SPDX-License-Identifier: Apache-2.0
"""The package's metrics, each an object: see ``core.metric``.

Those of classes take ``tasks.kinds.classes.ClassCases``, those of masks ``tasks.kinds.masks.MaskCases``; those of times
are in ``metrics_survival``. Nothing here imports PyTorch, so that a report can ask for a label.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fairflare.core.metric import LARGEST_LOSS, Metric
from fairflare.functional import intervals
from fairflare.functional.intervals import Array, of_positive_mean, weighted_auc, weighted_mean, weighted_recall

if TYPE_CHECKING:
    from fairflare.tasks.kinds.classes import ClassCases


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """P(score of a positive > score of a negative), ties counted half, by the rank sum (Mann and Whitney 1947).

    scikit-learn spends 50 times as long, on checks. Of finite scores (N,), at least one of either kind, the exact share
    in [0, 1], rounded once.
    """
    n = int(positive.sum())
    return float((intervals.ranks(scores)[positive].sum() - n * (n + 1) / 2) / (n * (len(positive) - n)))


def confusion(predicted: np.ndarray, y: np.ndarray, n_classes: int) -> np.ndarray:
    """(C, C): row = true class, column = predicted class."""
    return np.bincount(y * n_classes + predicted, minlength=n_classes**2).reshape(n_classes, n_classes)


def mean_recall(confusion: np.ndarray) -> float | None:
    """Mean recall over the classes that are present, in [0, 1]; None of one class, which one answer gets right."""
    pairs = zip(confusion.diagonal().tolist(), confusion.sum(1).tolist())  # arrays this small take ten times as long
    recalls = [hits / n for hits, n in pairs if n]
    return math.fsum(recalls) / len(recalls) if len(recalls) > 1 else None


def macro_f1(confusion: np.ndarray) -> float | None:
    """Mean F1 over the classes that are present or predicted, in [0, 1]; None as ``mean_recall``."""
    hits, support, predicted = (part.tolist() for part in (confusion.diagonal(), confusion.sum(1), confusion.sum(0)))
    scores = [2 * hit / (n + m) for hit, n, m in zip(hits, support, predicted) if n + m]
    return math.fsum(scores) / len(scores) if sum(map(bool, support)) > 1 else None


def auc_ovo(wins: np.ndarray, sizes: np.ndarray) -> float | None:
    """The mean over pairs of present classes of the pair's two AUCs (Hand and Till, Machine Learning 45, 2001).

    Of ``wins`` (C, C) and the examples of each class (C,); None when fewer than two classes are present.
    """
    if len(sizes) == 2 and sizes.all():  # nearly always, and the general way takes ten times as long
        pairs = float(sizes[0] * sizes[1])
        return float(wins[0, 1] / pairs + wins[1, 0] / pairs) / 2
    present = np.flatnonzero(sizes)
    one, other = (present[places] for places in np.triu_indices(len(present), 1))
    # Each pair, then the same the other way round: the order of the sum.
    rows, columns = np.stack((one, other), 1).ravel(), np.stack((other, one), 1).ravel()
    return float(np.mean(wins[rows, columns] / (sizes[rows] * sizes[columns]))) if len(rows) else None


def auc_ovr(wins: np.ndarray, sizes: np.ndarray) -> float | None:
    """The mean over the present classes of the AUC of a class against all others; arguments as in ``auc_ovo``."""
    present = np.flatnonzero(sizes)
    own = sizes[present]
    return float(np.mean(wins[present].sum(1) / (own * (own.sum() - own)))) if len(present) > 1 else None


def wins(probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How often an example of one class is ranked above one of another: what all AUCs are made of, from one sort each.

    ``probabilities``: (N, C), finite; ``y``: (N,) classes. Returns (C, C): in row c and column b the pairs of an
    example of c and one of b in which the first has the larger probability of c, ties counted half; exact, as every
    number is a half of a whole one. The diagonal is 0.
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


Interval = tuple[float, float]


def _right(cases: ClassCases) -> Array:
    return np.asarray(cases.right > 0.5, dtype=np.float64)


def _recalls_interval(cases: ClassCases, level: float) -> Interval | None:
    """A patient of several classes counts in each."""
    if len(np.unique(cases.labels)) < 2:
        return None
    of_each, whose = [cases.labels == k for k in np.unique(cases.labels)], cases.patients
    each = [intervals.effective(_right(cases)[k], None if whose is None else whose[k]) for k in of_each]
    return intervals.of_recalls([right for right, _ in each], [n for _, n in each], level)


def _auc_interval(cases: ClassCases, level: float) -> Interval | None:
    """Of two classes, where every AUC is the same number."""
    if cases.n_classes != 2 or len(np.unique(cases.labels)) != 2:
        return None
    return intervals.of_auc(cases.risks, cases.labels == 1, level, cases.patients)


TWO = "cases of two classes or more"
ACCURACY = Metric(
    "accuracy",
    meaning="the share of correct answers; 1 is perfect",
    value=lambda cases: float(cases.confusion.trace() / cases.confusion.sum()),
    each=lambda cases: cases.right,
    interval=lambda cases, level: intervals.of_share(*intervals.effective(_right(cases), cases.patients), level),
    groups=True,
)
BALANCED_ACCURACY = Metric(
    "balanced_accuracy",
    meaning="the share of correct answers, averaged over the classes; 1 is perfect",
    chance=lambda n_classes: 1 / n_classes if n_classes > 1 else None,
    flat=True,
    needs=TWO,
    value=lambda cases: mean_recall(cases.confusion),
    weighted=lambda cases, counts: weighted_recall(cases.right, cases.labels, counts),
    interval=_recalls_interval,
    of_classes=True,
)
MACRO_F1 = Metric("macro_f1", label="F1 score (macro)", needs=TWO, value=lambda cases: macro_f1(cases.confusion))
area = partial(Metric, chance=lambda n_classes: 0.5, flat=True, needs=TWO, interval=_auc_interval, of_classes=True)
AUC_OVO = area(
    "auc_ovo",
    label="AUC (one-vs-one)",
    meaning="how well pairs of classes are separated; 1 is perfect",
    value=lambda cases: auc_ovo(cases.wins, cases.sizes),
)
AUC_OVR = area(
    "auc_ovr",
    label="AUC (one-vs-rest)",
    meaning="how well each class is separated from the rest; 1 is perfect",
    value=lambda cases: auc_ovr(cases.wins, cases.sizes),
)


AUC = area(
    "auc",
    label="AUC",
    meaning="how often a case is ranked above a control; 1 is perfect",
    value=lambda cases: auc_ovo(cases.wins, cases.sizes),
    weighted=lambda cases, counts: weighted_auc(cases.risks, cases.labels == 1, counts),
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
SURFACE_DICE = Metric(
    "surface_dice",
    label="surface Dice",
    meaning="the share of both outlines that lies within the tolerance of the other; 1 is perfect; a structure that "
    "neither outline shows is left out",
    value=lambda cases: cases.of_surfaces(0),
    kind="volume-segmentation",
)
"""Nikolov et al., arXiv:1809.04430; by voxels' edges, as MONAI's ``compute_surface_dice``."""
HD95 = Metric(
    "hd95",
    label="Hausdorff distance (95 %) in mm",
    meaning="how far the outlines are from each other, in millimetres; 0 is perfect; a structure of which either "
    "outline is empty is left out",
    high=LARGEST_LOSS,
    higher_is_better=False,
    value=lambda cases: cases.of_surfaces(1),
    kind="volume-segmentation",
)
"""As MONAI's ``compute_hausdorff_distance`` with percentile=95."""
LOSS, TRAIN_LOSS = (Metric(name, high=LARGEST_LOSS, higher_is_better=False, kind="") for name in ("loss", "train_loss"))


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
    interval=lambda cases, level: of_positive_mean(distances(cases), level, cases.patients),
    benefit=True,
    groups=True,
)
