# SPDX-License-Identifier: Apache-2.0
"""Classification: every case has one class, and the network gives a logit for each; classes may have an order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.core.execution import eager
from fairflare.core.types import Objective, SiteData, local_objective
from fairflare.functional.intervals import Array
from fairflare.tasks import metrics
from fairflare.tasks.kind import Answers, Baseline, Cases, TaskKind

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

BATCH = 16
SURE = 20.0
"""A logit that is as good as certain."""
MOST_STEPS = 200
"""Of the logistic regression's solver."""


@dataclass(frozen=True)
class ClassCases(Cases):
    """Logits (N, C) and classes int64 (N,), and what metrics share of them, in float64 on the CPU."""

    @property
    def n_classes(self) -> int:
        return self.outputs.shape[1]

    @cached_property
    def logits(self) -> Tensor:
        """(N, C)."""
        return self.outputs.double()

    @cached_property
    def probabilities(self) -> Tensor:
        """(N, C)."""
        return self.logits.softmax(1)

    @cached_property
    def risks(self) -> Array:
        """(N,) probabilities of the second class."""
        return self.probabilities.numpy()[:, 1]

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """(N,)."""
        return self.targets.numpy().astype(np.int64)

    @cached_property
    def right(self) -> Array:
        """(N,) 1 where the largest logit is the target's, else 0."""
        return (self.outputs.argmax(1) == self.targets).double().numpy()

    @cached_property
    def confusion(self) -> npt.NDArray[np.int64]:
        """(C, C): row = true class, column = predicted class."""
        return metrics.confusion(self.logits.argmax(1).numpy(), self.targets.numpy(), self.n_classes)

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """(C,) cases of each class."""
        return self.confusion.sum(1)

    @cached_property
    def wins(self) -> Array:
        """See ``metrics.wins``."""
        return metrics.wins(self.probabilities.numpy(), self.targets.numpy())


@dataclass(frozen=True)
class Classes(TaskKind):
    """Classification; trained to cross-entropy, with the logits adjusted where ``logit_tau`` says so."""

    name: str = "classification"
    metrics: tuple[str, ...] = ("accuracy", "balanced_accuracy", "macro_f1", "auc_ovo", "auc_ovr")
    headline: str = "balanced_accuracy"
    score: str = "accuracy"

    has_classes: ClassVar[bool] = True
    case_type = ClassCases
    family: ClassVar[str] = "bernoulli"
    outputs: ClassVar[str] = "logits (N, C)"
    targets: ClassVar[str] = "classes (N,)"

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        return local_objective(class_counts, logit_tau)

    def loss(self, cases: ClassCases) -> float:
        return float(F.cross_entropy(cases.logits, cases.targets))

    def answer(self, outputs: Tensor, classes: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
        return named_classes(outputs.double().softmax(1).numpy(), classes)

    def baseline(self, task: Task, data: SiteData) -> Baseline:
        """The site's training shares of the classes as everybody's probabilities; where the task says so, a regression.

        That is logistic regression on the site's own training rows, with half the squared norm of its coefficients as
        penalty, as scikit-learn's by default; importing that would take every site a CPU second.
        """
        if task.regresses and (regression := _regression(task, data)):
            return Baseline(regression)
        shares = data.class_counts.double().cpu().clamp(min=math.exp(-SURE)).log().float()
        return Baseline(lambda inputs: shares.expand(len(inputs), -1), counted=True)


CLASSES = Classes()
TWO_CLASSES = Classes(metrics=("accuracy", "balanced_accuracy", "macro_f1", "auc"))
"""Of two classes, for which both averages of the AUC are one number."""
RISKS = Classes(metrics=(*TWO_CLASSES.metrics, "brier_loss", "calibration_error"))
"""The same where it counts, too, whether so many fall ill as the risks say."""


def named_classes(probabilities: Array, classes: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of (N, C) probabilities: the likeliest class's name, then each probability."""
    header = ["class", *(f"p_{name}" for name in classes)]
    return header, [[classes[k], *map(float, row)] for k, row in zip(probabilities.argmax(1), probabilities)]


def _regression(task: Task, data: SiteData) -> Answers | None:
    """Logistic regression on the site's training rows; None where they are of one class, not finite or no rows."""
    batches = list(data.fixed("train", BATCH))
    if batches[0].inputs.dim() != 2:
        return None
    x, y = (torch.cat([getattr(batch, name).cpu() for batch in batches]) for name in ("inputs", "targets"))
    known, y = y.unique(return_inverse=True)
    if len(known) < 2 or not x.isfinite().all():
        return None
    x, first, n = x.double(), 0 if len(known) > 2 else 1, len(x)  # of two classes the first one's score is 0
    weights = torch.zeros(len(known) - first, x.shape[1] + 1, dtype=torch.float64)
    rows, ones = F.pad(x, (0, 1), value=1.0), F.one_hot(y).double()
    weights.grad = slope = torch.zeros_like(weights)

    def scores(inputs: Tensor) -> Tensor:
        return F.pad(F.linear(inputs, weights[:, :-1], weights[:, -1]), (first, 0))

    def loss() -> float:
        logs, own = scores(x).log_softmax(1), F.pad(weights[:, :-1], (0, 1))
        slope.copy_(((logs.exp() - ones)[:, first:].T @ rows + own) / n)
        return float(own.square().sum() / 2 - (logs * ones).sum()) / n

    # Steps and end as scikit-learn's; a solver that stops before it has converged is good enough here.
    ends = {"max_iter": MOST_STEPS, "tolerance_grad": 1e-4, "tolerance_change": 1e-9, "line_search_fn": "strong_wolfe"}
    eager(torch.optim.LBFGS)([weights], **ends).step(loss)

    def answers(inputs: Tensor) -> Tensor:
        found = torch.full((len(inputs), len(task.classes)), -SURE)
        found[:, known] = scores(inputs.double()).log_softmax(1).clamp(min=-SURE).float()
        return found

    return answers


@dataclass(frozen=True)
class Grades(Classes):
    """Classes in an order, by a cumulative link, whose likelihood is their cross-entropy.

    The network gives one number; K - 1 rising cut points, which are trained with it, make logits of K classes of it
    (proportional odds: McCullagh, Journal of the Royal Statistical Society B 42, 1980). What takes classes takes these.
    """

    name: str = "ordinal"
    metrics: tuple[str, ...] = ("weighted_kappa", "mean_class_error", "accuracy", "balanced_accuracy")
    headline: str = "weighted_kappa"

    def head(self, classes: Sequence[str]) -> tuple[int, dict[str, Any]]:
        return 1, {"cuts": len(classes) - 1}


GRADES = Grades()
