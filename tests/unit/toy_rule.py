# SPDX-License-Identifier: Apache-2.0
"""LossShare: sites with a higher loss weigh more, in proportion. The worked example of CONTRIBUTING.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairflare.aggregators.base import State, WeighingRule, shares
from fairflare.core.registry import method
from fairflare.core.types import Info, Paper, Reply, Weights


@method(
    "loss-share",
    title="LossShare",
    summary="Weighs every site by the received model's loss there; a worked example.",
    paper=Paper("The FairFLARE authors", "A worked example", "CONTRIBUTING.md", 2026, "CONTRIBUTING.md"),
    probes=("sharpness",),
)
@dataclass(frozen=True)
class LossShare(WeighingRule):
    """p_k = (F_k + smoothing) / sum_j (F_j + smoothing).

    Args:
        smoothing: >= 0, added to every loss; large values tend to uniform weights.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.smoothing < 0:
            raise ValueError(f"smoothing must be >= 0, got {self.smoothing}")

    @property
    def wanted(self) -> tuple[str, ...]:
        """The loss on the site's training split."""
        return ("loss",)

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """The weights do not depend on the past."""
        return shares({r.site: r.scalars["loss"] + self.smoothing for r in replies}), state
