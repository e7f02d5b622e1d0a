# SPDX-License-Identifier: Apache-2.0
"""Several labels at once: every case has any number of them, and of some it may not be known.

A label that a case does not say counts nowhere: neither in the loss, which it is masked in, nor in a metric.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.core.errors import DataError
from fairflare.core.metric import Metric
from fairflare.core.types import Objective, SiteData
from fairflare.core.validation import Names, shown, some
from fairflare.core.validation import expected as expect
from fairflare.data.readers.table_features import check_cells
from fairflare.functional.intervals import Array
from fairflare.tasks import metrics_multilabel
from fairflare.tasks.kind import Baseline, Cases, TaskKind
from fairflare.tasks.kinds.own import OwnData

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

SIGN = "|"
"""Between the labels of a cell that lists them."""
YES, NO = frozenset({"1", "yes", "true"}), frozenset({"0", "no", "false"})
"""What cells of a label's own column say, in small letters."""
HALF = 0.5
SURE = 1e-6
"""The least and, from 1, the largest probability of a constant answer."""
LONGEST = 50
"""Characters of a label's name, which is a part of its metrics' names."""
UNKNOWN = math.nan
"""A label that a case does not say."""


@dataclass(frozen=True)
class LabelCases(Cases):
    """Logits (N, L) and targets (N, L) of 0, 1 and nan."""

    @cached_property
    def probabilities(self) -> Array:
        """(N, L)."""
        return self.outputs.double().sigmoid().numpy()

    @cached_property
    def told(self) -> npt.NDArray[np.bool_]:
        """(N, L): whether a case says the label."""
        return ~np.isnan(self.targets.numpy())

    @cached_property
    def truth(self) -> npt.NDArray[np.bool_]:
        """(N, L): whether it has the label; False where it does not say."""
        return self.targets.numpy() == 1

    @cached_property
    def right(self) -> Array:
        """(N,) the share of the labels that a case says that are predicted."""
        hit = ((self.probabilities >= HALF) == self.truth) & self.told
        return hit.sum(axis=1) / np.maximum(self.told.sum(axis=1), 1)


def masked_entropy(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Binary cross-entropy summed over the labels that a case says, by the number of all labels.

    So every label that is known counts the same, whatever else its case says. Logits and targets are (N, L).
    """
    known = ~torch.isnan(targets)
    losses = F.binary_cross_entropy_with_logits(logits, targets.nan_to_num(), reduction="none")
    each = torch.where(known, losses, torch.zeros_like(losses)).mean(1)
    return each.mean() if reduction == "mean" else each


@dataclass(frozen=True)
class Labels(TaskKind):
    """Several labels at once.

    Attributes:
        nothing: a word in a list of labels that stands for none of them; "": there is none.
    """

    name: str = "multilabel"
    metrics: tuple[str, ...] = ("macro_auc", "macro_auprc", "label_accuracy")
    headline: str = "macro_auc"
    score: str = "label_accuracy"
    nothing: str = ""

    case_type = LabelCases
    outputs: ClassVar[str] = "logits (N, L) of each label"
    targets: ClassVar[str] = "whether each label is there (N, L): 1, 0, or nan where nobody says"

    def names(self, classes: Sequence[str]) -> tuple[str, ...]:
        first = super().names(classes)
        return (*first, *(f"{prefix}{name}" for prefix in metrics_multilabel.CURVES for name in classes))

    def metric(self, name: str) -> Metric:
        prefix = next((one for one in metrics_multilabel.CURVES if name.startswith(one)), "")
        return metrics_multilabel.per_label(prefix, name.removeprefix(prefix)) if prefix else super().metric(name)

    def lists(self, classes: Sequence[str]) -> dict[str, Any]:
        return {"masks": False, "classes": classes, "label": partial(self._label, tuple(classes))}

    def _label(self, classes: tuple[str, ...], given: Any) -> tuple[float, ...] | None:
        """A text "edema|effusion", a list of labels, or label -> 1, 0 or null; what is not in a list is not there."""
        if isinstance(given, str):
            given = [part.strip() for part in given.split(SIGN)]
        if isinstance(given, dict):
            strange = [name for name in given if name not in classes]
            fits = not strange and all(value in (0, 1, None) for value in given.values())
            found = tuple(UNKNOWN if given.get(name) is None else float(given[name]) for name in classes)
        else:
            fits = isinstance(given, list) and all(isinstance(one, str) for one in given)
            strange = [one for one in given if one not in classes and one != self.nothing] if fits else []
            fits = fits and not strange and not (self.nothing in given and len(given) > 1 and self.nothing)
            found = tuple(float(name in given) for name in classes) if fits else ()
        if not fits:
            raise ValueError(f"expected labels among {some(classes, 12)}, as A|B, a list, or label: 1, 0 or null")
        return None if all(math.isnan(one) for one in found) else found

    def known(self, columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[bool]:
        return [any(cell != "" for cell in cells) for cells in zip(*(columns[name] for name in names))]

    def of_cells(
        self, file: str, columns: Mapping[str, Sequence[str]], names: Sequence[str], classes: Sequence[str]
    ) -> Tensor:
        if tuple(names) == tuple(classes):
            return torch.stack([_yes_no(file, name, columns) for name in names], dim=1)
        found = []
        for row, cell in enumerate(columns[names[0]]):
            try:
                found.append(self._label(tuple(classes), cell))
            except ValueError as error:
                text = f"table {file}: row {row + 1}: {names[0]}: {error}, got {shown(cell)}"
                raise DataError("label", text) from None
        return torch.tensor(found)

    def remarks(self, targets: Tensor, classes: Sequence[str]) -> Iterator[tuple[str, str]]:
        gaps, alike = [], []
        for name, column in zip(classes, targets.T, strict=True):
            told = column[~torch.isnan(column)]
            n, missing = len(told), len(column) - len(told)
            if not n or float(told.min()) == float(told.max()):
                alike.append(f"{name} ({'nobody says it' if not n else f'{n} alike'})")
            elif missing:
                gaps.append(f"{name} ({missing} of {len(column)})")
        if alike:
            yield "unseen_label", f"labels without cases of both kinds have no metric here: {some(alike, 8)}"
        if gaps:
            yield "missing_labels", f"labels that some examples do not say, which count nowhere: {some(gaps, 8)}"

    def enough(self, metric: Metric, targets: Tensor, least: int, classes: Sequence[str]) -> bool:
        """Of every label that the metric is of, as many cases with it and without it, or none of one kind."""
        own = [f"{one}{name}" for name in classes for one in metrics_multilabel.CURVES]
        place = own.index(metric.name) // len(metrics_multilabel.CURVES) if metric.name in own else None
        chosen = targets if place is None else targets[:, place : place + 1]
        sizes = torch.stack([(chosen == value).sum(0) for value in (0, 1)])
        return not metric.of_classes or bool(((sizes >= least) | (sizes.min(0).values == 0)).all())

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        return masked_entropy

    def answer(self, outputs: Tensor, classes: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
        probabilities = outputs.double().sigmoid().numpy()
        rows = [
            [SIGN.join(name for name, one in zip(classes, flags) if one), *map(float, row)]
            for row, flags in zip(probabilities, probabilities >= HALF, strict=True)
        ]
        return ["labels", *(f"p_{name}" for name in classes)], rows

    def exported(self, classes: Sequence[str]) -> tuple[str, dict[str, Any], list[str], str]:
        words = f"probability (N, {len(classes)}) of each label: {some(classes, 20)}"
        return "Sigmoid", {}, [f"p_{name}" for name in classes], words

    def baseline(self, task: Task, data: SiteData) -> Baseline:
        """The share of each label among the training cases that say it, for everybody; a half where none does."""
        targets = torch.cat([batch.targets.cpu() for batch in data.fixed("train", 256)]).double()
        shares = targets.nanmean(0).nan_to_num(HALF).clamp(SURE, 1 - SURE)
        logits = shares.logit().float()
        return Baseline(lambda inputs: logits.expand(len(inputs), -1), counted=True)

    def counts(self, targets: Tensor, classes: Sequence[str]) -> list[int]:
        """Of each label, the cases without it, and with it."""
        return [int(n) for value in (0, 1) for n in (targets == value).sum(0)]


@cache
def kind_of(classes: tuple[str, ...], nothing: str) -> Labels:
    """The kind that the options of a task on several labels ask for; UserError where they are none."""
    expect("nothing", nothing not in classes, "a word that is no label", nothing)
    fits = all(SIGN not in name and len(name) <= LONGEST for name in classes)
    expect("labels", fits, f"names without {SIGN}, of at most {LONGEST} characters", some(classes, 12))
    return Labels(nothing=nothing)


@dataclass(frozen=True)
class OwnLabels(OwnData):
    """What own tables and own images with several labels share.

    Args:
        labels: their names.
        nothing: a word in a list of labels that stands for none of them.
    """

    headline = Labels.headline
    fewest: ClassVar[int] = 1

    labels: Names = "finding"
    nothing: str = ""

    def _check_own(self, fewest: int) -> None:
        super()._check_own(fewest)
        expect("labels", not self.numbered, "the labels' names", self.labels)
        kind_of(self.classes, self.nothing)  # raises where options cannot be read

    @property
    def kind(self) -> Labels:  # type: ignore[override]  # depends on options
        return kind_of(self.classes, self.nothing)


def _yes_no(file: str, name: str, columns: Mapping[str, Sequence[str]]) -> Tensor:
    """float32 (N,) of 1, 0 and nan from a label's own column."""
    words = [cell.lower().removesuffix(".0") for cell in columns[name]]
    known = [not cell or word in YES | NO for cell, word in zip(columns[name], words)]
    check_cells(file, name, known, "1 or 0 (yes or no), or nothing", columns)
    return torch.tensor([float(word in YES) if cell else UNKNOWN for cell, word in zip(columns[name], words)])
