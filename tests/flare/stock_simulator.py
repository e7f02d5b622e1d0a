# SPDX-License-Identifier: Apache-2.0
"""Runs in FLARE's own simulator, which looks for ports as FLARE does."""

import shutil
import subprocess
import sys
import time

import psutil

LIMIT = 240
"""Seconds for one attempt."""
TAKEN = "Communication error with client"
"""FLARE looks for a free port and lets it go before the site's process listens there; where another process was first,
the run waits for that site for ever."""


def simulate(job, folder, sites, environment=None):
    """What FLARE's simulator command said on an exported job."""
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(folder)]
    return attempt([*command, "-n", str(sites), "-t", str(sites)], folder, env=environment)[1]


def attempt(command, folder, **options):
    """The exit status and what was said; another attempt where a site's port was taken meanwhile.

    Args:
        command: what starts the simulator, with its workspace in ``folder``.
        folder: the workspace, emptied before each attempt.
        options: further ones of ``Popen``.
    """
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        said, log = folder.with_suffix(".said"), folder / "server" / "log.txt"
        said.parent.mkdir(parents=True, exist_ok=True)
        with said.open("w") as out:
            child = subprocess.Popen([*map(str, command)], stdout=out, stderr=out, **options)
        until, taken = time.monotonic() + LIMIT, False
        while child.poll() is None and time.monotonic() < until and not taken:
            time.sleep(0.2)
            taken = log.is_file() and TAKEN in log.read_text()
        if child.poll() is None:
            for process in [*psutil.Process(child.pid).children(recursive=True), child]:
                process.kill()
            child.wait()
        if not taken:
            return child.returncode, said.read_text()
    raise AssertionError(f"three times: {TAKEN}")
