# SPDX-License-Identifier: Apache-2.0
"""A comparison whose runs are trained together against the same one run by run: CPU time, and how far models differ.

    python benchmarks/lockstep.py [--task heart:full] [--seeds 5] [--pairs 3] [METHOD ...]
    python benchmarks/lockstep.py --before FOLDER [--command "join fedavg glm --task heart --workers 1"]

With ``--before`` it is measured against another version, whose package ``fairflare`` lies in FOLDER, and may be any
command that takes ``--out``. Both commands run in turn, each as a process of its own on one thread. The ratio is the
median over pairs of user and system CPU seconds, imports included. The difference is the largest of any entry of any
final model, relative to the model's largest entry.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import load_file

from fairflare.engine.files import MODEL

METHODS = ["fedavg", "fedprox", "fedheal", "fedce", "fedlwr", "fedism-plus", "fedufo", "qffl", "fedavgm", "fedadam"]
HERE = Path(__file__).parents[1] / "custom"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--task", default="heart:full")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--command", default="")
    parser.add_argument("--toy", action="store_true", help="Two methods, two seeds, two rounds, one pair.")
    options = parser.parse_args()
    if options.toy:
        options.methods, options.seeds, options.pairs = ["fedavg", "fedheal"], 2, 1
    seeds = ",".join(map(str, range(options.seeds)))
    words = ["compare", *options.methods, "--task", options.task, "--seeds", seeds, "--workers", "1"]
    words = shlex.split(options.command) or [*words, *(["--rounds", "2"] if options.toy else [])]
    other = (words, options.before.resolve()) if options.before else ([*words, "--one-by-one"], HERE)
    name, ratios = "before" if options.before else "one by one", []
    for _ in range(options.pairs):
        with tempfile.TemporaryDirectory() as folder:
            one, two = Path(folder) / "one", Path(folder) / "two"
            seconds = [cpu(words, HERE, one), cpu(*other, two)]
            ratios.append(seconds[0] / seconds[1])
            print(f"now {seconds[0]:.1f} s, {name} {seconds[1]:.1f} s of CPU; ratio {ratios[-1]:.3f}", flush=True)
            print(f"largest difference of a model {largest_difference(one, two):.1e}")
    print(f"median ratio {statistics.median(ratios):.3f}")


def cpu(words: list[str], package: Path, out: Path) -> float:
    """CPU seconds of a process and its children."""
    before, env = os.times(), {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(package)}
    command = [sys.executable, "-m", "fairflare", *words, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, env=env)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def largest_difference(one: Path, other: Path) -> float:
    """Over all runs that both have, relative to the largest entry of each model."""
    found = [0.0]
    for path in one.rglob(MODEL):
        if (twin := other / path.relative_to(one)).is_file():
            a, b = load_file(path), load_file(twin)
            largest = max(float(value.abs().max()) for value in b.values())
            found.append(max(float((a[key] - b[key]).abs().max()) for key in a) / largest)
    return max(found)


if __name__ == "__main__":
    main()
