# SPDX-License-Identifier: Apache-2.0
"""A run in FLARE's simulator of which one process is killed at a named point, and which its user then ends."""

import os
import signal
import subprocess
import sys
import time


def kill_one_process(arguments, point, plugins, folder, monkeypatch):
    """Run ``fairflare ARGUMENTS``; a process dies at ``point`` of round 2 (tests/killing.py), and Ctrl-C ends the rest.

    Args:
        arguments: of a run in the simulator, its folder among them.
        point: a key of ``killing.POINTS``.
        plugins: paths for FAIRFLARE_PLUGINS, killing.py among them; they stay set for the rest of the test.
        folder: where the file that says that a process has died may lie.
        monkeypatch: pytest's.
    """
    marker = folder / "died"
    monkeypatch.setenv("FAIRFLARE_PLUGINS", os.pathsep.join(map(str, plugins)))
    monkeypatch.setenv("KILLING_POINT", point)
    monkeypatch.setenv("KILLING_MARKER", str(marker))
    command = [sys.executable, "-m", "fairflare", *map(str, arguments)]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 240
        while not marker.exists() and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        assert marker.exists(), "nothing died"
        time.sleep(1)
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=60) != 0
    finally:
        run.kill()
