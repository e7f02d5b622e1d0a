# SPDX-License-Identifier: Apache-2.0
"""What the federation's model loses at a site when that site's own last model is taken out of it.

    w^{-i} = (w^t - p_i w_i^{t-1}) / (1 - p_i)        p_i the weight that w_i^{t-1} has in w^t, sent to this site alone

Jiang et al. (FedCE), CVPR 2023, arXiv:2303.16520, Eq. 4. The site remembers its own model of the round before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch

from fairflare.core.registry import probe
from fairflare.core.types import Cost, LocalWork, Need, Number, Offer
from fairflare.probes.base import Probe

KEPT = "own model"
FEWEST = 4
"""Validation examples from which on an error says something of a site."""


@probe("leave-one-out")
@dataclass(frozen=True)
class LeaveOneOut(Probe):
    """Error of the leave-one-out model on the site's validation split: one forward pass over that split.

    Nothing is reported in a site's first round, in a round whose received model holds nothing of the site's, and at a
    site without a validation split.

    Args:
        score_metric: the task's metric, a share of 1, whose complement is the error; "headline" is the task's own.
    """

    cost: ClassVar[Cost] = Cost()
    reports: ClassVar[tuple[Number, ...]] = (
        Number("minus_error", 0.0, 1.0, "error of the model without this site's part, on its own validation data"),
    )
    needs = (Need("val", FEWEST, "the method weighs sites by their errors on it", both_classes=True),)

    score_metric: str = "headline"

    def measure(self, work: LocalWork) -> dict[str, float]:
        own, weight = work.memory.get(KEPT), work.orders.get("coefficient")
        if own is None or weight is None:
            return {}
        with without(work.network, own, weight):
            return error_of(work.evaluate("val"), self.score_metric, work.headline, "minus_error")

    def remember(self, work: LocalWork) -> None:
        work.memory[KEPT] = {name: p for name, p in work.network.named_parameters() if p.requires_grad}

    def missing(self, offer: Offer) -> str:
        """The metric, where the task has none of that name."""
        return missing_metric(self.score_metric, offer)


@contextmanager
def without(network: torch.nn.Module, own: Mapping[str, torch.Tensor], weight: float) -> Iterator[None]:
    """Within: ``network``'s parameters without ``weight`` times ``own``; buffers stay, since a variance taken out of
    another can be negative.

    Args:
        network: holds w^t.
        own: name -> the site's own parameters, those with a gradient.
        weight: p_i in [0, 1).
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


def error_of(metrics: Mapping[str, float], metric: str, headline: str, name: str) -> dict[str, float]:
    """{name: 1 - metric}, or nothing where the metric is not defined."""
    score = metrics.get(headline if metric == "headline" else metric)
    return {} if score is None else {name: min(max(1.0 - score, 0.0), 1.0)}


def missing_metric(metric: str, offer: Offer) -> str:
    """A sentence when the task has no metric of that name."""
    if metric in ("headline", *offer.metrics):
        return ""
    return f"score_metric: the task has no metric {metric!r}; it has: {', '.join(offer.metrics)}"
