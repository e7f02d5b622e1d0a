# SPDX-License-Identifier: Apache-2.0
"""Ordinal outcomes: classes in an order, by a cumulative link.

The network gives one number; K - 1 rising cut points, which are trained with it, make logits of K classes of it
(proportional odds: McCullagh, Journal of the Royal Statistical Society B 42, 1980). What takes classes takes these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fairflare.core.validation import Names
from fairflare.tasks import metrics_ordinal  # noqa: F401  (a job carries the metrics with the kind)
from fairflare.tasks.kinds.classes import Classes
from fairflare.tasks.kinds.own import OwnData


@dataclass(frozen=True)
class Grades(Classes):
    """Classes in an order; trained to the likelihood of the cumulative link, which is their cross-entropy."""

    name: str = "ordinal"
    metrics: tuple[str, ...] = ("weighted_kappa", "mean_class_error", "accuracy", "balanced_accuracy")
    headline: str = "weighted_kappa"

    def head(self, classes: Sequence[str]) -> tuple[int, dict[str, Any]]:
        return 1, {"cuts": len(classes) - 1}


GRADES = Grades()


@dataclass(frozen=True)
class OwnGrades(OwnData):
    """What own tables and own images with classes in an order share.

    Args:
        labels: the classes' names from the lowest to the highest, at least three; or their number.
    """

    kind = GRADES
    headline = GRADES.headline
    fewest: ClassVar[int] = 3

    labels: Names = "3"
