# SPDX-License-Identifier: Apache-2.0
"""How a model does on a site's own data, as far as that may leave the site."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fairflare.core.metric import finite
from fairflare.core.types import INTERVALS, Batch, SiteData, SplitName
from fairflare.functional.intervals import Owners
from fairflare.privacy.counts import released

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

Predictions = tuple[Tensor, Tensor, Tensor]
"""Condensed outputs and targets, and the groups (N,)."""
Chosen = npt.NDArray[np.bool_]
Condense = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""What is kept of one batch of outputs and targets."""


def plain(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return outputs.double(), targets


@dataclass(frozen=True)
class Cases:
    """A site's cases of one split, condensed (see ``Condense``).

    Attributes:
        outputs: float64 (N, ...).
        targets: (N, ...).
        members: (N,) index of each case's group, -1 where it is in none.
        patients: (N,) whose each case is, see ``functional.intervals``; None: each is another patient's.
    """

    outputs: Tensor
    targets: Tensor
    members: Tensor
    patients: Owners | None = None

    @property
    def n(self) -> int:
        return len(self.targets)

    @property
    def finite(self) -> bool:
        """Whether all outputs are; those of a model that has diverged are not, and nothing follows from them."""
        return bool(torch.isfinite(self.outputs).all())


LEVEL = 0.95
ENDS = ("low", "high")
ALIKE = 1e-6
"""How far a metric's value may be from that which its interval was made around."""
Intervals = dict[str, dict[str, dict[str, float]]]


@torch.no_grad()
def predict(
    network: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    condense: Condense = lambda outputs, targets: (outputs, targets),
    stop_if_aborted: Callable[[], None] = lambda: None,
) -> Predictions:
    """Condensed outputs and targets and the groups (N,) of all ``batches``, in evaluation mode, on the CPU."""
    network.eval()
    found = []
    for batch in batches:
        stop_if_aborted()
        inputs, targets, groups = batch.to(device)
        found.append((*condense(network(inputs).float(), targets), groups))
    return joined(found)


def answered(answers: Callable[[Tensor], Tensor], batches: Iterable[Batch], condense: Condense) -> Predictions:
    """As ``predict``, of answers that need no network."""
    found = []
    for batch in batches:
        inputs, targets, groups = batch.to(torch.device("cpu"))
        found.append((*condense(answers(inputs), targets), groups))
    return joined(found)


def joined(found: Sequence[Predictions]) -> Predictions:
    """The tensors of all batches as one each, on the CPU."""
    outputs, targets, groups = (torch.cat(parts).cpu() for parts in zip(*found)) if found else [torch.empty(0)] * 3
    return outputs, targets, groups


def results(
    predicted: Mapping[SplitName, Predictions],
    data: SiteData,
    scoring: Task,
    groups: Sequence[str],
    min_count: int | None,
) -> dict[str, dict[str, Any]]:
    """Split -> metrics, "groups" -> split -> group -> {"n", "value"}, and "n" -> split -> examples."""
    found: dict[str, dict[str, Any]] = {"groups": {}}
    for split, (outputs, targets, members) in predicted.items():
        found[split] = finite(scoring.evaluate(outputs, targets))
        found["groups"][split] = group_values(scoring.hits(outputs, targets), members, groups, min_count)
    found["n"] = {split: float(data.size(split)) for split in predicted}
    return found


def group_values(
    hits: Tensor, members: Tensor, groups: Sequence[str], min_count: int | None
) -> dict[str, dict[str, float]]:
    """Group -> size and mean of its examples' ``hits``, for every group whose count may leave the site.

    Args:
        hits: float64 (N,) in [0, 1]; empty where nothing is a case's score: then there is nothing.
        members: (N,) index of each example's group, -1 where it is in none.
    """
    if len(hits) != len(members):
        return {}
    rows = [members == g for g in range(len(groups))]
    counts = [int(row.sum()) for row in rows]
    may_leave = released(counts, min_count, unknown=len(members) - sum(counts))
    shown = [(name, row) for name, row, n, free in zip(groups, rows, counts, may_leave) if free and n]
    return {name: {"n": float(row.sum()), "value": float(hits[row].mean())} for name, row in shown}


def over_patients(
    found: Predictions,
    scoring: Task,
    min_count: int | None,
    beside: Mapping[str, float],
    patients: Owners | None = None,
) -> Intervals:
    """``INTERVALS`` -> metric -> ``ENDS``; empty where none may leave, or the model has diverged.

    They speak of which cases were tested, not of how another training would have ended. They do not depend on the
    order of the cases nor on a draw that says anything of one: whoever knew the resamples of a bootstrap, as a server
    would that asks about a model whose predictions it can foresee, could solve it for single cases.

    Args:
        min_count: the fewest patients that an interval leaves of, and cases of each class where the metric depends on
            classes; None: none leaves.
        beside: the metrics of these cases that the site sends; no other value has an interval.
        patients: as of ``Cases``.
    """
    outputs, targets, _ = found
    n = len(targets) if patients is None else len(np.unique(patients))
    if min_count is None or not beside or n < max(min_count, 1) or not bool(torch.isfinite(outputs).all()):
        return {}
    try:
        ends = scoring.ends(outputs, targets, max(min_count, 1), LEVEL, patients)
    except Exception:  # a task from outside may condense in another way; without its results all would be lost
        return {}
    # A metric that a task computes in its own way has no interval rather than that of another quantity.
    same = {name: pair for name, (value, *pair) in ends.items() if abs(value - beside.get(name, math.inf)) <= ALIKE}
    kept = {name: dict(zip(ENDS, pair)) for name, pair in same.items()}
    return {INTERVALS: kept} if kept else {}
