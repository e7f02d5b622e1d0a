# SPDX-License-Identifier: Apache-2.0
"""A trainer that takes for ever at one site in some rounds, and looks at every moment whether it should stop.

At another site it fails in round 1, with an error that no other site may see.
Sites are told apart by their data's size.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from fairflare.core.registry import trainer
from fairflare.trainers.base import PlainTrainer

SECRET = "/data/patients/jane_doe.dcm"


@trainer("slow")
@dataclass(frozen=True)
class Slow(PlainTrainer):
    """Plain training; before its first step in the rounds ``rounds`` ("2,3") the site of ``victim`` examples waits."""

    victim: int = 0
    rounds: str = ""
    broken: int = 0

    def train(self, work):
        """Train, or fail."""
        if work.round.number == 1 and work.data.size("train") == self.broken:
            raise ValueError(SECRET)
        return super().train(work)

    def step(self, work, optimizer, objective, batch):
        """Wait to be stopped, or step."""
        while str(work.round.number) in self.rounds.split(",") and work.data.size("train") == self.victim:
            work.stop_if_aborted()
            time.sleep(0.05)
        return super().step(work, optimizer, objective, batch)
