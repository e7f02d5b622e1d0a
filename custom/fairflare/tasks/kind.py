# SPDX-License-Identifier: Apache-2.0
"""What kind of answer a task is about: what its network gives, what that is trained to and scored by, what it means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fairflare.core import metric as registry
from fairflare.core.errors import UserError
from fairflare.core.metric import Metric, finite
from fairflare.core.types import Objective, SiteData, SplitName
from fairflare.functional.intervals import Array, Owners, of_mean, weighted_mean
from fairflare.privacy.counts import released

if TYPE_CHECKING:
    from fairflare.tasks.base import Task


Ends = tuple[float, float, float]
"""A value, and the lower and the upper end of its interval."""
Answers = Callable[[Tensor], Tensor]
"""Inputs (N, ...) -> outputs as a network would give them."""


@dataclass(frozen=True)
class Cases:
    """Outputs and targets of N cases, condensed, as metrics take them; a kind derives from it what several share.

    Attributes:
        outputs: (N, ...).
        targets: (N, ...).
        classes: the task's names of classes, structures or what else a kind calls so.
        patients: (N,) whose each case is, see ``functional.intervals``; None: each is another patient's.
    """

    outputs: Tensor
    targets: Tensor
    classes: tuple[str, ...] = ()
    patients: Owners | None = field(default=None, kw_only=True)

    @property
    def finite(self) -> bool:
        """Whether all outputs are; of a model that has diverged nothing can be said."""
        return bool(torch.isfinite(self.outputs).all())


@dataclass(frozen=True)
class Baseline:
    """An answer that needs no network.

    Attributes:
        answers: what it gives in place of the network.
        counted: whether its metrics follow from the counts of the classes alone, which may be too small to leave.
    """

    answers: Answers
    counted: bool = False


@dataclass(frozen=True)
class TaskKind(ABC):
    """A kind of task; a concrete one says how outputs are trained, scored and read.

    Attributes:
        name: of the kind, e.g. "classification"; metrics name it as theirs.
        metrics: names of what a task of this kind reports beside the loss.
        headline: the one that fairness is reported in, unless a task names another.
        score: the metric whose ``each``, in [0, 1] and better where it is higher, is a patient's score, in which groups
            of patients are compared; "": none is, and groups are not.
    """

    name: str
    metrics: tuple[str, ...]
    headline: str
    score: str = ""

    has_classes: ClassVar[bool] = False
    """Whether each case has one class, int64 in 0..C-1, and its output is C logits."""
    has_masks: ClassVar[bool] = False
    """Whether targets are masks (N, C, ...) of one channel per structure, and outputs their logits."""
    has_times: ClassVar[bool] = False
    """Whether targets are times and events (N, 2): then the kind is a ``kinds.survival.Survival``."""
    case_type: ClassVar[type[Cases]] = Cases
    """What the metrics of this kind take."""
    family: ClassVar[str] = ""
    """What an exact regression takes targets for: "bernoulli", "gaussian", "poisson" or "cox"; "": there is none."""
    outputs: ClassVar[str]
    """What the network gives for N cases, in words."""
    targets: ClassVar[str]
    """What is known of them, in words."""

    def head(self, classes: Sequence[str]) -> tuple[int, dict[str, Any]]:
        """How many numbers the network gives for a case, and options of ``networks.own.build`` beside them."""
        return len(classes), {}

    def lists(self, classes: Sequence[str]) -> dict[str, Any]:
        """How a datalist's labels are read: arguments of ``data.readers.datalist.read_datalist``."""
        return {"masks": self.has_masks, "classes": classes}

    def known(self, columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[bool]:
        """Whether each row of a table says the outcome, which the columns ``names`` hold; by default the first one."""
        return [cell != "" for cell in columns[names[0]]]

    def of_cells(
        self, file: str, columns: Mapping[str, Sequence[str]], names: Sequence[str], classes: Sequence[str]
    ) -> Tensor:
        """Targets (N, ...) of a table's rows, all of them ``known``.

        Raises:
            DataError: names the file, row and column, what was expected and what came.
        """
        raise UserError(f"kind {self.name}: does not say how a table's cells become targets")

    def remarks(self, targets: Tensor, classes: Sequence[str]) -> Iterator[tuple[str, str]]:
        """What preflight says of a split's targets, at least one: code of a finding and text."""
        yield from ()

    def summary(self, targets: Tensor) -> list[float] | None:
        """Mean and spread of the training targets, by which sites agree on one scale; None: targets have none."""
        return None

    @abstractmethod
    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        """What a site minimises by default; see ``core.types.Objective``."""

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """What evaluation keeps of one batch of outputs (N, ...) and targets; both as they are by default."""
        return outputs, targets

    def cases(self, outputs: Tensor, targets: Tensor, classes: Sequence[str]) -> Cases:
        """Condensed outputs and targets as the metrics of this kind take them."""
        return self.case_type(outputs.detach().cpu(), targets.cpu(), tuple(classes))

    def loss(self, cases: Any) -> float:
        """The mean of the default objective over the cases, at least 1 and finite, in float64."""
        return float(self.objective(torch.empty(0), 0.0)(cases.outputs.double(), cases.targets.double()))

    def answer(self, outputs: Tensor, classes: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
        """What outputs say of N new cases: names of columns, and N rows of numbers and texts.

        Raises:
            UserError: the kind does not say, or its answers are files.
        """
        raise UserError(f"kind {self.name}: does not say how an output becomes an answer; use fairflare export-model")

    def exported(self, classes: Sequence[str]) -> tuple[str, dict[str, Any], list[str], str]:
        """What follows the network in an exported model.

        Returns:
            The name of a class of ``inference.modules`` or torch.nn ("": nothing) and its arguments; the names of the
            numbers that the whole model gives ([]: they have none), and what they are in words.
        """
        return "", {}, [], f"the network's own: {self.outputs}"

    def enough(self, metric: Metric, targets: Tensor, least: int, classes: Sequence[str]) -> bool:
        """Whether a metric of these cases may leave: what compares classes needs ``least`` of each that is there."""
        if not metric.of_classes or not len(targets):
            return True
        return int(torch.unique(targets, return_counts=True)[1].min()) >= least

    def baseline(self, task: Task, data: SiteData) -> Baseline | None:
        """The answer to beat, from the site's training examples; None: there is none."""
        return None

    def counts(self, targets: Tensor, classes: Sequence[str]) -> list[int]:
        """The cases of each kind, from which the metrics of a ``counted`` baseline follow; by default the classes'."""
        return torch.bincount(targets, minlength=len(classes)).tolist()

    def n_classes(self, classes: Sequence[str]) -> int:
        """C where cases have classes, else 0."""
        return len(classes) if self.has_classes else 0

    def names(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Names of what a task with these classes reports: the kind's and those that every such task has."""
        everywhere = (one for one in registry.metrics().values() if one.always and one.kind == self.name)
        return tuple(dict.fromkeys((*self.metrics, *(one.name for one in everywhere if self._fits(one, classes)))))

    def metric(self, name: str) -> Metric:
        return registry.named(name)

    def evaluate(
        self, names: Sequence[str], outputs: Tensor, targets: Tensor, classes: Sequence[str]
    ) -> dict[str, float]:
        """The metrics ``names``, where defined, and "loss"; with an output that is not finite: loss = nan only.

        Without cases: nothing.
        """
        if not len(targets):
            return {}
        cases = self.cases(outputs, targets, classes)
        if not cases.finite:
            return {"loss": float("nan")}
        known = registry.metrics()  # once: each look asks which plugins there are
        found = {name: value_of(known.get(name) or self.metric(name), cases) for name in names}
        return {name: value for name, value in found.items() if value is not None} | {"loss": self.loss(cases)}

    def scores(self, outputs: Tensor, targets: Tensor, classes: Sequence[str]) -> Tensor:
        """float64 (N,): each case's score; empty without cases, or where nothing is a case's score."""
        score = self.metric(self.score).each if self.score else None
        if not len(targets) or score is None:
            return torch.empty(0, dtype=torch.float64)
        return torch.from_numpy(score(self.cases(outputs, targets, classes)))

    def of_benefit(self, headline: str, classes: Sequence[str]) -> tuple[Metric, ...]:
        """What joining is told in: the headline, or a case's score where that has no resamples; then what always is."""
        first = self.metric(headline)
        if not (first.resampled and self._fits(first, classes)) and self.score:
            first = self.metric(self.score)
        others = [one for one in self._of_kind(classes) if one.benefit and one != first]
        return (first, *others) if first.resampled else tuple(others)

    def of_groups(self, classes: Sequence[str]) -> tuple[Metric, ...]:
        """Those that groups of patients have too, a case's score first."""
        first = [self.metric(self.score)] if self.score else []
        return (*first, *(one for one in self._of_kind(classes) if one.groups and one.resampled and one not in first))

    def _of_kind(self, classes: Sequence[str]) -> list[Metric]:
        """The registered metrics of this kind by name, those that every task of it has last."""
        found = [one for one in registry.metrics().values() if one.kind == self.name and self._fits(one, classes)]
        return sorted(found, key=lambda one: (one.always, one.name))

    def _fits(self, one: Metric, classes: Sequence[str]) -> bool:
        return one.fits(len(classes)) if self.has_classes else True


def value_of(metric: Metric, cases: Cases) -> float | None:
    """The metric over the cases, at least 1 and finite; None where it is not defined."""
    if metric.value is not None:
        return metric.value(cases)
    n = np.ones((1, len(cases.targets)))
    found = float(resampled(metric, cases, n)[0])
    return None if found != found else found


def resampled(metric: Metric, cases: Cases, counts: Array) -> Array:
    """(B,) the metric of resamples ``counts`` (B, N) of the cases; nan where undefined."""
    if metric.weighted is not None:
        return metric.weighted(cases, counts)
    if metric.each is None:
        raise ValueError(f"metric {metric.name!r}: expected each, weighted or value")
    return weighted_mean(metric.each(cases), counts)


def interval_of(metric: Metric, cases: Cases, level: float) -> tuple[float, float] | None:
    """The metric's interval over the cases, at least 1 and finite; None where it has none."""
    if metric.interval is not None:
        return metric.interval(cases, level)
    if metric.each is None or metric.range != (0.0, 1.0):
        return None
    return of_mean(metric.each(cases), level, cases.patients)


SPLITS: tuple[SplitName, ...] = ("val", "test")
BASELINE_BATCH = 16


def trivial_results(task: Task, data: SiteData, min_count: int | None) -> dict[str, dict[str, float]]:
    """Split ("val", "test") -> the task's metrics of the trivial answer there; splits that hold nothing are left out.

    What a constant answer scores follows from the counts of the classes alone, of the split and, since its loss says
    how sure it is, of the training split. So a split's numbers are there only where every one of these counts may leave
    the site. Those of a regression are a model's metrics as any other.

    Args:
        min_count: the fewest examples whose number may leave the site; None: none.
    """
    baseline = task.kind.baseline(task, data)
    if baseline is None:
        return {}
    if counted := baseline.counted:
        counts = [int(n) for n in data.class_counts.tolist()]
        if not task.kind.has_classes:
            targets = torch.cat([batch.targets.cpu() for batch in data.fixed("train", BASELINE_BATCH)])
            counts = task.kind.counts(targets, task.classes)
        if not all(released(counts, min_count)):
            return {}
    found: dict[str, dict[str, float]] = {}
    for split in SPLITS:
        batches = list(data.fixed(split, BASELINE_BATCH))
        targets = torch.cat([batch.targets.cpu() for batch in batches]) if batches else torch.empty(0)
        if not batches or (counted and not all(released(task.kind.counts(targets, task.classes), min_count))):
            continue
        answers = [(baseline.answers(batch.inputs.cpu()), batch.targets.cpu()) for batch in batches]
        outputs, truths = (torch.cat(parts) for parts in zip(*(task.condense(*pair) for pair in answers)))
        found[split] = finite(task.evaluate(outputs, truths))
    return found
