# SPDX-License-Identifier: Apache-2.0
"""Runs for a cluster's workers that end badly; a module of its own, which their processes can import."""

import os
import signal
import threading
import time
from pathlib import Path

from fairflare.core.errors import RunFailed
from fairflare.engine.files import CHECKPOINT
from fairflare.studies.runs import run_once

KILLED = "killed.txt"


def kills_its_worker(config, folder, *, workers=1):
    """The run "a" kills the worker that made it after its first round, once; it leaves the pids in a file."""
    marker = folder.parent / KILLED
    if folder.name == "a" and not marker.exists():
        marker.write_text(f"{os.getppid()} {os.getpid()}", encoding="utf-8")
        threading.Thread(target=_kill_parent, args=(folder / CHECKPOINT,), daemon=True).start()
    return run_once(config, folder, workers=workers)


def _kill_parent(when: Path):
    while not when.exists():
        time.sleep(0.005)
    os.kill(os.getppid(), signal.SIGKILL)


def fails(config, folder, *, workers=1):
    """What its folder's name says."""
    if folder.name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if folder.name == "fails":
        raise RunFailed("fails: too few sites")
    return {"pid": os.getpid()}


def waits(config, folder, *, workers=1):
    """Until it is ended; its pid is in a file."""
    (folder.parent / f"{folder.name}.pid").write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(600)
