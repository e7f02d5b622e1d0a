# SPDX-License-Identifier: Apache-2.0
"""No server optimizer: the combined update is added as it is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from fairflare.core.registry import server_optimizer
from fairflare.core.types import StateDict
from fairflare.server_optimizers.base import ServerOptimizer, State


@server_optimizer("none")
@dataclass(frozen=True)
class Add(ServerOptimizer):
    """w^{t+1} = w', bit for bit the rule's model."""

    def change(self, update: StateDict, state: State) -> tuple[StateDict, State]:
        """Delta, and no state."""
        return update, {}

    def step(
        self, model: StateDict, combined: StateDict, state: State, trainable: Collection[str]
    ) -> tuple[StateDict, State]:
        """``combined`` itself: w^t + (w' - w^t) would round."""
        return combined, {}
