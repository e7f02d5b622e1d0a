# SPDX-License-Identifier: Apache-2.0
"""What shared test sets cost a run's last rounds, and what rendering costs a comparison.

    python benchmarks/last_rounds.py [--task ich-phantom:small] [--rounds 12] [--env sim] [--test-images 2000]

``--toy`` runs the same code at a size that says nothing about speed, in process, as the tests do.

1. One run: seconds from one round's line of the audit log to the next, the median over the last five rounds, whose
   models are scored, over the median over those before them but for the first, in which processes start. Beside it
   what scoring took, and what the run waits for after its last round.
2. Two methods compared in process: CPU seconds of the whole command, with what it starts, without the cache of rendered
   images, with an empty one, and with what the command before has left there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

LAST = 5
GOAL = 1.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="ich-phantom:small")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--env", choices=("local", "sim"), default="sim")
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--toy", action="store_true", help="the smallest sizes, in process")
    options = parser.parse_args()
    values = {"images": options.images, "test_images": options.test_images}
    if options.toy:
        options.rounds, options.env, options.sites = 8, "local", 2
        values = {"images": 80, "test_images": 20, "site_test_images": 0, "size": 32, "corrupted": 1}
    shared = ["--task", options.task, "--sites", str(options.sites)]
    shared += [f"--set={name}={value}" for name, value in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        last_rounds(Path(folder), [*shared, "--rounds", str(options.rounds), "--env", options.env])
        comparisons(Path(folder), [*shared, "--rounds", "1" if options.toy else "3"])


def last_rounds(folder: Path, words: list[str]) -> None:
    """Part 1."""
    command(["run", "fedavg", *words, "--out", str(folder / "run")], folder / "a cache")
    entries = [json.loads(line) for line in (folder / "run" / "audit.jsonl").read_text().splitlines()]
    times = {entry["round"]: moment(entry) for entry in entries if entry["event"] == "round"}
    lasted = {number: times[number] - times[number - 1] for number in times if number - 1 in times}
    last = [seconds for number, seconds in lasted.items() if number > len(times) - LAST]
    earlier = [seconds for number, seconds in lasted.items() if number <= len(times) - LAST]
    print(f"a round: {statistics.median(earlier):.3f} s, of the last five {statistics.median(last):.3f} s")
    print(f"last five rounds / earlier rounds, wall: {statistics.median(last) / statistics.median(earlier):.3f}"
          f"   (goal: {GOAL:.1f})")  # fmt: skip
    scored = sum(entry["seconds"]["score"] for entry in entries if entry["event"] == "scores")
    end = next(moment(entry) for entry in entries if entry["event"] == "finish") - max(times.values())
    print(f"scoring, rendering of the test sets included: {scored:.2f} s; last round to the end: {end:.2f} s")


def comparisons(folder: Path, words: list[str]) -> None:
    """Part 2."""
    cpu = {}
    for name, cache in (("none", "off"), ("empty", folder / "b cache"), ("full", folder / "b cache")):
        out = folder / f"compare {name}"
        cpu[name] = command(["compare", "fedavg", "fedism-plus", *words, "--out", str(out)], cache)
    print(", ".join(f"{name} cache {seconds:.1f} s" for name, seconds in cpu.items()) + " (CPU)")
    for name in ("empty", "full"):
        print(f"comparison, {name} cache / none, CPU: {cpu[name] / cpu['none']:.3f}")


def command(words: list[str], cache: Path | str) -> float:
    """CPU seconds of a command of the package and of its processes; raises SystemExit where it fails."""
    before, started = spent(), time.perf_counter()
    environment = {**os.environ, "FAIRFLARE_CACHE": str(cache)}
    done = subprocess.run([sys.executable, "-m", "fairflare", *words], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    print(f"  {words[0]}, {words[-1].rpartition('/')[2]}: wall {time.perf_counter() - started:.1f} s")
    return spent() - before


def spent() -> float:
    """CPU seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def moment(entry: dict[str, Any]) -> float:
    """When it was written, in seconds."""
    return datetime.fromisoformat(entry["time"]).timestamp()


if __name__ == "__main__":
    main()
