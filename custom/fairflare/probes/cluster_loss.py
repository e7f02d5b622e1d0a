# SPDX-License-Identifier: Apache-2.0
"""The loss of a cluster's model, which the server shows in a further exchange, on a site's own data (IFCA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairflare.core.registry import probe
from fairflare.core.types import LARGEST_LOSS, Cost, LocalWork, Number
from fairflare.probes.base import showing
from fairflare.probes.loss import Loss, mean_loss


@probe("cluster-loss")
@dataclass(frozen=True)
class ClusterLoss(Loss):
    """Mean loss of the model that is shown: one forward pass per cluster; the trained one stays in the network.

    Args:
        loss_split: as in ``Loss``.
        probe_batch: as in ``Loss``.
    """

    cost: ClassVar[Cost] = Cost(forward=2)
    reports: ClassVar[tuple[Number, ...]] = (
        Number("cluster_loss", 0.0, LARGEST_LOSS, "mean loss of a cluster's model on one split of the site's data"),
    )
    when = "anchored"

    def measure(self, work: LocalWork) -> dict[str, float]:
        with showing(work):
            return {"cluster_loss": mean_loss(work, self.loss_split, self.probe_batch)}
