# SPDX-License-Identifier: Apache-2.0
"""How every segmentation task is trained and scored: soft Dice, hard Dice, no class labels."""

from __future__ import annotations

import torch
from torch import Tensor

from fairflare.clinic import dice
from fairflare.clinic.base import Task
from fairflare.core.objectives import Objective
from fairflare.core.types import Training

SMALL = Training(rounds=12, epochs=2, batch_size=8, optimizer="adam", lr=5e-3, weight_decay=1e-4, adam_beta2=0.99)
"""For a small U-Net on a laptop."""
PAPER = Training(
    rounds=200, batch_size=8, optimizer="adam", lr=1e-3, weight_decay=1e-4, adam_beta2=0.99, keep_optimizer=True
)
"""Fed-LWR's."""


class Masks(Task):
    """A task whose targets are masks (N, C, H, W), one channel per name in ``classes``."""

    headline = "dice"
    class_labels = False

    def objective(self, class_counts: Tensor, logit_tau: float) -> Objective:
        """``dice.dice_loss``, whatever the arguments: masks have no class prior to adjust logits by."""
        return dice.dice_loss

    def condense(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See ``dice.condensed``."""
        return dice.condensed(outputs, targets)

    def evaluate(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """See ``dice.summary``."""
        return dice.summary(outputs, targets, self.classes)

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """float64 (N,): each example's Dice, averaged over the channels."""
        return dice.hard_dice(outputs, targets).mean(1) if len(targets) else torch.empty(0, dtype=torch.float64)
