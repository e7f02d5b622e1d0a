# SPDX-License-Identifier: Apache-2.0
"""The mean loss of a site's trained model (FedPID, FedGA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fairflare.core.registry import probe
from fairflare.core.types import LARGEST_LOSS, Number
from fairflare.probes.loss import Loss


@probe("trained-loss")
@dataclass(frozen=True)
class TrainedLoss(Loss):
    """As ``Loss``, after local training."""

    reports: ClassVar[tuple[Number, ...]] = (
        Number("trained_loss", 0.0, LARGEST_LOSS, "mean loss of the site's trained model on one split of its own data"),
    )
    when = "trained"
