# SPDX-License-Identifier: Apache-2.0
"""FedAvg whose server process writes down how much memory it holds: a plugin of ``transport_memory.py``."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from fairflare.aggregators.base import State
from fairflare.aggregators.fedavg import FedAvg
from fairflare.core.registry import method
from fairflare.core.types import Info, Paper

FILE = "FAIRFLARE_WATCHED_MEMORY"
"""Environment variable: the file."""
EVERY = 0.002
"""Seconds between two looks."""
_begun: list[threading.Thread] = []


def watch() -> None:
    """Write the bytes that are resident now, and then each new peak, a line each."""
    with open(os.environ[FILE], "w", buffering=1) as file:
        highest = resident()
        print(highest, file=file)
        while True:
            now = resident()
            if now > highest:
                highest = now
                print(now, file=file)
            time.sleep(EVERY)


def resident() -> int:
    """Bytes of this process that are in memory and in no file: libraries' pages come in one by one."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024


PAPER = Paper("The FairFLARE authors", "Benchmarks", "docs/benchmarks", 2026, "docs/benchmarks/README.md")


@method("watched", title="Watched FedAvg", summary="FedAvg that says how much memory its server takes.", paper=PAPER)
@dataclass(frozen=True)
class Watched(FedAvg):
    """The first call of ``orders`` is the server's, before anything is sent."""

    def orders(self, state: State, site: str, info: Info) -> dict[str, float]:
        """None; the watch begins."""
        if not _begun and FILE in os.environ:
            _begun.append(threading.Thread(target=watch, daemon=True))
            _begun[0].start()
        return {}
