# SPDX-License-Identifier: Apache-2.0
"""What four hundred hospitals cost in process, one by one and stacked.

    python benchmarks/many_sites.py [--rounds 10] [--repeats 3] [--least 1]

``--toy`` runs the same code at a size that says nothing about speed, as the tests do.

FedAvg on ``ist:hospitals`` (466 hospitals, logistic regression), one thread. A run that trains its sites one by one and
one that computes their steps in batched calls (``stacked=true``) take turns, in the same process and after a short run
of each; both with everything that a run does: preflight, validation, gate, audit log, checkpoint, final evaluation.
Printed are rounds per second (wall), the median over pairs of the ratio of process CPU time, the same for training
alone, and the largest difference between the two final models, beside the largest weight.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from fairflare.core.types import StateDict
from fairflare.engine.in_process import Replay
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.trainers import vmap_training as together
from fairflare.trainers.base import PlainTrainer

KINDS = {"one by one": False, "stacked": True}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--least", type=int, default=1, help="patients of a hospital that takes part")
    parser.add_argument("--toy", action="store_true", help="the smallest sizes")
    options = parser.parse_args()
    if options.toy:
        options.rounds, options.repeats, options.least = 1, 1, 200
    torch.set_num_threads(1)
    configs = {kind: config(options, stacked) for kind, stacked in KINDS.items()}
    sites = len(build_parts(configs["stacked"]).task.sites())
    print(f"torch {torch.__version__}, 1 thread; {sites} hospitals, {options.rounds} rounds")
    for kind in KINDS:
        run(config(options, KINDS[kind], rounds=1))
    found: dict[str, list[tuple[float, float, float, StateDict]]] = {kind: [] for kind in KINDS}
    for _ in range(options.repeats):
        for kind, made in configs.items():
            found[kind].append(run(made))
    report(found, options.rounds)


def config(options: argparse.Namespace, stacked: bool, rounds: int | None = None) -> RunConfig:
    """The run."""
    values = {"least": options.least, "stacked": stacked}
    return make_config("fedavg", "ist:hospitals", rounds=rounds or options.rounds, values=values)


def run(made: RunConfig) -> tuple[float, float, float, StateDict]:
    """CPU seconds of a run and of its training alone, wall seconds, the final model."""
    parts, clock = build_parts(made), TrainingClock()
    with tempfile.TemporaryDirectory() as folder, clock:
        cpu, wall = time.process_time(), time.perf_counter()
        model = run_local(made, Path(folder), parts=parts)
        return time.process_time() - cpu, clock.seconds, time.perf_counter() - wall, model


class TrainingClock:
    """Within: CPU seconds spent in the sites' training, be it alone or together."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._places = ((PlainTrainer, "train"), (Replay, "train"), (together, "_trained"))

    def __enter__(self) -> None:
        self._kept = [(place, name, vars(place).get(name)) for place, name in self._places]
        for place, name in self._places:
            setattr(place, name, self._timed(getattr(place, name)))

    def __exit__(self, *error: object) -> None:
        for place, name, kept in self._kept:
            delattr(place, name) if kept is None else setattr(place, name, kept)

    def _timed(self, function):
        def timed(*args):
            started = time.process_time()
            try:
                return function(*args)
            finally:
                self.seconds += time.process_time() - started

        return timed


def report(found: dict[str, list[tuple[float, float, float, StateDict]]], rounds: int) -> None:
    """Print the figures."""
    for kind, runs in found.items():
        cpu, training, wall = (statistics.median(one[k] for one in runs) for k in range(3))
        print(f"{kind}: {rounds / wall:.2f} rounds/s, CPU {cpu:.2f} s, {training:.2f} s of it training")
    pairs = list(zip(found["stacked"], found["one by one"]))
    for k, what in enumerate(("whole run", "training alone")):
        print(f"CPU, stacked / one by one, {what}: {statistics.median(a[k] / b[k] for a, b in pairs):.3f}")
    one, two = (found[kind][0][3] for kind in KINDS)
    difference = max(float((one[key] - two[key]).abs().max()) for key in one)
    print(f"largest difference of the models: {difference:.2e}, largest weight {max_of(one):.2f}")


def max_of(model: StateDict) -> float:
    """The largest absolute weight."""
    return max(float(value.abs().max()) for value in model.values())


if __name__ == "__main__":
    main()
