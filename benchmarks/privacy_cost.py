# SPDX-License-Identifier: Apache-2.0
"""Who pays for privacy: AUC by hospital, and accuracy by patient group, at several epsilon, method by method.

    python benchmarks/privacy_cost.py --seeds 5

Writes docs/benchmarks/differential-privacy.csv, one row per task, method, epsilon, hospital (or patient group over all
hospitals), with the mean over seeds and its standard deviation. Settings are the same for every cell: no cell is tuned.
"""

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

from fairflare.engine.audit import verify
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local

TASKS = {"heart:full": (10, {"local_steps": 5}), "ist": (10, {"local_steps": 5})}
"""Task -> rounds, settings."""
METHODS = ("fedavg", "fedheal", "cgsv")
EPSILON = (None, 1, 3, 8)
SHARED = {"optimizer": "sgd", "lr": 0.3, "batch_size": 64, "weight_decay": 0.0, "group_by": "sex"}
OUT = Path(__file__).parents[1] / "docs" / "benchmarks" / "differential-privacy.csv"


def results(task: str, method: str, epsilon: float | None, seed: int, most: int = 1000) -> dict[tuple[str, str], float]:
    """(kind, name) -> AUC of a hospital; accuracy of a group, weighed over hospitals by their patients in it."""
    rounds, values = TASKS[task]
    private = {} if epsilon is None else {"trainer": "dp-sgd", "draws": "seed", "epsilon": epsilon}
    config = make_config(method, task, rounds=min(rounds, most), seed=seed, values={**SHARED, **values, **private})
    with tempfile.TemporaryDirectory() as folder:
        run_local(config, Path(folder))
        (found,) = [e["sites"] for e in verify(Path(folder, "audit.jsonl")) if e["event"] == "evaluation"]
    rows, groups = {}, {}
    for site, one in found.items():
        if "auc" in one["test"]:
            rows["hospital", site] = one["test"]["auc"]
        for name, cell in one.get("groups", {}).get("test", {}).items():
            groups.setdefault(name, []).append((cell["n"], cell["value"]))
    for name, cells in groups.items():
        rows["group", name] = sum(n * value for n, value in cells) / sum(n for n, _ in cells)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--toy", action="store_true", help="one round of one method on heart, and no file")
    given = parser.parse_args()
    if given.toy:
        print(results("heart:full", "fedavg", 8, 0, most=1))
        return
    table = []
    for task in given.tasks.split(","):
        for method in METHODS:
            for epsilon in EPSILON:
                each = [results(task, method, epsilon, seed) for seed in range(given.seeds)]
                for kind, name in each[0]:
                    values = [one[kind, name] for one in each if (kind, name) in one]
                    spread = statistics.stdev(values) if len(values) > 1 else 0.0
                    told = (f"{statistics.fmean(values):.4f}", f"{spread:.4f}", len(values))
                    table.append((task, method, epsilon or "none", kind, name, *told))
                print(task, method, epsilon, flush=True)
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("task", "method", "epsilon", "kind", "name", "mean", "sd", "seeds"))
        writer.writerows(table)


if __name__ == "__main__":
    main()
