# SPDX-License-Identifier: Apache-2.0
"""Metrics in words: names, meanings and chance levels for the tasks' metrics; an unknown metric keeps its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LABELS = {
    "auc_ovo": "AUC (one-vs-one)",
    "auc_ovr": "AUC (one-vs-rest)",
    "auc": "AUC",
    "macro_f1": "F1 score (macro)",
    "dice": "Dice score",
    "brier_loss": "Brier score",
    "calibration_error": "calibration error",
}
MEANINGS = {
    "balanced_accuracy": "the share of correct answers, averaged over the classes; 1 is perfect",
    "accuracy": "the share of correct answers; 1 is perfect",
    "auc_ovo": "how well pairs of classes are separated; 1 is perfect",
    "auc_ovr": "how well each class is separated from the rest; 1 is perfect",
    "auc": "how often a case is ranked above a control; 1 is perfect",
    "dice": "the overlap with the reference outline; 1 is perfect",
    "brier_loss": "the mean squared distance of risk and outcome; 0 is perfect",
    "calibration_error": "how far the mean predicted risk is from the share of patients with the outcome; 0 is perfect",
}


def label(metric: str) -> str:
    """A metric's name in words."""
    return LABELS.get(metric, metric.replace("_", " "))


def chance(metric: str, n_classes: int) -> float | None:
    """What guessing gets: 1 / C in balanced accuracy, 0.5 in AUC; None where it depends on more."""
    if metric == "balanced_accuracy" and n_classes > 1:
        return 1 / n_classes
    return 0.5 if metric in ("auc", "auc_ovo", "auc_ovr") else None


def is_higher_better(metric: str) -> bool:
    """Whether a larger value of the metric is a better one."""
    return not metric.endswith(("loss", "error"))


def described(metrics: Iterable[str], n_classes: int) -> dict[str, dict[str, Any]]:
    """Metric -> label, meaning ("" where unknown), chance (None where unknown) and higher_is_better, for a report."""
    return {
        name: {
            "label": label(name),
            "meaning": MEANINGS.get(name, ""),
            "chance": chance(name, n_classes),
            "higher_is_better": is_higher_better(name),
        }
        for name in metrics
    }
