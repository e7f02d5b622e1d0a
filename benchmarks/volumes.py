# SPDX-License-Identifier: Apache-2.0
"""What the papers' methods hold at most in a run on volumes, and what networks come to by rounds and CPU seconds.

python benchmarks/volumes.py fedavg fedlwr ...
python benchmarks/volumes.py --models small-unet3d small-unet-slices --rounds 60 --seeds 0 1

Three sites in one process, one torch thread. The second prints a line of JSON a round: CPU seconds of training and
validation so far, and the Dice on validation volumes in the mean over the sites; the last line of a run has the tests'.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

METHODS = ("fedavg", "fedlwr", "fedism-plus", "fedheal", "fedce", "fedufo")


TOY = {"images": 64, "site_test_images": 0, "size": 32, "patch": 16, "patches": 1}


def measured(method: str, rounds: int, options: dict[str, object]) -> None:
    """Run in this process and print its peak memory and CPU time, data included."""
    from fairflare.engine.setup.config import make_config
    from fairflare.engine.setup.local import run_local

    level = {"level": "client"} if method == "fedufo" else {}
    with tempfile.TemporaryDirectory() as folder:
        run_local(make_config(method, "brain-seg3d:small", rounds=rounds, values={**options, **level}), Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{method}: peak {peak:.1f} MiB, {time.process_time():.1f} CPU s for {rounds} rounds", flush=True)


class Curve:
    """Prints what rounds and the final evaluation say of Dice, with the CPU seconds since the first round began."""

    def __init__(self, **about: object) -> None:
        self.about, self.start = about, 0.0

    def saw(self, entry: Mapping[str, Any]) -> None:
        """Called after every line of the audit log; the first is the header."""
        now = time.process_time()
        if entry["event"] == "round":
            dice = {"val": fmean(one["metrics"]["dice"] for one in entry["accepted"].values())}
            print(
                json.dumps({**self.about, "round": entry["round"], "cpu_s": round(now - self.start, 1), **dice}),
                flush=True,
            )
        elif entry["event"] == "evaluation":
            sites = entry["sites"].values()
            found = {key: fmean(one["test"][key] for one in sites) for key in ("dice", "surface_dice", "hd95")}
            found["trivial"] = fmean(one["trivial"]["test"]["dice"] for one in sites)
            print(json.dumps({**self.about, "test": found}), flush=True)
        else:
            self.start = now


def curve(model: str, rounds: int, seed: int, options: Mapping[str, object]) -> None:
    """FedAvg with the network ``model``, in this process."""
    from fairflare.engine.setup.config import make_config
    from fairflare.engine.setup.local import run_local

    values = {**options, "model": model}
    with tempfile.TemporaryDirectory() as folder:
        config = make_config("fedavg", "brain-seg3d:small", rounds=rounds, seed=seed, values=values)
        run_local(config, Path(folder), observers=[Curve(model=model, seed=seed, **options)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="in this process, one method")
    parser.add_argument("--toy", action="store_true", help="one method on tiny volumes, for tests")
    parser.add_argument("--models", nargs="+", default=[], help="FedAvg with each of these networks, round by round")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=NUMBER", help="with --models: settings of the run")
    given = parser.parse_args()
    if given.models:
        options = {key: json.loads(text) for key, text in (pair.split("=") for pair in given.set)}
        for seed in given.seeds:
            for model in given.models:
                curve(model, given.rounds, seed, options)
        return
    if given.toy:
        measured("fedavg", 1, TOY)
        return
    if given.here:
        measured(given.methods[0], given.rounds, {})
        return
    for method in given.methods:  # a process each, whose peak is its own
        subprocess.run([sys.executable, __file__, method, "--rounds", str(given.rounds), "--here"], check=True)


if __name__ == "__main__":
    main()
