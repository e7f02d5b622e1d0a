# SPDX-License-Identifier: Apache-2.0
"""The same federation by FairFLARE, by FLARE's own FedAvgRecipe and by Flower over Ray: CPU and wall time per round.

    python benchmarks/peers.py [--rounds 5 25] [--repeats 3] [--images 1200] [--flower PYTHON]

Eight sites of ``ich-phantom:small``, its small CNN and one epoch of Adam per round after one pass over the validation
split, the same tensors for everyone. A framework's cost per round is what a run of many rounds costs beyond one of few,
divided by the rounds between: start and end of a run do not count. CPU time is that of all processes of a run. The
frameworks take turns. Flower needs ``pip install 'fairflare[peers]'``, or ``--flower`` names the Python of an
environment that has it; without it its line is left out.

``--toy`` runs two sites once, ours in process, at a size that says nothing about speed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts

SCRIPTS = Path(__file__).with_name("peer_scripts")
OURS, FLARE = "fairflare, simulator", "FLARE's FedAvgRecipe, simulator"
SUBREAPER = 36
"""Linux's PR_SET_CHILD_SUBREAPER: orphans of a run become this process's children, so that their time counts."""
SILENT = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Nobody is told of a benchmark."""
Cost = tuple[float, float]
"""CPU and wall seconds."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, nargs=2, default=(5, 25))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--flower", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--toy", action="store_true", help="two sites, once")
    options = parser.parse_args()
    if options.toy:
        options.rounds, options.repeats, options.images, options.sites = (0, 1), 1, 80, 2
    with tempfile.TemporaryDirectory() as folder, adopting():
        write_tensors(options, Path(folder))
        os.environ |= {"PEER_DATA": folder, "OMP_NUM_THREADS": "1", **SILENT}
        found: dict[str, list[Cost]] = {}
        for _ in range(options.repeats):
            for name, command in frameworks(options).items():
                found.setdefault(name, []).append(per_round(command, *options.rounds))
    show(options, found)


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Within: orphans become this process's children, where the system can do that."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *numbers: None
    prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(SUBREAPER, 0, 0, 0, 0)


def values(options: argparse.Namespace) -> dict[str, int]:
    """FairFLARE's settings: the plain loss, and no shared test sets, which only a simulated task has."""
    return {"images": options.images, "logit_tau": 0, "test_images": 20, "site_test_images": 0, "corrupted": 1}


def write_tensors(options: argparse.Namespace, folder: Path) -> None:
    """Every site's inputs and targets, as FairFLARE's network gets them."""
    config = make_config("fedavg", "ich-phantom:small", rounds=1, sites=options.sites, values=values(options))
    parts = build_parts(config)
    for name in parts.task.sites():
        data, content = parts.task.site_data(name), {}
        for split in ("train", "val"):
            batches = list(data.fixed(split, 64))
            content[f"{split}_inputs"] = torch.cat([batch.inputs for batch in batches])
            content[f"{split}_targets"] = torch.cat([batch.targets for batch in batches])
        torch.save(content, folder / f"{name}.pt")


def frameworks(options: argparse.Namespace) -> dict[str, Callable[[int, str], list[str]]]:
    """Name -> (rounds, an empty folder) -> the command of a run."""
    sites = str(options.sites)
    pairs = [word for key, value in values(options).items() for word in ("--set", f"{key}={value}")]
    run = [sys.executable, "-m", "fairflare", "run", "fedavg", "--task", "ich-phantom:small", "--sites", sites, *pairs]
    recipe, flower = str(SCRIPTS / "flare_recipe.py"), str(SCRIPTS / "flower_app.py")
    env = "local" if options.toy else "sim"
    found: dict[str, Callable[[int, str], list[str]]] = {
        OURS: lambda rounds, folder: [*run, "--rounds", str(rounds), "--env", env, "--out", f"{folder}/run"],
        FLARE: lambda rounds, folder: [sys.executable, recipe, str(rounds), sites, f"{folder}/run"],
    }
    if not options.toy:
        found["fairflare, in process"] = lambda rounds, folder: [
            *run,
            "--rounds",
            str(rounds),
            "--out",
            f"{folder}/run",
        ]
        if has_flower(options.flower):
            found["Flower over Ray"] = lambda rounds, folder: [options.flower, flower, str(rounds), sites]
    return found


def has_flower(python: str) -> bool:
    """Whether an environment has Flower and Ray."""
    return not subprocess.run([python, "-c", "import flwr, ray"], capture_output=True).returncode


def per_round(command: Callable[[int, str], list[str]], few: int, many: int) -> Cost:
    """What a round costs: a long run less a short one. With 0 in place of ``few`` the whole long run is divided."""
    short, long = (cost_of(command, rounds) if rounds else (0.0, 0.0) for rounds in (few, many))
    return (long[0] - short[0]) / (many - few), (long[1] - short[1]) / (many - few)


def cost_of(command: Callable[[int, str], list[str]], rounds: int) -> Cost:
    """CPU seconds of all processes and wall seconds of one run.

    Raises:
        RuntimeError: it failed; the last of what it printed.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command(rounds, folder), cwd=SCRIPTS, capture_output=True, text=True)
        wall = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"{done.args[:3]} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
        reap()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def reap(seconds: float = 20.0) -> None:
    """Wait for the orphans that a run has left, whose time counts once they have ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not found:
            time.sleep(0.1)


def show(options: argparse.Namespace, found: dict[str, list[Cost]]) -> None:
    """A table of medians, and everyone's CPU beside that of FLARE's own recipe."""
    few, many = options.rounds
    print(f"{options.sites} sites, {options.images} images, rounds {few} to {many}, medians of {options.repeats}")
    costs = {name: [statistics.median(column) for column in zip(*pairs)] for name, pairs in found.items()}
    for name, (cpu, wall) in costs.items():
        ratio = statistics.median(own[0] / peer[0] for own, peer in zip(found[name], found[FLARE]))
        print(f"{name}: {cpu:.2f} CPU s and {wall:.2f} s per round, CPU / FLARE's recipe {ratio:.2f}")
    print("goal: fairflare / FLARE's recipe in the simulator at most 1.1")


if __name__ == "__main__":
    main()
