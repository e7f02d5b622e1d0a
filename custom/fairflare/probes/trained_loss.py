# SPDX-License-Identifier: Apache-2.0
"""The mean loss of a site's own trained model on the site's own data: F_k(w_k), one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fairflare.core.registry import probe
from fairflare.core.types import LARGEST_LOSS, Cost, LocalWork, Need, Number
from fairflare.core.validation import Few
from fairflare.probes.base import Probe
from fairflare.probes.loss import mean_loss, needs_of


@probe("trained-loss")
@dataclass(frozen=True)
class TrainedLoss(Probe):
    """As ``Loss``, after local training.

    Args:
        loss_split: as in ``Loss``.
        probe_batch: as in ``Loss``.
    """

    cost: ClassVar[Cost] = Cost(forward=1)
    reports: ClassVar[tuple[Number, ...]] = (
        Number("trained_loss", 0.0, LARGEST_LOSS, "mean loss of the site's trained model on one split of its own data"),
    )

    loss_split: Literal["train", "val"] = "train"
    probe_batch: Few = 64

    def __post_init__(self) -> None:
        if self.probe_batch < 1:
            raise ValueError(f"probe_batch must be at least 1, got {self.probe_batch}")

    @property
    def when(self) -> Literal["received", "trained", "anchored"]:
        """After training."""
        return "trained"

    def measure(self, work: LocalWork) -> dict[str, float]:
        """One forward pass."""
        return {"trained_loss": mean_loss(work, self.loss_split, self.probe_batch)}

    @property
    def needs(self) -> tuple[Need, ...]:
        """The split."""
        return needs_of(self.loss_split)
