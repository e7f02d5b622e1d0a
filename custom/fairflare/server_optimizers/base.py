# SPDX-License-Identifier: Apache-2.0
"""What every server optimizer is: a step of the server along the update that the rule has combined."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fairflare.core.registry import server_optimizer
from fairflare.core.types import StateDict

State = Mapping[str, Any]
"""Its memory: tensors by name and entry, saved with the model after every round."""


class ServerOptimizer(ABC):
    """A frozen dataclass of parameters whose methods are pure functions of their arguments.

    The combined update is Delta = w' - w^t, where w' is the rule's model. Only trainable floating-point entries are
    stepped: buffers (running statistics, counters) are as the rule made them.
    """

    @abstractmethod
    def change(self, update: StateDict, state: State) -> tuple[StateDict, State]:
        """w^{t+1} - w^t and the next state, from Delta (trainable entries, float32 or wider) and the last state."""

    def step(
        self, model: StateDict, combined: StateDict, state: State, trainable: Collection[str]
    ) -> tuple[StateDict, State]:
        """w^{t+1} and the next state, from w^t, the rule's w' and what the last step returned, {} before the first."""
        moved = [key for key in model if key in trainable and key in combined and model[key].is_floating_point()]
        change, after = self.change({key: _wide(combined[key]) - _wide(model[key]) for key in moved}, state)
        return combined | {key: (_wide(model[key]) + change[key]).to(model[key].dtype) for key in moved}, after


@server_optimizer("none")
@dataclass(frozen=True)
class Add(ServerOptimizer):
    """w^{t+1} = w', bit for bit the rule's model."""

    def change(self, update: StateDict, state: State) -> tuple[StateDict, State]:
        return update, {}

    def step(
        self, model: StateDict, combined: StateDict, state: State, trainable: Collection[str]
    ) -> tuple[StateDict, State]:
        """``combined`` itself: w^t + (w' - w^t) would round."""
        return combined, {}


def _wide(value: torch.Tensor) -> torch.Tensor:
    """``value`` in float32 or its own wider type."""
    return value.to(torch.promote_types(value.dtype, torch.float32))
