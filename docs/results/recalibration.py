# SPDX-License-Identifier: Apache-2.0
"""Measures what recalibration after the last round does for FedAvg, and writes docs/results/recalibration.

    python docs/results/recalibration.py [FOLDER] [--toy]

FOLDER keeps the runs (a temporary one by default); finished ones are used again. Each task is run with every seed once;
then ``fairflare after`` takes each step on that run, so that all rows of a seed are of one model. The splits are the
tasks' own and stay, so that intervals are over initial models and the order of training, not over patients.
``--toy`` prints the table of one task, seed, step and round, which says nothing, and writes no results.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kept import SHOWN_TABLES, write_shown  # noqa: E402

from fairflare.core.manifest import versions  # noqa: E402
from fairflare.report.fairness import mean_ci  # noqa: E402
from fairflare.report.values import text, with_interval  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "recalibration"
FILE = RESULTS / "recalibration.csv"
SEEDS = range(5)
TASKS = {"heart:flamby": ("split=train",), "heart:full": (), "ist:countries": ()}
"""Task -> settings of the step: FLamby's split has no validation patients."""
STEPS = {"line": (), "intercept": ("slope=false",)}
BEFORE = "the model as it is"
METRICS = {"brier": "Brier score", "calibration": "absolute calibration in the large"}
OVER = {"mean": "mean over sites", "worst": "worst site"}
Rows = list[dict[str, Any]]


def main() -> None:
    """Run, take the steps, write both CSV files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="keeps the runs")
    parser.add_argument("--toy", action="store_true", help="one of everything; prints and writes no results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        if options.toy:
            print("\n".join(table(measured(folder, next(iter(TASKS)), SEEDS[0], ["line"], "--rounds", "1"))))
            return
        rows = [row for task in TASKS for seed in SEEDS for row in measured(folder, task, seed, STEPS)]
    RESULTS.mkdir(exist_ok=True)
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    write_shown(RESULTS / SHOWN_TABLES, page(rows))


def read() -> Rows:
    """The rows of the file."""
    with FILE.open(newline="", encoding="utf-8") as file:
        numbers = {"seed": int, **dict.fromkeys(METRICS, float)}
        return [{key: numbers.get(key, str)(value) for key, value in row.items()} for row in csv.DictReader(file)]


def measured(folder: Path, task: str, seed: int, steps: Iterable[str], *more: str) -> Rows:
    """One row per way, and site or summary, of one run; ``more``: further words of its command."""
    out = folder / f"{task.replace(':', '-')}-seed{seed}"
    if not (out / "report.json").is_file():
        fairflare("run", "fedavg", "--task", task, "--seed", str(seed), "--out", str(out), "--workers", "1", *more)
    found: Rows = []
    for name in steps:
        settings = [part for pair in (*TASKS[task], *STEPS[name]) for part in ("--set", pair)]
        fairflare("after", str(out), "--step", "recalibrate", *settings)
        section = json.loads((out / "report.json").read_text())["detail"]["after"][-1]
        stages = {"shared": f"one {name} for all", "own": f"{name} of each site's own"}
        stages = ({} if found else {"before": BEFORE}) | stages
        for stage, words in stages.items():
            found += of_stage(section, stage, {"task": task, "seed": seed, "way": words})
    return found


def of_stage(section: dict[str, Any], stage: str, about: dict[str, Any]) -> Rows:
    """A row per site, with signed calibration, and one for mean and worst of the absolute values."""
    summary = section["summary"]
    found = [{**about, "over": over, **{metric: summary[metric][stage][over] for metric in METRICS}} for over in OVER]
    for row in section["rows"]:
        found.append({**about, "over": row["site"], **{m: row["values"][stage][m] for m in METRICS}})
    return found


def page(rows: Rows) -> str:
    """The tables, with how they came about."""
    lines = [
        "# Recalibration after FedAvg",
        "",
        f"`python docs/results/recalibration.py`; seeds {', '.join(map(str, SEEDS))}; {machine()}.",
        "",
        "Means over seeds. In brackets: the mean paired difference from the model as it is, and its 95 % t-interval",
        "over seeds. All rows of a seed use one model and the sites' test splits. Calibration in the large is the mean",
        "predicted risk minus the share of patients with the outcome, here without its sign. The splits do not change",
        "with the seed, so the intervals do not cover other patients. The last column counts the sites whose Brier",
        "score is higher than with the model as it is, a mean over seeds.",
    ]
    for task in TASKS:
        split = "training" if TASKS[task] else "validation"
        lines += [
            "",
            f"## `{task}`, calibrated on {split} patients",
            "",
            *table([r for r in rows if r["task"] == task]),
        ]
    return "\n".join(lines) + "\n"


def table(rows: Rows) -> list[str]:
    """One task's."""
    columns = [(metric, over) for metric in METRICS for over in OVER]
    heads = [f"{METRICS[metric]}, {OVER[over]}" for metric, over in columns]
    sites = sorted({row["over"] for row in rows} - OVER.keys())
    lines = [f"| | {' | '.join(heads)} | sites that lose, of {len(sites)} |", "|---" * (len(columns) + 2) + "|"]
    for way in dict.fromkeys(row["way"] for row in rows):
        cells = [cell(rows, way, metric, over) for metric, over in columns]
        lines.append(f"| {way} | {' | '.join(cells)} | {losers(rows, way, sites)} |")
    return lines


def losers(rows: Rows, way: str, sites: list[str]) -> str:
    """How many sites have a higher Brier score than with the model as it is, a mean over seeds."""
    found = {(row["way"], row["seed"], row["over"]): row["brier"] for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    worse = [found[way, seed, site] > found[BEFORE, seed, site] for seed in seeds for site in sites]
    return text(sum(worse) / len(seeds), 1) if way != BEFORE else ""


def cell(rows: Rows, way: str, metric: str, over: str) -> str:
    """Mean over seeds, and the difference from the model as it is."""

    def values(of: str) -> dict[int, float]:
        return {row["seed"]: row[metric] for row in rows if row["way"] == of and row["over"] == over}

    own, before = values(way), values(BEFORE)
    mean = text(sum(own.values()) / len(own))
    if own == before:
        return mean
    return f"{mean} ({with_interval(mean_ci([own[seed] - before[seed] for seed in own]))})"


def fairflare(*arguments: str) -> None:
    """A command of the package; raises CalledProcessError."""
    subprocess.run([sys.executable, "-m", "fairflare", *arguments], check=True, stdout=subprocess.DEVNULL)


def machine() -> str:
    """What it ran on."""
    found = versions()
    names = ", ".join(f"{name} {found[name]}" for name in sorted(found))
    return f"{names}; {platform.system()} {platform.machine()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
