# SPDX-License-Identifier: Apache-2.0
"""MaxFL's probe: how much the received model's appeal to the site would change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fairflare.core.registry import probe
from fairflare.core.types import Cost, LocalWork, Number
from fairflare.core.validation import Range
from fairflare.probes.loss import Loss, mean_loss

RHO = "required loss"
"""Key of a site's memory: rho_k."""


@probe("appeal")
@dataclass(frozen=True)
class Appeal(Loss):
    """MaxFL's q_k: the sigmoid's slope at F_k(w^t) - rho_k, with the site's own requirement rho_k, which stays there.

    Cho et al., TMLR 2024, https://arxiv.org/abs/2205.14840: rho_k is the loss of a model that site k trains alone. Here
    that is its model at the end of the first round in which it trains, and it has no opinion in that round (1/4).

    Args:
        rho: one loss that all sites require; empty: each site's own, as above.
        loss_split: the split that both losses are measured on.
    """

    cost: ClassVar[Cost] = Cost(forward=1)
    reports: ClassVar[tuple[Number, ...]] = (
        Number("appeal", 0.0, 0.25, "slope of the sigmoid at the received model's loss minus the one that is required"),
    )

    rho: Annotated[float, Range(0, 1e6)] | None = None

    def measure(self, work: LocalWork) -> dict[str, float]:
        rho = work.memory.get(RHO) if self.rho is None else self.rho
        away = 0.0 if rho is None else mean_loss(work, self.loss_split, self.probe_batch) - rho
        return {"appeal": slope(away)}

    def remember(self, work: LocalWork) -> None:
        """rho_k of the model that has just been trained, where there is none yet."""
        if self.rho is None and RHO not in work.memory:
            work.memory[RHO] = mean_loss(work, self.loss_split, self.probe_batch)


def slope(x: float) -> float:
    """s (1 - s), s the sigmoid at ``x``: in [0, 1/4], 1/4 at 0, the same for -x; 0 where ``x`` is no number."""
    small = math.exp(-abs(x))
    return small / (1 + small) ** 2 if x == x else 0.0
