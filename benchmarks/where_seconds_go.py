# SPDX-License-Identifier: Apache-2.0
"""Where the CPU seconds of a run go, from command to report, by part; beside those of another version.

    python benchmarks/where_seconds_go.py [--rounds 8] [--methods fedavg] [--repeats 3] [--before FOLDER]
        [--task heart] [--seeds 0,1,2]

With ``--seeds`` it is one `compare` of the methods, and not a run of each. FOLDER holds the other version's package
``fairflare``; both run in turn. Sites, server and report share one process, so that its CPU time is all there is: wall
time would tell of whatever else the machine does. Rendered images are cached, and the first run, which renders them, is
not counted.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parents[1] / "custom"
LOOP = "fairflare.engine.loop"
PARTS = {
    "data and preflight": (LOOP, "Federation", "_open"),
    "rounds": (LOOP, "Federation", "_round"),
    "evaluation at the sites": (LOOP, "Federation", "_evaluate"),
    "benefit of joining": ("fairflare.engine.exchanges.benefit", "BenefitAtServer", "run"),
    "scoring": (LOOP, "Federation", "_log_scores"),
    "page": ("fairflare.report.write", "", "write_report"),
}
"""Part -> module, class and function; what they call of one another counts once, where it is called last."""
REST = "imports and the rest"
ALONE = "--alone"
"""Before a file and a command's words: run it in this process and write its seconds there."""
TOY = ("--task", "digits:small", "--sites", "4", "--set", "images_per_site=64", "--set", "test_images=20")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--task", default="ich-phantom:small")
    parser.add_argument("--seeds")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedism-plus"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--toy", action="store_true", help="one run of one round")
    options = parser.parse_args()
    packages = {"now": HERE, **({"before": options.before.resolve()} if options.before else {})}
    compared = [["compare", *options.methods, "--seeds", options.seeds]] if options.seeds else []
    for begin in (compared or [["run", method] for method in options.methods])[: 1 if options.toy else None]:
        task = TOY if options.toy else ("--task", options.task)
        words = [*begin, *task, "--rounds", "1" if options.toy else str(options.rounds)]
        if not options.toy:
            seconds(words, HERE)
        found = [
            {name: seconds(words, package) for name, package in packages.items()}
            for _ in range(1 if options.toy else options.repeats)
        ]
        print(f"{' '.join(begin)}, CPU seconds: {', '.join(packages)}" + ", ratio" * (len(packages) > 1))
        for part in (*PARTS, REST, "all"):
            medians = [statistics.median(one[name][part] for one in found) for name in packages]
            if options.before:  # the median of the pairs
                medians.append(statistics.median(one["now"][part] / max(one["before"][part], 0.01) for one in found))
            print(f"  {part}: {' '.join(f'{one:.2f}' for one in medians)}")


def seconds(words: list[str], package: Path) -> dict[str, float]:
    """CPU seconds of a run by part, and of "all"; raises CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds.json"
        command = [sys.executable, __file__, ALONE, str(file), *words, "--workers", "1", "--out", f"{folder}/run"]
        env = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        found: dict[str, float] = json.loads(file.read_text())
    return found


def alone(file: Path, words: list[str]) -> None:
    """Run a command and write its CPU seconds by part."""
    found, asked, last = dict.fromkeys((*PARTS, REST), 0.0), [REST], [0.0]

    def lap() -> None:
        now = time.process_time()
        found[asked[-1]] += now - last[0]
        last[0] = now

    def watched(part: str, function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            lap()
            asked.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                lap()
                asked.pop()

        return call

    for part, (module, cls, name) in PARTS.items():
        owner = importlib.import_module(module)
        owner = getattr(owner, cls) if cls else owner
        setattr(owner, name, watched(part, getattr(owner, name)))
    try:
        importlib.import_module("fairflare.cli.main").main(words)
    except SystemExit as end:
        if end.code:
            raise
    lap()
    file.write_text(json.dumps({**found, "all": sum(found.values())}))


if __name__ == "__main__":
    alone(Path(sys.argv[2]), sys.argv[3:]) if sys.argv[1:2] == [ALONE] else main()
