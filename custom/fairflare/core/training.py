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
            each round goes on where the site's last one stopped. None: as ``epochs`` say.
        fewest_steps: with ``most_steps`` the bounds within which ``epochs`` passes over a site's own data are cut or
            drawn out to a number of steps, which go on from round to round as ``local_steps`` do. ``local_steps`` win.
            None beside None: whole epochs; None alone: no such bound.
        most_steps: see ``fewest_steps``.
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
    fewest_steps: Annotated[int, Range(1, 1_000_000)] | None = None
    most_steps: Annotated[int, Range(1, 1_000_000)] | None = None

    def __post_init__(self) -> None:
        ones = ("rounds", "epochs", "local_steps", "fewest_steps", "most_steps")
        for name, least in (("batch_size", 2), *((name, 1) for name in ones)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("momentum", "weight_decay", "logit_tau"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and >= 0, got {getattr(self, name)}")
        if not 0 <= self.adam_beta2 < 1:
            raise ValueError(f"adam_beta2 must be in [0, 1), got {self.adam_beta2}")
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be finite and > 0, got {self.lr}")
        if self.fewest_steps and self.most_steps and self.fewest_steps > self.most_steps:
            raise ValueError(f"fewest_steps must be at most most_steps, {self.most_steps}, got {self.fewest_steps}")

    def steps(self, n_examples: int) -> int | None:
        """Optimizer steps of a round at a site with so many training examples; None: its whole epochs, however many."""
        if self.local_steps is not None:
            return self.local_steps
        if self.fewest_steps is None and self.most_steps is None:
            return None
        passes = self.epochs * -(-n_examples // self.batch_size)
        return min(max(passes, self.fewest_steps or 1), self.most_steps or passes + (self.fewest_steps or 1))


def refuse_training(settings: Mapping[str, Any]) -> None:
    """Raise ValueError where ``settings`` of a method hold a field of ``Training``, which is the task's to say."""
    named = {key.removeprefix("train.") for key in settings}
    fields = sorted(named & set(Training.__dataclass_fields__))
    if fields:
        raise ValueError(f"{fields[0]}: is the task's training, equal for all methods, and no setting of one")
