# SPDX-License-Identifier: Apache-2.0
"""The processes of a simulated run: none of them goes on without the command that began it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import psutil

RUN_FOLDER = "FAIRFLARE_RUN_FOLDER"
"""Environment variable that names the one folder of a simulated run, where server and sites keep their state."""
COMMAND = "FAIRFLARE_RUN_COMMAND"
"""Environment variable of a simulated run's processes: pid and start time of the command that they belong to."""
SCRATCH = "fairflare_sim_"
"""How the name of a simulator's temporary folder begins."""
OWNER = "run_folder.txt"
"""File there that says whose it is."""
GRACE = 10.0
"""Seconds for a process to end by itself."""
LOOK = 0.5
"""Seconds between two looks at whether the command is alive."""
SAME = 2.0
"""Seconds within which two start times are the same process's: clocks are set."""


def this_command() -> str:
    return f"{os.getpid()} {psutil.Process().create_time():.2f}"


def end_with_command() -> None:
    """Have this process end soon after the command that ``COMMAND`` names, however that ends; without it do nothing."""
    if named := os.environ.get(COMMAND):
        threading.Thread(target=_watch, args=(named,), name="fairflare-command", daemon=True).start()


def _watch(named: str) -> None:
    while _is_alive(named):
        time.sleep(LOOK)
    with contextlib.suppress(psutil.Error):
        stop(psutil.Process().children(recursive=True), grace=1.0)
    # Nobody waits for this process, and a simulator's threads do not end when they are asked to.
    os.kill(os.getpid(), signal.SIGKILL)


def _is_alive(named: str) -> bool:
    pid, _, started = named.partition(" ")
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(started)) < SAME and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def stop(family: list[psutil.Process], grace: float = GRACE) -> None:
    """End processes: SIGTERM, and SIGKILL for those that are there ``grace`` seconds later."""
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(family, timeout=grace)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE)
