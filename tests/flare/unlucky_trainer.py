# SPDX-License-Identifier: Apache-2.0
"""Trainers that one site has bad luck with, once.

The file FAIRFLARE_FAULTS/<site> holds ROUND WHAT, or ROUND WHAT alone for when the site trains alone. WHAT is a signal
that the site's process sends to itself in that round, or seconds for which it is busy. Plain training meets it before
its first step, GSAM before a second pass; the file then is <site>.met and holds the process's id.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fairflare.core.registry import trainer
from fairflare.trainers.base import PlainTrainer
from fairflare.trainers.gsam import GSAM


@trainer("unlucky-sgd")
@dataclass(frozen=True)
class UnluckySGD(PlainTrainer):
    """Plain training, and what is in store for the site."""

    def step(self, work, optimizer, objective, batch):
        """What is in store, then a step."""
        meet(work)
        return super().step(work, optimizer, objective, batch)


@trainer("unlucky-gsam")
@dataclass(frozen=True)
class UnluckyGSAM(GSAM):
    """GSAM, and what is in store for the site while its weights are the perturbed ones."""

    def step(self, work, optimizer, objective, batch):
        """A step of two passes."""
        object.__setattr__(self, "passes", iter((1, 2)))
        return super().step(work, optimizer, objective, batch)

    def backward(self, work, objective, batch):
        """A pass."""
        if next(self.passes) == 2:
            meet(work)
        return super().backward(work, objective, batch)


PASSED = []
"""Rounds that this process has been in, each once in a row: it trains alone once they begin anew."""


def meet(work):
    """Suffer what the site's file says of this round."""
    if PASSED[-1:] != [work.round.number]:
        PASSED.append(work.round.number)
    site = re.search(r"\buid=(\S+)", " ".join(sys.argv))
    file = Path(os.environ.get("FAIRFLARE_FAULTS", os.devnull)) / (site[1] if site else "nobody")
    number, what, *alone = file.read_text().split() if file.is_file() else ("0", "")
    if work.round.number != int(number) or bool(alone) != (sorted(PASSED) != PASSED):
        return
    file.write_text(str(os.getpid()))
    file.rename(file.with_suffix(".met"))
    if what.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[what])
        return
    end = time.monotonic() + float(what)
    while time.monotonic() < end:
        work.stop_if_aborted()
        time.sleep(0.05)
