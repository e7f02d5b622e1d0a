# SPDX-License-Identifier: Apache-2.0
"""Metrics of several labels at once; they take ``tasks.kinds.labels.LabelCases``. Nothing here imports PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fairflare.core.metric import Metric
from fairflare.functional.intervals import Array, of_auc, weighted_auc, weighted_average_precision

if TYPE_CHECKING:
    from fairflare.tasks.kinds.labels import LabelCases

BOTH = "cases with the label and without it"
Curve = Callable[[Array, npt.NDArray[np.bool_], Array], Array]


def of_label(name: str, curve: Curve, cases: LabelCases, counts: Array) -> Array:
    """(B,) area under a curve of one label, over the cases that say it; nan without both kinds of them."""
    place = cases.classes.index(name)
    known, truth = cases.told[:, place], cases.truth[:, place]
    if not truth[known].any() or truth[known].all():
        return np.full(len(counts), np.nan)
    return curve(cases.probabilities[known, place], truth[known], counts[:, known])


def macro(curve: Curve, cases: LabelCases, counts: Array) -> Array:
    """(B,) mean over the labels that have both kinds of cases; nan where none has."""
    every = np.stack([of_label(name, curve, cases, counts) for name in cases.classes])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a mean of none is nan
        found: Array = np.nanmean(every, axis=0)
    return found


def auc_interval(name: str, cases: LabelCases, level: float) -> tuple[float, float] | None:
    place = cases.classes.index(name)
    known = cases.told[:, place]
    whose = None if cases.patients is None else cases.patients[known]
    return of_auc(cases.probabilities[known, place], cases.truth[known, place], level, whose)


def per_label(prefix: str, name: str) -> Metric:
    """``prefix`` "auc_" or "auprc_" of the label ``name``."""
    curve, words = CURVES[prefix]
    interval = partial(auc_interval, name) if prefix == "auc_" else None
    weighted = partial(of_label, name, curve)
    return area(f"{prefix}{name}", label=f"{words}, {name}", weighted=weighted, interval=interval, needs=BOTH)


area = partial(Metric, kind="multilabel", of_classes=True)
CURVES: dict[str, tuple[Curve, str]] = {
    "auc_": (weighted_auc, "AUC"),
    "auprc_": (weighted_average_precision, "AUPRC"),
}
"""Before a label's name in the name of its own metric."""
MACRO_AUC = area(
    "macro_auc",
    label="AUC, mean over labels",
    meaning="how often a case with a label is ranked above one without; 1 is perfect",
    chance=lambda n_classes: 0.5,
    flat=True,
    needs=f"for one label at least {BOTH}",
    weighted=partial(macro, weighted_auc),
)
MACRO_AUPRC = area(
    "macro_auprc",
    label="AUPRC, mean over labels",
    meaning="the precision, averaged over the cases that are found; guessing gets their share, 1 is perfect",
    needs=f"for one label at least {BOTH}",
    weighted=partial(macro, weighted_average_precision),
    benefit=True,
)
LABEL_ACCURACY = Metric(
    "label_accuracy",
    label="share of labels right",
    meaning="the share of a case's known labels that are right; 1 is perfect",
    kind="multilabel",
    each=lambda cases: cases.right,
    groups=True,
)
