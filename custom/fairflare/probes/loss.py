# SPDX-License-Identifier: Apache-2.0
"""Losses and errors of a model on a site's own data, a number each: of the received model, the trained one, or another.

What the federation's model loses at a site when that site's own last model is taken out of it:

    w^{-i} = (w^t - p_i w_i^{t-1}) / (1 - p_i)        p_i the weight that w_i^{t-1} has in w^t, sent to this site alone

Jiang et al. (FedCE), CVPR 2023, arXiv:2303.16520, Eq. 4. The site remembers its own model of the round before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fairflare.core.execution import no_grad
from fairflare.core.metric import named
from fairflare.core.registry import probe
from fairflare.core.types import LARGEST_LOSS, Cost, LocalWork, Need, Number, Offer, SplitName
from fairflare.core.validation import Few
from fairflare.probes.base import Probe


@probe("loss")
@dataclass(frozen=True)
class Loss(Probe):
    """Mean of the task's loss in evaluation mode and with evaluation transforms, without logit adjustment.

    Args:
        loss_split: the split that is measured.
    """

    cost: ClassVar[Cost] = Cost(forward=1)
    reports: ClassVar[tuple[Number, ...]] = (
        Number("loss", 0.0, LARGEST_LOSS, "mean loss of the received model on one split of the site's data"),
    )

    loss_split: Literal["train", "val"] = "train"
    probe_batch: Few = 64

    def measure(self, work: LocalWork) -> dict[str, float]:
        return {self.reports[0].name: mean_loss(work, self.loss_split, self.probe_batch)}

    @property
    def needs(self) -> tuple[Need, ...]:
        only_val = Need("val", 1, "the method weighs sites by the loss on it")
        return () if self.loss_split == "train" else (only_val,)


@no_grad
def mean_loss(work: LocalWork, split: SplitName, batch_size: int) -> float:
    """The mean loss of ``work.network`` over ``split``, of at least one example, summed in float64."""
    network, objective = work.network.eval(), work.loss()
    total = torch.zeros((), dtype=torch.float64, device=work.device)
    for batch in work.data.fixed(split, batch_size):
        work.stop_if_aborted()
        there = batch.to(work.device)
        total += objective(network(there.inputs), there.targets, reduction="none").double().sum()
    return float(total) / work.data.size(split)


KEPT = "own model"
FEWEST = 4
"""Validation examples from which on an error says something of a site."""


@dataclass(frozen=True)
class ErrorProbe(Probe):
    """Measures an error in [0, 1] on the site's validation split, of one model or another.

    It is 1 - metric, or the metric itself where less is better.

    Args:
        score_metric: the task's metric, at most 1; "headline" is the task's own or, where that has no bound, R2.
    """

    cost: ClassVar[Cost] = Cost()
    score_metric: str = "headline"

    def missing(self, offer: Offer) -> str:
        name = self._metric(offer.headline)
        if name not in (offer.headline, *offer.metrics):
            return f"score_metric: the task has no metric {name!r}; it has: {', '.join(offer.metrics)}"
        return "" if _is_bounded(name) else f"score_metric: expected a metric of at most 1, got {name}"

    def _metric(self, headline: str) -> str:
        own = self.score_metric == "headline"
        return R2 if own and not _is_bounded(headline) else headline if own else self.score_metric

    def error_of(self, metrics: Mapping[str, float], work: LocalWork, name: str) -> dict[str, float]:
        """{name: error}, or nothing where the metric is not defined."""
        metric = named(self._metric(work.headline))
        if (score := metrics.get(metric.name)) is None:
            return {}
        return {name: min(max(1.0 - score if metric.higher_is_better else score, 0.0), 1.0)}


R2 = "r2"


def _is_bounded(name: str) -> bool:
    """Whether the metric's best value is 1, or 0 of at most 1."""
    metric = named(name)
    return metric.high == 1.0 and (metric.higher_is_better or metric.low == 0.0)


@probe("leave-one-out")
@dataclass(frozen=True)
class LeaveOneOut(ErrorProbe):
    """Error of the leave-one-out model on the site's validation split: one forward pass over that split.

    Nothing is reported in a site's first round, in a round whose received model holds nothing of the site's, and at a
    site without a validation split.
    """

    reports: ClassVar[tuple[Number, ...]] = (
        Number("minus_error", 0.0, 1.0, "error of the model without this site's part, on its own validation data"),
    )
    needs = (Need("val", FEWEST, "the method weighs sites by their errors on it", both_classes=True),)

    def measure(self, work: LocalWork) -> dict[str, float]:
        own, weight = work.memory.get(KEPT), work.orders.get("coefficient")
        if own is None or weight is None:
            return {}
        with without(work.network, own, weight):
            return self.error_of(work.evaluate("val"), work, "minus_error")

    def remember(self, work: LocalWork) -> None:
        work.memory[KEPT] = {name: p for name, p in work.network.named_parameters() if p.requires_grad}


@contextmanager
def without(network: torch.nn.Module, own: Mapping[str, torch.Tensor], weight: float) -> Iterator[None]:
    """Within: ``network``'s parameters without ``weight`` times ``own``; buffers stay, since a variance taken out of
    another can be negative. ``network`` holds w^t, ``own`` the site's parameters with a gradient, and p_i is in [0, 1).
    """
    if not 0 <= weight < 1:
        raise ValueError(f"coefficient: expected a number in [0, 1), got {weight}")
    parameters = {name: p for name, p in network.named_parameters() if name in own}
    saved = {name: p.detach().clone() for name, p in parameters.items()}
    try:
        with torch.no_grad():
            for name, p in parameters.items():
                p.sub_(own[name].to(p.device), alpha=weight).div_(1 - weight)
        yield
    finally:
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(saved[name])


@probe("local-error")
@dataclass(frozen=True)
class LocalError(ErrorProbe):
    """Errors of the received and of the trained model on the validation split: one more forward pass over it.

    Free riders move it little or oddly (Jiang et al., FedCE, Section 4.3).
    """

    reports: ClassVar[tuple[Number, ...]] = (
        Number("received_error", 0.0, 1.0, "error of the received model on the site's own validation data"),
        Number("trained_error", 0.0, 1.0, "error of the site's trained model on its own validation data"),
    )
    when = "trained"

    def measure(self, work: LocalWork) -> dict[str, float]:
        before = self.error_of(work.received_metrics, work, "received_error")
        return before | self.error_of(work.evaluate("val"), work, "trained_error")
