# SPDX-License-Identifier: Apache-2.0
"""What rendering costs a comparison: CPU seconds of the whole command, with what it starts.

    python benchmarks/image_cache.py [--task ich-phantom:small] [--test-images 2000]

Two methods are compared in process without the cache of rendered images, with an empty one, and with what the command
before has left there. ``--toy`` runs the same code at a size that says nothing about speed, as the tests do.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CACHE = "FAIRFLARE_CACHE"
Run = Callable[[list[str]], str]
"""Runs a command of the package and gives what it said where it failed."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="ich-phantom:small")
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--toy", action="store_true", help="the smallest sizes, in process")
    options = parser.parse_args()
    values = {"images": options.images, "test_images": options.test_images}
    if options.toy:
        options.sites = 2
        values = {"images": 80, "test_images": 20, "site_test_images": 0, "size": 32, "corrupted": 1}
    shared = ["--task", options.task, "--sites", str(options.sites)]
    shared += [f"--set={name}={value}" for name, value in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        run = in_process if options.toy else in_python
        comparisons(run, Path(folder), [*shared, "--rounds", "1" if options.toy else "3"])


def comparisons(run: Run, folder: Path, words: list[str]) -> None:
    """Print them."""
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


if __name__ == "__main__":
    main()
