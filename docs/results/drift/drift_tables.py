# SPDX-License-Identifier: Apache-2.0
"""Makes the files of the measurements of client drift, from the predictions that ``drift_run.py`` has kept.

    python docs/results/drift/drift_tables.py FOLDER   # values.csv, and what follows from it
    python docs/results/drift/drift_tables.py          # joining.csv from values.csv
    python docs/results/drift/drift_tables.py --differences FILE   # every paired difference as one CSV file

A difference is taken per deal, arm minus reference, on the same patients. Its interval is Student's t over deals times
sqrt(1 + J n_test / n_train), since J deals share patients (Nadeau and Bengio, Machine Learning 52, 2003, section 3); it
covers other training and test patients of the same hospitals. "better" and "worse" need zero outside of it. Every
difference follows from ``values.csv``: ``read(DIFFERENCES)`` computes them, and no file keeps them.
"""

from __future__ import annotations

import argparse
import csv
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "study"))
import answers  # noqa: E402
import drift_plan as plan  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402

VALUES, DIFFERENCES, JOINING = HERE / "values.csv", HERE / "differences.csv", HERE / "joining.csv"
HIGHER = {"brier": False, "accuracy": True, "auc": True}
LEAST = 5
"""Test patients of either class that an area under the curve needs."""
LEVEL = 0.95
CANNOT = "cannot be told"
DIFFERENCE = ["task", "arm", "versus", "over", "metric", "value", "mean", "low", "high", "verdict", "together"]
JOINED = [
    "task",
    "arm",
    "metric",
    "gains",
    "cannot_be_told",
    "loses",
    "lower",
    "gains_together",
    "loses_together",
    "of",
]
Table = dict[str, dict[str, np.ndarray]]
"""Arm -> site, "mean" or "worst" -> (deals,) of one metric."""


def main() -> None:
    """Values, if a folder is given, then the rest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--differences", type=Path, metavar="FILE", help="write every paired difference there")
    options = parser.parse_args()
    if options.folder:
        found = [line for task in (*plan.TASKS, plan.NATURAL) for line in scored(task, options.folder)]
        header = ["task", "deal", "site", "n_train", "n", "positives", "metric", *(arm.key for arm in plan.ARMS)]
        write(VALUES, [header, *found])
    rows, joined = compared()
    write(JOINING, joined)
    if options.differences:
        write(options.differences, rows)


def scored(task: plan.Measured, folder: Path) -> list[list[Any]]:
    """A line of ``values.csv`` per deal, site and metric, with a column per arm, "" where it is not complete."""
    found: dict[tuple[Any, ...], dict[str, str]] = {}
    for arm in plan.arms(task):
        files = [folder / task.key / "predictions" / f"{arm.key}-deal{deal}.npz" for deal in range(task.deals)]
        for deal, file in enumerate(files if all(file.is_file() for file in files) else []):
            with np.load(file) as kept:
                for site in dict.fromkeys(name.split("/")[0] for name in kept):
                    z, y = kept[f"{site}/test/z"], kept[f"{site}/test/y"]
                    about = (task.key, deal, site, int(kept[f"{site}/train/n"]), len(y), int(y.sum()))
                    for metric, value in of_site(z, y).items():
                        found.setdefault((*about, metric), {})[arm.key] = value
    return [[*about, *(own.get(arm.key, "") for arm in plan.ARMS)] for about, own in found.items()]


def of_site(z: np.ndarray, y: np.ndarray) -> dict[str, str]:
    """Brier score, accuracy and area under the curve, "" with too few patients of a class."""
    enough = min(np.bincount(y, minlength=2)) >= LEAST
    brier, accuracy = float(answers.squared(z, y).mean()), float(answers.correct(z, y).mean())
    return {
        "brier": f"{brier:.5f}", "accuracy": f"{accuracy:.5f}", "auc": f"{roc_auc_score(y, z):.5f}" if enough else ""
    }  # fmt: skip


def values(task: str, metric: str) -> Table:
    """One metric of every arm of a task: of sites that have it with every deal, their mean and the worst of them."""
    cells: dict[str, dict[str, list[float]]] = {}
    rows = [row for row in read(VALUES) if (row["task"], row["metric"]) == (task, metric)]
    for arm in (arm.key for arm in plan.ARMS if any(row[arm.key] for row in rows)):
        for row in rows:
            cells.setdefault(arm, {}).setdefault(row["site"], []).append(float(row[arm] or "nan"))
    found: Table = {}
    for arm, sites in cells.items():
        own = {site: np.array(of) for site, of in sites.items() if np.isfinite(of).all()}
        every = np.stack(list(own.values()))
        found[arm] = {
            "mean": every.mean(0), "worst": every.min(0) if HIGHER[metric] else every.max(0), **own
        }  # fmt: skip
    return found


def ratio(task: str) -> float:
    """Test patients per training patient."""
    rows = [row for row in read(VALUES) if (row["task"], row["metric"]) == (task, "brier")]
    return sum(int(row["n"]) for row in rows) / sum(int(row["n_train"]) for row in rows)


def interval(differences: np.ndarray, share: float, level: float = LEVEL) -> tuple[float, float, float]:
    """Mean and the two ends of the widened interval.

    Args:
        differences: (deals,), at least two.
        share: test patients per training patient.
        level: of the interval.
    """
    n, mean = len(differences), float(differences.mean())
    spread = float(differences.std(ddof=1)) * np.sqrt(1 / n + share)
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * spread
    return mean, mean - half, mean + half


def verdict(low: float, high: float, higher: bool) -> str:
    """By the interval alone."""
    if low <= 0 <= high:
        return CANNOT
    return "better" if (low > 0) == higher else "worse"


def compared() -> tuple[list[list[Any]], list[list[Any]]]:
    """Every paired difference and the lines of ``joining.csv``, each below a header."""
    rows: list[list[Any]] = [DIFFERENCE]
    joined: list[list[Any]] = [JOINED]
    for task in (task for task in plan.TASKS if values(task.key, "brier")):
        share = ratio(task.key)
        for metric in HIGHER:
            table = values(task.key, metric)
            sites = [over for over in table["solo"] if over not in ("mean", "worst")]
            alone = sites if metric == "brier" or (metric == "accuracy" and len(sites) < 5) else []
            for versus in (versus for versus in plan.VERSUS if versus in table):
                overs = [*(["mean"] if metric == "auc" else ["mean", "worst"]), *(alone if versus == "solo" else [])]
                for arm in (arm for arm in table if arm != versus):
                    told = [line_of(table, arm, versus, over, HIGHER[metric], share, len(sites)) for over in overs]
                    rows += [[task.key, arm, versus, over, metric, *line] for over, line in zip(overs, told)]
                    if versus == "solo" and alone:
                        joined.append([task.key, arm, metric, *counted(told[-len(sites) :], HIGHER[metric])])
    return rows, joined


def line_of(table: Table, arm: str, versus: str, over: str, higher: bool, share: float, sites: int) -> list[str]:
    """value, mean, low, high, verdict, and of a site the verdict by intervals for all sites together (Bonferroni)."""
    differences = table[arm][over] - table[versus][over]
    mean, low, high = interval(differences, share)
    together = verdict(*interval(differences, share, 1 - (1 - LEVEL) / sites)[1:], higher)
    numbers = [f"{value:.5f}" for value in (table[arm][over].mean(), mean, low, high)]
    return [*numbers, verdict(low, high, higher), "" if over in ("mean", "worst") else together]


def counted(lines: Sequence[Sequence[str]], higher: bool) -> list[int]:
    """Sites that gain, cannot tell, lose; whose mean is on the losing side; that gain, lose by intervals together."""
    verdicts, together = [line[4] for line in lines], [line[5] for line in lines]
    lower = sum((float(line[1]) < 0) == higher and float(line[1]) != 0 for line in lines)
    single = [verdicts.count(said) for said in ("better", CANNOT, "worse")]
    return [*single, lower, together.count("better"), together.count("worse"), len(lines)]


def write(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    """As CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


@functools.cache
def differences() -> list[dict[str, str]]:
    """A line per paired difference."""
    rows, _ = compared()
    return [dict(zip(DIFFERENCE, row)) for row in rows[1:]]


def read(path: Path) -> list[dict[str, str]]:
    """Its lines, or those of ``DIFFERENCES``; none if it is not there."""
    if path == DIFFERENCES:
        return differences()
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
