# SPDX-License-Identifier: Apache-2.0
"""The processes of FLARE's simulated sites as forks of one that has the libraries already.

FLARE's simulator starts a new Python for each site, or with fewer threads than sites for each site and task, and every
one imports PyTorch and FLARE again (3 CPU seconds). Here a process of one thread, which has only imported, forks each.
A fork imports this package anew, from where a new Python would: from the job that the site was sent.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from nvflare.private.fed.app.simulator import simulator_runner

LIBRARIES = ("torch", "pandas", "scipy.stats", "sklearn.metrics", "nvflare.recipe")
"""What every site's process imports."""
LOOK = 0.05
"""Seconds between two looks at a process that is waited for."""


class SiteStarter:
    """Starts the sites' processes of a simulator that is run from this process, or from a fork of it.

    To be made before this process has a second thread: the starter is a fork of it. It ends with the last process that
    can ask it.

    Args:
        folder: an existing folder, where a file named after each process's id says whose it is.
        worker: FLARE's module that a site's process runs.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        for name in (*LIBRARIES, worker):
            importlib.import_module(name)
        self._lock = threading.Lock()
        self._starter, asked = multiprocessing.Pipe()
        if not os.fork():
            self._starter.close()
            _serve(asked, folder)
        asked.close()

    def take_over(self) -> None:
        """Have FLARE's simulator start its sites here."""
        simulator_runner.subprocess = SimpleNamespace(Popen=self.start, TimeoutExpired=subprocess.TimeoutExpired)

    def start(self, words: Sequence[str], env: Mapping[str, str], **ignored: Any) -> SiteProcess:
        """As ``subprocess.Popen`` starts ``words`` = [Python, "-m", module, arguments ...], in a session of its own."""
        return SiteProcess(self, self.ask((list(words[2:]), dict(env))))

    def ask(self, request: Any) -> Any:
        with self._lock:
            self._starter.send(request)
            return self._starter.recv()


class SiteProcess:
    """What FLARE's simulator asks of a ``subprocess.Popen``."""

    def __init__(self, starter: SiteStarter, pid: int) -> None:
        self._starter, self.pid = starter, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._starter.ask(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(LOOK)
        return code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:  # until it is asked for its code, its id is nobody else's
            os.kill(self.pid, number)


def _serve(asked: Connection, folder: Path) -> None:
    """The starter: (a module and its arguments, environment) -> the new process's id, an id -> the exit code or None.

    Returns in a new process alone, when its work is done.
    """
    while True:
        try:
            request = asked.recv()
            if isinstance(request, int):
                pid, status = os.waitpid(request, os.WNOHANG)
                asked.send(os.waitstatus_to_exitcode(status) if pid else None)
                continue
            pid = os.fork()
            if pid:
                words = request[0]
                (folder / str(pid)).write_text(words[words.index("--client") + 1], encoding="utf-8")
                asked.send(pid)
        except (EOFError, ConnectionError):
            os._exit(0)
        if not pid:
            asked.close()
            _become(*request)


def _become(words: list[str], env: dict[str, str]) -> None:
    """This process as a new Python that was started with ``-m`` and these words and variables; ends it."""
    os.setsid()
    before = _python_path()
    here = [folder for folder in sys.path if folder not in before]
    os.environ.clear()
    os.environ.update(env)
    sys.path[:] = [*_python_path(), *here]
    for name in [name for name in sys.modules if name.partition(".")[0] == "fairflare" or name == words[0]]:
        del sys.modules[name]
    importlib.invalidate_caches()
    np.random.seed()
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    sys.exit()


def _python_path() -> list[str]:
    return [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
