# SPDX-License-Identifier: Apache-2.0
"""A comparison whose runs are trained together against the same one run by run: CPU time, and how far models differ.

    python benchmarks/lockstep.py [--task heart] [--seeds 5] [--pairs 3] [METHOD ...]

Both commands write the same comparison, in turn, each as a process of its own on one thread. The ratio is the median
over pairs of user and system CPU seconds, imports included. The difference is the largest of any entry of any final
model, relative to the model's largest entry.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from fairflare.engine.files import MODEL

METHODS = ["fedavg", "fedprox", "fedheal", "fedce", "fedlwr", "fedism-plus", "fedufo", "qffl", "fedavgm", "fedadam"]
GOAL = 0.15


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--task", default="heart")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--toy", action="store_true", help="Two methods, two seeds, two rounds, one pair.")
    options = parser.parse_args()
    if options.toy:
        options.methods, options.seeds, options.pairs = ["fedavg", "fedheal"], 2, 1
    seeds = ",".join(map(str, range(options.seeds)))
    command = [sys.executable, "-m", "fairflare", "compare", *options.methods, "--task", options.task]
    command += ["--seeds", seeds, "--workers", "1", *(["--rounds", "2"] if options.toy else [])]
    ratios = []
    for _ in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            together, alone = Path(folder) / "together", Path(folder) / "alone"
            seconds = [cpu([*command, "--out", together]), cpu([*command, "--one-by-one", "--out", alone])]
            ratios.append(seconds[0] / seconds[1])
            print(f"together {seconds[0]:.1f} s, one by one {seconds[1]:.1f} s of CPU; ratio {ratios[-1]:.3f}")
            print(f"largest difference of a model {largest_difference(together, alone):.1e}")
    print(f"median ratio {statistics.median(ratios):.3f} (goal: {GOAL} of a version that also wrote each run's page)")


def cpu(command: list[str | Path]) -> float:
    """CPU seconds of a process and its children."""
    before = os.times()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def largest_difference(one: Path, other: Path) -> float:
    """Over all runs of two comparisons, relative to the largest entry of each model."""
    found = []
    for path in one.glob(f"*/{MODEL}"):
        a, b = load_file(path), load_file(other / path.parent.name / MODEL)
        found.append(max(float((a[k] - b[k]).abs().max()) for k in a) / max(float(v.abs().max()) for v in b.values()))
    return max(found)


if __name__ == "__main__":
    main()
