# SPDX-License-Identifier: Apache-2.0
"""What a command costs before it does anything, in CPU seconds and in imports of PyTorch, which take turns with it.

    python benchmarks/start_up.py [--repeats 5] [--simulator]

``--toy`` runs the same code once, as the tests do. ``--simulator`` adds a run of two short rounds in FLARE's simulator,
whose processes do little but start: all of them count, those that outlive their parents too (on Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = {
    "fairflare --help": ["--help"],
    "fairflare list": ["list"],
    "fairflare list --parts --json": ["list", "--parts", "--json"],
    "fairflare tasks": ["tasks"],
}
SIMULATED = ["run", "fedavg", "--task", "support2:dirichlet", "--sites", "3", "--rounds", "2", "--env", "sim"]
ALONE = "--alone"
"""Before a command: measure it in a process of its own."""
GOAL = 0.4
"""CPU seconds of ``fairflare list``."""
SUBREAPER = 36
"""Linux' PR_SET_CHILD_SUBREAPER: processes whose parents have ended become this one's children."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--simulator", action="store_true")
    parser.add_argument("--toy", action="store_true", help="every command once")
    options = parser.parse_args()
    repeats = 1 if options.toy else options.repeats
    found = [once(COMMANDS) for _ in range(repeats)]
    torch = statistics.median(one["import torch"] for one in found)
    print(f"import torch: {torch:.2f} CPU s; goal for a command: <= {GOAL} CPU s")
    for name in COMMANDS:
        seconds = statistics.median(one[name] for one in found)
        print(f"{name}: {seconds:.3f} CPU s, {seconds / torch:.3f} imports of torch")
    if options.simulator:
        simulated(repeats)


def once(commands: dict[str, list[str]]) -> dict[str, float]:
    """Name -> CPU seconds, one after the other, after an import of torch."""
    found = {"import torch": cpu([sys.executable, "-c", "import torch"])}
    return found | {name: cpu([sys.executable, "-m", "fairflare", *words]) for name, words in commands.items()}


def simulated(repeats: int) -> None:
    """Pairs of a run in the simulator and an import of torch."""
    pairs = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            torch = cpu([sys.executable, "-c", "import torch"])
            started = time.perf_counter()
            run = cpu([sys.executable, "-m", "fairflare", *SIMULATED, "--out", str(Path(folder) / "run")])
            pairs.append((run, torch, time.perf_counter() - started))
    run, torch, wall = (statistics.median(pair[k] for pair in pairs) for k in range(3))
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    print(f"simulator, 3 sites, 2 rounds: {run:.1f} CPU s, {wall:.1f} s wall; {ratio:.1f} imports of torch")


def cpu(command: list[str]) -> float:
    """CPU seconds of ``command`` and its descendants; raises CalledProcessError where it fails."""
    done = subprocess.run([sys.executable, __file__, ALONE, *command], check=True, capture_output=True, text=True)
    return float(done.stdout)


def alone(command: list[str]) -> None:
    """Print the CPU seconds of ``command``, in a process that has no other children."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    subprocess.run(command, check=True, capture_output=True)
    while left():
        pass
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(found.ru_utime + found.ru_stime)


def left() -> bool:
    """Wait for one process that its parent has left behind; False when there is none."""
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    alone(sys.argv[2:]) if sys.argv[1:2] == [ALONE] else main()
