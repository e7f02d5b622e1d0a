# SPDX-License-Identifier: Apache-2.0
"""FLARE's own simulator command on an exported job."""

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
    """What FLARE said; another attempt where a site's port was taken meanwhile."""
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(folder)]
    for _ in range(3):
        shutil.rmtree(folder, ignore_errors=True)
        said, log = folder.with_suffix(".said"), folder / "server" / "log.txt"
        with said.open("w") as out:
            child = subprocess.Popen(
                [*command, "-n", str(sites), "-t", str(sites)], env=environment, stdout=out, stderr=out
            )
        until, taken = time.monotonic() + LIMIT, False
        while child.poll() is None and time.monotonic() < until and not taken:
            time.sleep(0.2)
            taken = log.is_file() and TAKEN in log.read_text()
        if child.poll() is None:
            for process in [*psutil.Process(child.pid).children(recursive=True), child]:
                process.kill()
            child.wait()
        if not taken:
            return said.read_text()
    raise AssertionError(f"three times: {TAKEN}")
