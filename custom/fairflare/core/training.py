# SPDX-License-Identifier: Apache-2.0
"""Local training, which is the task's to say and equal for all methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fairflare.core.execution import Precision
from fairflare.core.validation import Range


@dataclass(frozen=True)
class Training:
    """How a site trains in one round, whatever the method; a task preset holds the papers' values.

    Attributes:
        rounds: T, communication rounds.
        epochs: local epochs per round, unless ``local_steps`` are given.
        batch_size: examples per local step.
        optimizer: "adam" (L2 in the gradient, not AdamW) or "sgd".
        lr: local learning rate eta.
        momentum: momentum of "sgd"; ignored by "adam".
        weight_decay: L2 coefficient added to the gradient.
        logit_tau: temperature of the logit adjustment (Menon et al., ICLR 2021) of the local loss with the site's own
            class counts; 0 is plain cross-entropy.
        adam_beta2: decay of Adam's second moment, in [0, 1).
        precision: of training passes, see ``execution.Execution``.
        keep_optimizer: True carries a site's optimizer state from round to round (Fed-LWR's, FedUFO's and FLARE's own
            FedCE clients do); False starts anew in each round (FedISM's and FedHEAL's do).
        local_steps: local steps per round in place of ``epochs``: a site goes through its data again and again, and
            each round goes on where the site's last one stopped. None: whole epochs.
        least_steps: with ``epochs``: a site takes at least so many steps a round, going on as with ``local_steps``, so
            that few examples make no few steps and many are all seen. None: as many as its epochs have.
    """

    rounds: Annotated[int, Range(1, 1_000_000)] = 10
    epochs: Annotated[int, Range(1, 10_000)] = 1
    batch_size: Annotated[int, Range(2, 65_536)] = 32
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Range(0, 1e6)] = 3e-4
    momentum: Annotated[float, Range(0, 1)] = 0.9
    weight_decay: Annotated[float, Range(0, 1e6)] = 5e-4
    logit_tau: Annotated[float, Range(0, 1e3)] = 0.0
    adam_beta2: Annotated[float, Range(0, 1)] = 0.999
    keep_optimizer: bool = False
    precision: Precision = "auto"
    local_steps: Annotated[int, Range(1, 1_000_000)] | None = None
    least_steps: Annotated[int, Range(1, 1_000_000)] | None = None

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("epochs", 1), ("batch_size", 2), ("local_steps", 1), ("least_steps", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.local_steps is not None and self.least_steps is not None:
            raise ValueError(f"least_steps: goes with epochs, not with local_steps, got {self.least_steps}")
        for name in ("momentum", "weight_decay", "logit_tau"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and >= 0, got {getattr(self, name)}")
        if not 0 <= self.adam_beta2 < 1:
            raise ValueError(f"adam_beta2 must be in [0, 1), got {self.adam_beta2}")
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be finite and > 0, got {self.lr}")


def refuse_training(settings: Mapping[str, Any]) -> None:
    """Raise ValueError where ``settings`` of a method hold a field of ``Training``, which is the task's to say."""
    named = {key.removeprefix("train.") for key in settings}
    fields = sorted(named & set(Training.__dataclass_fields__))
    if fields:
        raise ValueError(f"{fields[0]}: is the task's training, equal for all methods, and no setting of one")
