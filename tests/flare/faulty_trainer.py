# SPDX-License-Identifier: Apache-2.0
"""A trainer that fails at one site in one round, with an error that no other site may see."""

from __future__ import annotations

from dataclasses import dataclass

from fairflare.core.registry import trainer
from fairflare.trainers.sgd import PlainTrainer

SECRET = "/data/patients/jane_doe.dcm"


@trainer("faulty")
@dataclass(frozen=True)
class Faulty(PlainTrainer):
    """Raises where site-2's seed and round 1 meet: the site is told apart by its data's size."""

    victim: int = 0

    def train(self, work):
        """Train, or fail."""
        if work.round.number == 1 and work.data.size("train") == self.victim:
            raise ValueError(SECRET)
        return super().train(work)
