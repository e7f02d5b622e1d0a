# SPDX-License-Identifier: Apache-2.0
"""Measures what the defaults reach on a user's folders, beside a tuned FedAvg: docs/results/defaults.md has the table.

    python docs/results/defaults.py FOLDER [--layout NAME] [--toy]

Five usual layouts are made of the embedded tasks, with what usually is odd in them: links, images of 28 pixels,
a site with two validation images of one class, missing labels and masks, gaps in tables. Each goes through ``init``,
``preflight``, ``run fedavg`` and ``predict`` with no setting. Then FedAvg is tuned with the same number of rounds, one
setting after the other on validation data: learning rate, batch, local steps. FOLDER keeps folders and runs; finished
ones are used again. ``--toy`` goes the same way in two rounds, which says nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import five_layouts  # noqa: E402
from fairflare.cli.main import main  # noqa: E402
from fairflare.datasets import heart  # noqa: E402
from fairflare.engine.setup import tasks  # noqa: E402
from fairflare.report.values import text  # noqa: E402
from five_layouts import Case  # noqa: E402

Cases = dict[str, list[Case]]
SITES = ("site-1", "site-2", "site-10")
FACTORS = (1 / 3, 3.0)
"""Of the default learning rate."""
ALLOWED = 0.03
"""By which the default may be behind."""


def digits(first: int, per_site: int, spread: bool = False) -> Cases:
    """Images of the digits 0 to 4, 28 pixels, one look per site; no image twice."""
    found = {}
    for k, site in enumerate(SITES, start=first):
        data = tasks.load("digits", "small").site_data(f"site-{k}").splits["train"]
        order = np.random.default_rng(k).permutation(len(data.labels)).tolist()
        rows = [i for i in order if int(data.labels[i]) < 5][:per_site]
        found[site] = [
            Case(
                data.inputs[i].float().mean(0).numpy().astype(np.uint8)[2:30, 2:30],
                f"digit {int(data.labels[i])}",
                five_layouts.split_of(j, len(rows)),
                {"patient_id": f"{site}/p{j}", "sex": "fm"[j % 2]},
            )
            for j, i in enumerate(rows)
        ]
    return found


def brains(first: int, per_site: int) -> Cases:
    """Sections of the brain with masks of grey (1) and white (2) matter and the ventricles (3), 64 pixels."""
    found = {}
    for k, site in enumerate(SITES, start=first):
        task = tasks.load("brain-seg", "small", images=per_site * 24, site_test_images=4)
        data = task.site_data(f"site-{k}").splits["train"]
        found[site] = []
        for j in range(min(per_site, len(data))):
            masks = data.targets[j].numpy()
            values = (masks * np.arange(1, len(masks) + 1)[:, None, None]).max(0).astype(np.uint8)
            found[site].append(Case(data.inputs[j, 0].numpy(), values, "", {}))
    return found


def hearts() -> Cases:
    """Four hospitals' patients as the files have them: gaps, and whether they are ill."""
    found = {}
    for site in heart.FILES:
        columns, ill = heart.patients(site), heart.diseased(site)
        names = [name for name in heart.COLUMNS if name != "num"]
        found[site] = [
            Case(
                {n: "" if np.isnan(columns[n][i]) else f"{columns[n][i]:g}" for n in names},
                ("healthy", "ill")[ill[i]],
                "",
                {"patient_id": f"{site}-{i}"},
            )
            for i in range(len(ill))
        ]
    return found


LAYOUTS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    "masks beside": ("brain-seg, 64 pixels", lambda root: five_layouts.flat_with_masks(root, brains(1, 40))),
    "class folders": (
        "digits, 28 pixels, links; two validation images of one class at a site",
        lambda root: five_layouts.class_folders(
            root, digits(1, 90), links=root.with_name(f"{root.name}-elsewhere"), splits=True
        ),
    ),
    "Decathlon": ("brain-seg, 64 pixels, NIfTI", lambda root: five_layouts.decathlon(root, brains(4, 40))),
    "CSV and images": ("digits, 28 pixels", lambda root: five_layouts.table_and_images(root, digits(4, 90))),
    "CSV per site": ("heart, four hospitals", lambda root: five_layouts.table_per_site(root, hearts())),
}


def measured(name: str, folder: Path, toy: bool) -> dict[str, Any]:
    """One layout's row: what the default and the tuned run reach."""
    root, runs = folder / name.replace(" ", "-"), folder / "runs" / name.replace(" ", "-")
    if not root.exists():
        LAYOUTS[name][1](root)
    if not (root / "fairflare").exists():
        call("init", root, "--yes")
    call("preflight", root)
    few = ["--rounds", "2"] if toy else []
    default = run(root, runs / "default", *few)
    named = root / "Cleveland.csv" if name == "CSV per site" else root
    call("predict", runs / "default", named, "--out", runs / "predicted", "--force")
    with (runs / "predicted" / "predictions.csv").open(newline="") as file:
        predicted = sum(1 for _ in csv.DictReader(file))
    tuned, chosen = tune(root, runs, default, few)
    return {"layout": name, "predicted": predicted, "default": default, "tuned": tuned, "chosen": chosen}


def tune(root: Path, runs: Path, default: dict[str, Any], few: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The best run by validation: learning rate, then batch, then fewest steps of a round, each at the best so far."""
    training = default["training"]
    best, chosen = default, {}
    for key, values in {
        "lr": [training["lr"] * factor for factor in FACTORS],
        "batch_size": [2 * training["batch_size"]],
        "fewest_steps": [2 * training["fewest_steps"]],
    }.items():
        start = dict(chosen)
        for value in values:
            tried = {**start, key: value}
            name = "-".join(f"{k}={v:g}" for k, v in tried.items())
            pairs = [f"--set={k}={v:g}" if k == "lr" else f"--set={k}={v}" for k, v in tried.items()]
            rounds = few or ["--rounds", str(training["rounds"])]
            found = run(root, runs / name, *pairs, *rounds, "--no-solo")
            if found["val"] > best["val"]:
                best, chosen = found, tried
    return best, chosen


def run(root: Path, out: Path, *options: str) -> dict[str, Any]:
    """A run's means, its worst site, its training settings and the mean of validation."""
    if not (out / "report.json").is_file():
        call("run", "fedavg", "--data", root, "--out", out, "--force", *options)
    report = json.loads((out / "report.json").read_text())
    metric = report["fairness"]["metric"]
    vals = [(row["val_metrics"] or {}).get(metric) for row in report["sites"].values()]
    known = [value for value in vals if value is not None]
    training = json.loads((out / "config.json").read_text())["training"]
    return {
        "metric": metric,
        "mean": report["fairness"]["mean"],
        "worst": report["fairness"]["worst"],
        "n_test": sum(row["n_test"] for row in report["sites"].values()),
        "n_train": min(row["n_train"] for row in report["sites"].values()),
        "val": math.fsum(known) / len(known) if known else -math.inf,
        "training": training,
    }


def call(*arguments: Any) -> None:
    """A command of the package, quietly; what it says is shown where it fails."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main([str(one) for one in arguments])
    except SystemExit as stop:
        if stop.code:
            raise SystemExit(f"{' '.join(map(str, arguments))}\n{said.getvalue()}") from None


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    head = ("layout", "made of", "test examples", "metric", "default: mean (worst)", "tuned: mean (worst)")
    lines = [
        f"| {' | '.join((*head, 'tuned by validation', 'behind'))} |",
        "|---|---|--:|---|--:|--:|---|--:|",
    ]
    for row in rows:
        default, tuned = row["default"], row["tuned"]
        behind = tuned["mean"] - default["mean"]
        how = ", ".join(f"{key} {value:g}" for key, value in row["chosen"].items()) or "the default is best"
        cells = [
            row["layout"],
            LAYOUTS[row["layout"]][0],
            f"{default['n_test']:g}",
            default["metric"].replace("_", " "),
        ]
        cells += [f"{text(one['mean'])} ({text(one['worst'])})" for one in (default, tuned)]
        mark = " (missed)" if behind > ALLOWED else ""
        lines.append(f"| {' | '.join(cells)} | {how} | {behind:+.3f}{mark} |".replace("-0.", "\u22120."))
    return "\n".join(lines)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layout", choices=list(LAYOUTS), action="append")
    parser.add_argument("--toy", action="store_true")
    given = parser.parse_args()
    print(table([measured(name, given.folder, given.toy) for name in given.layout or LAYOUTS]))


if __name__ == "__main__":
    _main()
