# SPDX-License-Identifier: Apache-2.0
"""Who pays for privacy: AUC by hospital, and accuracy by patient group, at several epsilon, method by method.

    python benchmarks/privacy_cost.py --seeds 5 --raw FOLDER

Each run leaves a file in FOLDER, and the same command goes on with what is missing. From all that are there it writes
docs/benchmarks/differential-privacy.csv, one row per task, method, epsilon, hospital (or patient group over all
hospitals), with the mean over seeds and its standard deviation, and differential-privacy-losses.csv, what is lost.
Settings are the same for every cell: no cell is tuned.
"""

import argparse
import csv
import json
import os
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fairflare.core.types import Training
from fairflare.data.tensors import Split, TensorData
from fairflare.engine.audit import verify
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.tasks.base import Preset, Task


@dataclass(frozen=True)
class Handwriting(Task):
    """scikit-learn's 1,797 digits of 8 x 8 pixels at four simulated sites; one scan in four has noise (sd .25)."""

    name = "handwriting"
    title = "Handwritten digits of 8 x 8 pixels"
    real = "1,797 images of optdigits (UCI 80, CC BY 4.0), in scikit-learn"
    simulated = "the sites, and noise on one image in four"
    classes = tuple("0123456789")
    attributes: ClassVar = {"scan": ("clear", "noisy")}
    presets: ClassVar = {"small": Preset("4 sites of 800, 500, 300 and 197 images", {}, Training())}
    SIZES: ClassVar = (800, 500, 300, 197)

    def sites(self):
        return {f"site-{n}": f"{n} images" for n in self.SIZES}

    def network(self):
        """1,418 parameters: the fewer, the less noise DP-SGD adds in all."""
        blocks = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*blocks, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16, 10))

    def site_data(self, site):
        pixels, labels = load_digits(return_X_y=True)
        draw = np.random.default_rng(2024)
        order, noisy = draw.permutation(len(labels)), draw.random(len(labels)) < 0.25
        values = pixels.reshape(-1, 1, 8, 8) / 16 + noisy[:, None, None, None] * draw.normal(
            0, 0.25, (len(labels), 1, 8, 8)
        )
        images = (255 * values.clip(0, 1)).round().astype(np.uint8)
        k = list(self.sites()).index(site)
        rows = np.split(order, np.cumsum(self.SIZES)[:-1])[k]
        splits = {}
        ends = (int(0.6 * len(rows)), int(0.7 * len(rows)))
        for part, at in zip(("train", "val", "test"), np.split(rows, ends), strict=True):
            scans = ["noisy" if one else "clear" for one in noisy[at]]
            splits[part] = Split(torch.from_numpy(images[at]), torch.from_numpy(labels[at]), {"scan": scans})
        return TensorData.of(splits, n_classes=10, mean=(0.3,), std=(0.38,))


tasks.ADDED[Handwriting.name] = Handwriting
TASKS = {
    "heart:full": (10, {"local_steps": 5}),
    "ist": (10, {"local_steps": 5}),
    "handwriting:small": (20, {"local_steps": 10, "group_by": "scan"}),
}
"""Task -> rounds, settings."""
HOSPITAL = "fedavg-site"
"""FedAvg with a budget for each hospital in place of each record: secure sums, equal weights."""
METHODS = ("fedavg", "fedheal", "cgsv", HOSPITAL)
EPSILON = (None, 8, 3, 1)
SHARED = {"optimizer": "sgd", "lr": 0.3, "batch_size": 64, "weight_decay": 0.0, "group_by": "sex"}
OUT = Path(__file__).parents[1] / "docs" / "benchmarks" / "differential-privacy.csv"
HEAD = (
    "task",
    "method",
    "epsilon",
    "seeds",
    "mean AUC of hospitals",
    "loses most (AUC)",
    "loses least",
    "accuracy lost",
)


def results(task, method, epsilon, seed, most=1000):
    """(kind, name, value): AUC of a hospital; accuracy of a group, weighed over hospitals by their patients in it."""
    rounds, values = TASKS[task]
    private = {} if epsilon is None else {"trainer": "dp-sgd", "draws": "seed", "epsilon": epsilon}
    if method == HOSPITAL:
        method, private = "fedavg", {"secure_sum": "masks", "site_epsilon": epsilon or 0.0, "weighting": "uniform"}
    config = make_config(method, task, rounds=min(rounds, most), seed=seed, values={**SHARED, **values, **private})
    with tempfile.TemporaryDirectory() as folder:
        run_local(config, Path(folder))
        (found,) = [e["sites"] for e in verify(Path(folder, "audit.jsonl")) if e["event"] == "evaluation"]
        # With a budget a site's exact results stay there.
        own = {site: Path(folder, "sites", f"{site}.results.json") for site in found}
        found |= {site: json.loads(file.read_text())["metrics"] for site, file in own.items() if file.is_file()}
    rows, groups = [], {}
    for site, one in found.items():
        rows += [("hospital", site, one["test"][auc]) for auc in ("auc", "auc_ovr") if auc in one["test"]]
        for name, cell in one.get("groups", {}).get("test", {}).items():
            groups.setdefault(name, []).append((cell["n"], cell["value"]))
    means = {name: sum(n * v for n, v in cells) / sum(n for n, _ in cells) for name, cells in groups.items()}
    return [*rows, *(("group", name, value) for name, value in sorted(means.items()))]


def run_missing(raw, tasks, methods, seeds):
    """A file for every run; seed by seed, so that what is there is of all cells alike."""
    for task in tasks:
        for seed in range(seeds):
            for method in methods:
                for epsilon in EPSILON:
                    file = raw / f"{task.replace(':', '-')}_{method}_{epsilon or 'none'}_{seed}.json"
                    if not file.exists():
                        told = {"task": task, "method": method, "epsilon": epsilon, "seed": seed}
                        told["rows"] = results(task, method, epsilon, seed)
                        file.with_suffix(".part").write_text(json.dumps(told))
                        os.replace(file.with_suffix(".part"), file)
                        print(file.name, flush=True)


def gathered(raw):
    """(task, method, epsilon) -> (kind, name) -> values over seeds, of every file in ``raw``."""
    cells = {(t, m, e): {} for t in TASKS for m in METHODS for e in EPSILON}
    for file in sorted(raw.glob("*.json")):
        told = json.loads(file.read_text())
        of = cells[told["task"], told["method"], told["epsilon"]]
        for kind, name, value in told["rows"]:
            of.setdefault((kind, name), []).append(value)
    return {key: cell for key, cell in cells.items() if cell}


def with_spread(values):
    """Mean, and the standard deviation over seeds where there are several."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def table(cells):
    """The rows of LOSSES; what is lost is paired, seed by seed."""
    lines = []
    for (task, method, epsilon), cell in cells.items():
        hospitals = [statistics.fmean(one) for (kind, _), one in cell.items() if kind == "hospital"]
        seeds = max(map(len, cell.values()))
        base = cells.get((task, method, None), {})
        lost = {
            (kind, name): with_spread([b - v for b, v in zip(base[kind, name], values)])
            for (kind, name), values in cell.items()
            if epsilon and (kind, name) in base
        }
        ranked = sorted((loss for loss in lost.items() if loss[0][0] == "hospital"), key=lambda one: -one[1][0])
        ends = [f"{name} ({mean:+.3f} sd {sd:.3f})" for (_, name), (mean, sd) in (*ranked[:1], *ranked[-1:])]
        groups = ", ".join(f"{n} {mean:+.3f} sd {sd:.3f}" for (kind, n), (mean, sd) in lost.items() if kind == "group")
        ends = ends or ["", ""]
        lines.append([task, method, epsilon or "none", seeds, f"{statistics.fmean(hospitals):.3f}", *ends, groups])
    return lines


def write(cells, out):
    """Both files; rows of tasks of which no run is here stay as they are."""
    fresh = {task for task, *_ in cells}
    with out.open(newline="") as file:
        head, *rows = csv.reader(file)
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([head, *(row for row in rows if row[0] not in fresh)])
        for (task, method, epsilon), cell in cells.items():
            for (kind, name), values in sorted(cell.items()):
                mean, sd = with_spread(values)
                writer.writerow((task, method, epsilon or "none", kind, name, f"{mean:.4f}", f"{sd:.4f}", len(values)))
    losses = out.with_stem(f"{out.stem}-losses")
    with losses.open(newline="") as file:
        kept = [row for row in csv.reader(file) if row[0] not in fresh][1:]
    with losses.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *table(cells), *kept])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--raw", type=Path, default=Path("runs") / "privacy-cost", help="a file for every run")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--toy", action="store_true", help="one round of one method on heart, and no file")
    given = parser.parse_args()
    if given.toy:
        print(results("heart:full", "fedavg", 8, 0, most=1))
        return
    given.raw.mkdir(parents=True, exist_ok=True)
    run_missing(given.raw, given.tasks.split(","), given.methods.split(","), given.seeds)
    write(gathered(given.raw), given.out)


if __name__ == "__main__":
    main()
