# SPDX-License-Identifier: Apache-2.0
"""A trainer that takes for ever at one site in some rounds, and looks at every moment whether it should stop."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fairflare.core.registry import trainer
from fairflare.trainers.sgd import PlainTrainer


@trainer("slow")
@dataclass(frozen=True)
class Slow(PlainTrainer):
    """Plain training; before its first step in the rounds ``rounds`` ("2,3") the site of ``victim`` examples waits."""

    victim: int = 0
    rounds: str = ""

    def step(self, work, optimizer, objective, batch):
        """Wait to be stopped, or step."""
        while str(work.round.number) in self.rounds.split(",") and work.data.size("train") == self.victim:
            work.stop_if_aborted()
            time.sleep(0.05)
        return super().step(work, optimizer, objective, batch)
