# SPDX-License-Identifier: Apache-2.0
"""What sites in worker processes save beside one process, and what they cost in CPU time.

    python benchmarks/workers.py [--workers 2] [--rounds 3] [--repeats 3] [--sites 8] [--images 1400] [--size 64]
        [--model small-cnn] [--method fedavg] [--toy]

The same run with one process and with workers, in turn, after one of each that is not counted (rendered images and
imports). Ratios are medians over repeats: of the wall time of the rounds (exchange and aggregation), of the wall time
of the whole run with its processes' start and end, and of the CPU time of all processes. The models must be the same
bits, or the script fails. A wall ratio needs as many idle cores as there are workers.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

from fairflare.core.workers import start_method, usable_cores
from fairflare.engine.files import AUDIT
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.local import LocalSites, run_local
from fairflare.engine.setup.parts import build_parts

GOAL = 0.6
"""Wall with two workers / wall of one process, on two idle cores."""


def main() -> None:
    """Measure and print."""
    options = parse()
    values = {"model": options.model, "images": options.images, "size": options.size, "corrupted": 1}
    values |= {"test_images": 40, "site_test_images": 40, "batch_size": 32}
    task = {"rounds": options.rounds, "sites": options.sites, "values": values}
    config = make_config(options.method, "ich-phantom:small", **task)
    print(f"{usable_cores()} cores, {options.workers} workers ({start_method()}), 1 thread per process")
    for count in () if options.toy else (1, options.workers):
        measured(config, count)
    pairs = [(measured(config, 1), measured(config, options.workers)) for _ in range(options.repeats)]
    names = ("wall of the rounds", "wall of the whole run", "CPU of all processes")
    for k, name in enumerate(names):
        one, several = (statistics.median(pair[side][k] for pair in pairs) for side in (0, 1))
        ratio = statistics.median(pair[1][k] / pair[0][k] for pair in pairs)
        goal = f"   (goal: at most {GOAL} with 2 on 2 idle cores)" if k == 0 else ""
        print(f"{name}: {one:.2f} s in one process, {several:.2f} s with workers, ratio {ratio:.3f}{goal}")
    if len({found[-1] for pair in pairs for found in pair}) > 1:
        raise SystemExit("the models differ")
    print("the models are the same bits")


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--images", type=int, default=1400)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--model", choices=["resnet18", "small-cnn"], default="small-cnn")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes")
    options = parser.parse_args()
    if options.toy:
        options.rounds, options.repeats, options.sites, options.images, options.size = 1, 1, 2, 80, 32
    return options


def measured(config: RunConfig, workers: int) -> tuple[float, float, float, str]:
    """Seconds of the rounds, of the whole run and of CPU time, and the final model's hash."""
    parts, cpu, started = build_parts(config), cpu_seconds(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        with LocalSites(config, Path(folder), parts, workers) as sites:
            final = run_local(config, Path(folder), parts=parts, sites=sites)
        whole, used = time.perf_counter() - started, cpu_seconds() - cpu
        entries = [json.loads(line) for line in (Path(folder) / AUDIT).read_text().splitlines()]
    rounds = [entry["seconds"] for entry in entries if entry["event"] == "round"]
    return sum(r["exchange"] + r["aggregate"] for r in rounds), whole, used, model_hash(final)


def cpu_seconds() -> float:
    """Of this process and of those that have ended."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
