# SPDX-License-Identifier: Apache-2.0
"""IFCA's probe: the mean loss of a cluster's model on the site's own data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairflare.core.registry import probe
from fairflare.core.types import LARGEST_LOSS, Cost, LocalWork, Number
from fairflare.probes.base import showing
from fairflare.probes.loss import Loss


@probe("cluster-loss")
@dataclass(frozen=True)
class ClusterLoss(Loss):
    """Mean loss of a cluster's model (IFCA), which the server shows in a further exchange: a forward pass for each."""

    cost: ClassVar[Cost] = Cost(forward=2)
    reports: ClassVar[tuple[Number, ...]] = (
        Number("cluster_loss", 0.0, LARGEST_LOSS, "mean loss of a cluster's model on one split of the site's data"),
    )
    when = "anchored"

    def measure(self, work: LocalWork) -> dict[str, float]:
        with showing(work):
            return super().measure(work)
