# SPDX-License-Identifier: Apache-2.0
"""Tunes and runs what is missing of ``board_list``, and keeps each site's scores.

    FAIRFLARE_DATA=FOLDER python lab/leaderboard/board_run.py RUNS [--only heart,ist] [--arms fedavg] [--until 17:05]
    python lab/leaderboard/board_run.py RUNS --collect      # the scores as lab/leaderboard/results

RUNS keeps a file for each run that has ended; the same command goes on with what is missing. ``board_page.py`` writes
the page from the results. Runs of one arm that differ in the seed alone are trained together where they can be.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import board_list as board
import board_tasks  # which finds the bench of regimes
import regime_run
import torch
from board_list import ARMS, SOURCES, Arm, Source
from regime_run import Late, keep, write
from threadpoolctl import threadpool_limits

from fairflare.core.manifest import all_versions
from fairflare.engine.files import LASTING
from fairflare.engine.setup.config import RunConfig
from fairflare.report.frames import machine
from fairflare.studies.lockstep import in_lockstep, make_together
from fairflare.studies.study import config_of, data_seed_of

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
METRICS = {"brier": "brier_loss", "calibration": "calibration_error", "auc": "auc", "loss": "loss"}
"""Column of the results -> metric of the house."""
WORST = {"brier_loss": 1.0, "calibration_error": 1.0, "auc": 0.0, "loss": 20.0}
"""What a model that diverged gets."""
Run = Mapping[str, Any]
"""Content of a kept file: "sites" site -> split -> metrics, and "cpu_seconds"."""


class Bench:
    """The runs of a folder.

    Args:
        folder: where files of runs that have ended lie.
        until: HH:MM after which none is begun; "": no limit.
    """

    def __init__(self, folder: Path, until: str = "") -> None:
        self.folder, self.until = folder, until

    def runs(self, source: str, key: str, value: float, seeds: Iterable[int]) -> dict[int, Run]:
        """Seed -> the run of an arm with a value of what is tuned; those that are missing are made at once."""
        paths = {seed: self.folder / source / f"{key}-{value:g}-seed{seed}.json" for seed in seeds}
        missing = [seed for seed, path in paths.items() if not path.is_file()]
        if missing:
            if self.until and time.strftime("%H:%M") >= self.until:
                raise Late
            began = time.process_time()
            arm = ARMS[key]
            made = alone if arm.kind != "federated" else federated
            found = made(source, arm, value, missing)
            seconds = (time.process_time() - began) / len(missing)
            for seed, sites in found.items():
                keep(paths[seed], {"sites": sites, "cpu_seconds": round(seconds, 3)})
            print(time.strftime("%H:%M:%S"), source, key, f"{value:g}", missing, f"{seconds:.2f} CPU s", flush=True)
        return {seed: json.loads(path.read_text(encoding="utf-8")) for seed, path in paths.items()}

    def chosen(self, source: str, key: str) -> dict[float, float]:
        """Value that is tried -> the mean validation Brier score; the smallest one's is judged."""
        return {
            value: mean(
                mean(site["val"]["brier_loss"] for site in run["sites"].values())
                for run in self.runs(source, key, value, board.TUNING_SEEDS).values()
            )
            for value in ARMS[key].tried(SOURCES[source])
        }

    def judged(self, source: str, key: str, seeds: Sequence[int]) -> tuple[float, dict[int, Run]]:
        """The chosen value, and seed -> run."""
        tried = self.chosen(source, key)
        value = min(tried, key=lambda one: tried[one])
        return value, self.runs(source, key, value, seeds)


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def config(source: str, arm: Arm, value: float, seed: int) -> RunConfig:
    of: Source = SOURCES[source]
    training = {"optimizer": "sgd", "momentum": 0.0, "batch_size": board.BATCH, "local_steps": board.STEPS}
    values = {"robust": "off", "min_sites": 1, **training, "task.source": source}
    over = {"lr": value, **arm.over}
    return config_of(arm.label, "board:board", seed, {"rounds": of.rounds, "values": values}, draw=True, over=over)


def federated(source: str, arm: Arm, value: float, seeds: Sequence[int]) -> dict[int, Any]:
    found: dict[str, Any] = {}

    def one(name: str, made: RunConfig) -> None:
        before = LASTING.set(False)
        try:
            lines = regime_run.executed(made, place / name)
        finally:
            LASTING.reset(before)
        (sites,) = (line["sites"] for line in lines if line["event"] == "evaluation")
        found[name] = {site: read(of["personal"] if arm.own else of) for site, of in sites.items()}
        shutil.rmtree(place / name)

    place = Path(tempfile.mkdtemp(prefix="board-"))
    try:
        configs = {f"seed-{seed}": config(source, arm, value, seed) for seed in seeds}
        together = in_lockstep(configs, place) if stackable(arm) else {}
        for name, made in configs.items():
            if name not in together:
                one(name, made)
        if together:
            make_together(together, one)
    finally:
        shutil.rmtree(place)
    return {seed: found[f"seed-{seed}"] for seed in seeds}


def stackable(arm: Arm) -> bool:
    """Whether the trainer's steps can be computed for several runs at once."""
    from fairflare.core.registry import get_method, get_trainer
    from fairflare.studies.labels import split_method
    from fairflare.trainers.vmap_training import STACKABLE

    return get_trainer(get_method(split_method(arm.label)[0]).trainer) in STACKABLE and not arm.over


def alone(source: str, arm: Arm, value: float, seeds: Sequence[int]) -> dict[int, Any]:
    found = {}
    for seed in seeds:
        sites = board_tasks.alone(arm.kind, value, board_tasks.parts_of(source, data_seed_of(seed)))
        found[seed] = {site: read(of) for site, of in sites.items()}
    return found


def read(of: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Split -> metric -> value, of what a site's evaluation holds."""
    return {split: {name: of[split].get(name, worst) for name, worst in WORST.items()} for split in ("val", "test")}


def collect(bench: Bench, results: Path, sources: Iterable[str]) -> None:
    """What has ended of these tasks: a row per task, arm, seed and site, and what each arm has tried."""
    values, tried = [], []
    for source in sources:
        for key in ARMS:
            try:
                of = bench.chosen(source, key)
            except Late:
                continue
            best = min(of, key=lambda one: of[one])
            for value in of:
                trials = bench.runs(source, key, value, board.TUNING_SEEDS).values()
                spent = sum(run["cpu_seconds"] for run in trials)
                tried.append([source, key, f"{value:g}", f"{of[value]:.5f}", int(value == best), f"{spent:.2f}"])
            for seed in board.SEEDS:
                path = bench.folder / source / f"{key}-{best:g}-seed{seed}.json"
                run = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"sites": {}}
                for site, splits in run["sites"].items():
                    cells = [f"{splits['test'][name]:.4f}" for name in METRICS.values()]
                    values.append([source, key, seed, site, *cells, run["cpu_seconds"]])
    write(results / "values.csv", ["task", "arm", "seed", "site", *METRICS, "cpu_seconds"], values)
    write(results / "tried.csv", ["task", "arm", "value", "validation", "chosen", "cpu_seconds"], tried)
    about = {
        "command": "FAIRFLARE_DATA=FOLDER python lab/leaderboard/board_run.py RUNS",
        "commit": commit(),
        "versions": all_versions(),
        "machine": machine(),
    }
    (results / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def commit() -> str:
    done = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", "board_list.py"], cwd=HERE, capture_output=True, text=True
    )
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or collect."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(board.JUDGED), help="tasks")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", default=",".join(map(str, board.SEEDS)))
    parser.add_argument("--until", default="", help="HH:MM after which no run is begun")
    parser.add_argument("--collect", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    os.environ.setdefault("FAIRFLARE_REGIMES", str(options.folder))  # where features are kept
    sources = options.only.split(",")
    if options.collect:
        return collect(Bench(options.folder, "00:00"), options.results, sources)
    bench = Bench(options.folder, options.until)
    try:
        with threadpool_limits(1):
            for source in sources:
                for key in options.arms.split(","):
                    bench.judged(source, key, list(map(int, options.seeds.split(","))))
    except Late:
        print("late: the same command goes on", flush=True)
    return None


if __name__ == "__main__":
    main()
