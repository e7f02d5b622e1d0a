# SPDX-License-Identifier: Apache-2.0
"""The clients' processes of a simulated run: one that ends while the run goes on is named, long before FLARE's server
would miss its answer.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from fairflare.engine.files import AUDIT

PERIOD = 1.0
"""Seconds between two looks."""
PATIENCE = 3.0
"""Seconds for which a client's process is gone before it is named: at the end of a run all of them go."""
WORKER = "nvflare.private.fed.app.simulator.simulator_worker"
"""FLARE's module that a client's process runs."""
DEAD = re.compile(r"(?:Subprocess died for|Communication error with) client (?P<site>[^\s,:]+)")
"""How FLARE's log names a client whose process has ended in the middle of its work."""
FINISH = b'"event": "finish"'


class Heartbeat:
    """Looks after the clients' processes, and names each site whose process has ended too early once.

    Where every site has a process of its own for the whole run, the system's table of processes says so; where FLARE
    starts one per site and task, its log does.

    Args:
        pid: of the simulator's process, from which all others descend.
        log: FLARE's log; what it holds by now is of an earlier command.
        one_each: whether every site has its own process.
    """

    def __init__(
        self,
        pid: int,
        folder: Path,
        log: Path,
        one_each: bool,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid, self._folder, self._log, self._one_each = pid, folder, log, one_each
        self._tell, self._clock = tell, clock
        self._read, self._begun = _size(log), _size(folder / AUDIT)
        self._known: dict[str, psutil.Process] = {}
        self._gone: dict[str, float] = {}
        self._looked = 0.0

    def look(self) -> None:
        now = self._clock()
        if now - self._looked < PERIOD:
            return
        self._looked = now
        alive = self._alive()
        for site in self._ended(alive):
            self._gone.setdefault(site, now)
        if self._one_each:  # a table that was read while it changed may lack a process for once
            self._gone = {site: since for site, since in self._gone.items() if site not in alive}
        due = [site for site, since in self._gone.items() if since < now - PATIENCE]
        if not due or (self._one_each and not alive) or self._finished():
            return
        for site in sorted(due):
            self._gone[site] = float("inf")
            self._tell(site)

    def _alive(self) -> dict[str, psutil.Process]:
        """Site -> its process, of those that are at work."""
        found = {}
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    words = process.cmdline()
                    if WORKER in words and "--client" in words and process.status() != psutil.STATUS_ZOMBIE:
                        found[words[words.index("--client") + 1]] = process
        return found

    def _ended(self, alive: dict[str, psutil.Process]) -> list[str]:
        if self._one_each:
            ended = [site for site in self._known if site not in alive]
            self._known |= alive
            return ended
        with contextlib.suppress(OSError), self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
            whole = text.rfind(b"\n") + 1
            self._read += whole
            return [match["site"] for match in DEAD.finditer(text[:whole].decode(errors="replace"))]
        return []

    def _finished(self) -> bool:
        """Whether this command's run has come to its end, at which all clients go."""
        with contextlib.suppress(OSError), (self._folder / AUDIT).open("rb") as file:
            file.seek(self._begun)
            return FINISH in file.read()
        return False


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
