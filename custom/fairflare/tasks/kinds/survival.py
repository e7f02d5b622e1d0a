# SPDX-License-Identifier: Apache-2.0
"""Survival: of every case the time to an event is known, or that there was none until then.

A network gives either the hazard of each of K intervals that are agreed before training (``Hazards``), or one log risk
(``Cox``). An event at time 0 falls into the first interval, and is the first event of a risk set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairflare.core.errors import UserError
from fairflare.core.types import Objective, SiteData
from fairflare.data.readers.table_features import as_numbers, check_cells
from fairflare.functional.intervals import Array
from fairflare.tasks.kind import Baseline, Cases, TaskKind
from fairflare.tasks.metrics_survival import KIND

if TYPE_CHECKING:
    from fairflare.tasks.base import Task

HAPPENED = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0}
"""How a cell says whether there was an event."""
SURE = 1e-6
"""A hazard that is no closer to 0 or 1, where a site has seen nothing or nothing else."""
OVER_ENDS = ("integrated_brier", "survival_calibration_error", "restricted_mean_error")


def intervals_of(targets: Tensor, ends: Sequence[float]) -> tuple[Tensor, Tensor]:
    """(N, 1) the interval in which each case's observation ends, K after the last, and whether with an event there.

    Interval k is (end k-1, end k]. Who is lost within it has survived those before; an event after the last end is
    none before it.
    """
    times, events = targets[:, :1].double().contiguous(), targets[:, 1:].bool()
    edges = torch.tensor(ends, dtype=torch.float64, device=targets.device)
    died = torch.searchsorted(edges, times)
    lost = torch.searchsorted(edges, times, right=True)
    return torch.where(events, died, lost), events & (died < len(ends))


def hazard_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean", ends: Sequence[float]) -> Tensor:
    """- log likelihood of discrete hazards (Gensheimer and Narasimhan, PeerJ 7, 2019, Eq. 1).

    Of logits (N, K) of the hazard in each interval, times and events (N, 2), and the K rising ``ends`` of these.
    """
    last, died = intervals_of(targets, ends)
    steps = torch.arange(logits.shape[1], device=logits.device)
    each = (F.softplus(logits) * (steps < last) + F.softplus(-logits) * ((steps == last) & died)).sum(1)
    return each.mean() if reduction == "mean" else each


def efron_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """- log partial likelihood of these cases alone (Cox 1972; ties as Efron, JASA 72, 1977), per case.

    In a batch of a site it is that of the site's own risk sets: stratified by hospital. A case without an event adds 0,
    and so does a batch without one; tied events share what they add equally. ``logits``, called so as every objective
    does: log risks (N, 1); ``targets``: times and events (N, 2).
    """
    order = targets[:, 0].argsort(descending=True, stable=True)
    risk, died = logits[order, 0], targets[order, 1].to(logits.dtype)
    _, group, sizes = torch.unique_consecutive(targets[order, 0], return_inverse=True, return_counts=True)
    nothing = risk.new_zeros(len(sizes))
    at_risk = risk.logcumsumexp(0)[sizes.cumsum(0) - 1]
    deaths = nothing.index_add(0, group, died)
    share = nothing.index_add(0, group, died * (risk - at_risk[group]).exp()).clamp(max=1.0)
    place = died.cumsum(0) - 1 - (deaths.cumsum(0) - deaths)[group]
    part = torch.log1p(-(place / deaths.clamp(min=1)[group]).clamp(min=0) * share[group]) * died
    tied = nothing.index_add(0, group, part) / deaths.clamp(min=1)
    each = torch.zeros_like(risk).index_copy(0, order, died * (at_risk[group] + tied[group] - risk))
    return each.mean() if reduction == "mean" else each


@dataclass(frozen=True)
class TimeCases(Cases):
    """Outputs of a network, and times and events (N, 2).

    Attributes:
        ends: of the intervals; of a log risk the times at which curves are drawn, if any.
        log_risk: whether the output is a log risk.
        log_hazards: see ``Cox``; nan at ends at which none is known.
    """

    ends: tuple[float, ...] = ()
    log_risk: bool = False
    log_hazards: tuple[float, ...] = ()

    @cached_property
    def times(self) -> Array:
        return self.targets[:, 0].double().numpy()

    @cached_property
    def events(self) -> Array:
        return self.targets[:, 1].double().numpy()

    @cached_property
    def survival(self) -> Array | None:
        """(N, K) predicted probability of being without event after each end; None of a log risk alone."""
        if not self.log_risk:
            return np.exp(-F.softplus(self.outputs.double()).cumsum(1).numpy())
        return _proportional(self.outputs, self.log_hazards).numpy() if self.log_hazards else None

    @cached_property
    def risks(self) -> Array:
        """(N,) the log risk, or the cumulative hazard up to the last end."""
        outputs = self.outputs.double()
        # Equal rows have equal risks: vectorised and other rows of a sum differ in their last bit.
        return (outputs[:, 0] if self.log_risk else F.softplus(outputs).sum(1).float().double()).numpy()


def _proportional(outputs: Tensor, log_hazards: Sequence[float]) -> Tensor:
    """float64 (N, K) survival of log risks (N, 1)."""
    return torch.exp(-torch.exp(outputs.double() + torch.tensor(log_hazards, dtype=torch.float64)))


@dataclass(frozen=True)
class Survival(TaskKind):
    """What both kinds of output share.

    Attributes:
        ends: times at which survival is asked for: ends of intervals, rising, above 0.
    """

    name: str = KIND
    metrics: tuple[str, ...] = ("harrell_c", "uno_c", *OVER_ENDS)
    headline: str = "harrell_c"
    score: str = "concordant"
    ends: tuple[float, ...] = ()

    has_times: ClassVar[bool] = True
    log_risk: ClassVar[bool] = False
    targets: ClassVar[str] = "time, and 1 where it is that of an event (N, 2)"

    @property
    def columns(self) -> list[str]:
        """Of what is predicted: survival at each end."""
        return [f"survival_{end:g}" for end in self.ends]

    def head(self, classes: Sequence[str]) -> tuple[int, dict[str, Any]]:
        if not self.ends:
            raise UserError('horizons: expected times until which survival is asked for, e.g. 365, got ""')
        return 1 if self.log_risk else len(self.ends), {}

    def known(self, columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[bool]:
        return [all(cell != "" for cell in cells) for cells in zip(*(columns[name] for name in names))]

    def of_cells(
        self, file: str, columns: Mapping[str, Sequence[str]], names: Sequence[str], classes: Sequence[str]
    ) -> Tensor:
        """float32 (N, 2): times and events, of the columns of events and of times."""
        event, time = names
        times = as_numbers(file, time, columns[time])
        check_cells(file, time, np.isfinite(times) & (times >= 0), "a time of at least 0", columns)
        known = [cell in HAPPENED for cell in columns[event]]
        check_cells(file, event, known, "1 (an event) or 0 (none until then)", columns)
        events = np.array([HAPPENED[cell] for cell in columns[event]])
        return torch.from_numpy(np.stack((times, events), axis=1)).float()

    def cases(self, outputs: Tensor, targets: Tensor, classes: Sequence[str]) -> TimeCases:
        return TimeCases(outputs.detach().cpu(), targets.cpu(), tuple(classes), self.ends, self.log_risk)


@dataclass(frozen=True)
class Hazards(Survival):
    """A network gives the hazard of each interval."""

    outputs: ClassVar[str] = "logits (N, K) of the hazard in each interval"

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        return partial(hazard_loss, ends=self.ends)

    def answer(self, outputs: Tensor, classes: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
        survival = torch.exp(-F.softplus(outputs.double()).cumsum(1))
        return self.columns, survival.tolist()

    def exported(self, classes: Sequence[str]) -> tuple[str, dict[str, Any], list[str], str]:
        return "Survival", {}, self.columns, f"survival (N, {len(self.ends)}) after each horizon"

    def baseline(self, task: Task, data: SiteData) -> Baseline:
        """For everybody the hazards of the site's training patients: their life table."""
        targets = torch.cat([batch.targets.cpu() for batch in data.fixed("train", 256)])
        last, died = intervals_of(targets, self.ends)
        steps = torch.arange(len(self.ends))
        deaths = ((last == steps) & died).sum(0).double()
        known = deaths + (last > steps).sum(0)
        logits = (deaths / known.clamp(min=1)).clamp(SURE, 1 - SURE).logit()
        return Baseline(lambda inputs: logits.float().expand(len(inputs), -1))


@dataclass(frozen=True)
class Cox(Survival):
    """A network gives a log risk: no probability, but an order of the patients (deep Cox, Katzman et al., BMC Medical
    Research Methodology 18, 2018).

    Attributes:
        log_hazards: of a patient of log risk 0 the log of the cumulative hazard at each end, where a hospital's
            baseline is known: with it there are probabilities.
    """

    metrics: tuple[str, ...] = ("harrell_c", "uno_c")
    log_hazards: tuple[float, ...] = ()

    log_risk: ClassVar[bool] = True
    family: ClassVar[str] = "cox"
    outputs: ClassVar[str] = "log risk (N, 1)"

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        return efron_loss

    def answer(self, outputs: Tensor, classes: Sequence[str]) -> tuple[list[str], list[list[Any]]]:
        outputs = outputs.double()
        if not self.log_hazards:
            return ["log_risk"], outputs.tolist()
        survival = _proportional(outputs, self.log_hazards)
        return ["log_risk", *self.columns], torch.cat((outputs, survival), dim=1).tolist()

    def cases(self, outputs: Tensor, targets: Tensor, classes: Sequence[str]) -> TimeCases:
        return replace(super().cases(outputs, targets, classes), log_hazards=self.log_hazards)

    def scored(self, told: Cox) -> Cox:
        """This kind with the metrics of probabilities, by the hazards of ``told``, at those of its horizons."""
        known = dict(zip(told.ends, told.log_hazards, strict=True))
        return replace(self, metrics=Survival.metrics, log_hazards=tuple(known.get(end, math.nan) for end in self.ends))

    def exported(self, classes: Sequence[str]) -> tuple[str, dict[str, Any], list[str], str]:
        if not self.log_hazards:
            return "", {}, ["log_risk"], "log risk (N, 1), no probability"
        words = f"log risk, and survival after each of {len(self.ends)} horizons (N, {1 + len(self.ends)})"
        return "Proportional", {"log_hazards": list(self.log_hazards)}, ["log_risk", *self.columns], words
