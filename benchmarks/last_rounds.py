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
import contextlib
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

LAST = 5
GOAL = 1.0
CACHE = "FAIRFLARE_CACHE"
Run = Callable[[list[str]], str]
"""Runs a command of the package and gives what it said where it failed."""


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
        run = in_process if options.toy else in_python
        last_rounds(run, Path(folder), [*shared, "--rounds", str(options.rounds), "--env", options.env])
        comparisons(run, Path(folder), [*shared, "--rounds", "1" if options.toy else "3"])


def last_rounds(run: Run, folder: Path, words: list[str]) -> None:
    """Part 1."""
    command(run, ["run", "fedavg", *words, "--out", str(folder / "run")], folder / "a cache")
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


def comparisons(run: Run, folder: Path, words: list[str]) -> None:
    """Part 2."""
    cpu = {}
    for name, cache in (("none", "off"), ("empty", folder / "b cache"), ("full", folder / "b cache")):
        out = folder / f"compare {name}"
        cpu[name] = command(run, ["compare", "fedavg", "fedism-plus", *words, "--out", str(out)], cache)
    print(", ".join(f"{name} cache {seconds:.1f} s" for name, seconds in cpu.items()) + " (CPU)")
    for name in ("empty", "full"):
        print(f"comparison, {name} cache / none, CPU: {cpu[name] / cpu['none']:.3f}")


def command(run: Run, words: list[str], cache: Path | str) -> float:
    """CPU seconds of a command of the package and of its processes; raises SystemExit where it fails."""
    before, started, kept = spent(), time.perf_counter(), os.environ.get(CACHE)
    os.environ[CACHE] = str(cache)
    try:
        if said := run(words):
            raise SystemExit(said)
    finally:
        os.environ.pop(CACHE)
        os.environ.update({CACHE: kept} if kept is not None else {})
    print(f"  {words[0]}, {words[-1].rpartition('/')[2]}: wall {time.perf_counter() - started:.1f} s")
    return spent() - before


def in_python(words: list[str]) -> str:
    """Run a command in a Python of its own; what it said where it failed."""
    done = subprocess.run([sys.executable, "-m", "fairflare", *words], capture_output=True, text=True)
    return done.stderr if done.returncode else ""


def in_process(words: list[str]) -> str:
    """The same here, without the seconds that a Python takes to start."""
    from fairflare.cli.main import main

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(words)
    except SystemExit as end:
        return said.getvalue() if end.code else ""


def spent() -> float:
    """CPU seconds of this process and of all that it has started and that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def moment(entry: dict[str, Any]) -> float:
    """When it was written, in seconds."""
    return datetime.fromisoformat(entry["time"]).timestamp()


if __name__ == "__main__":
    main()
