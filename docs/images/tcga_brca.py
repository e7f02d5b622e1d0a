# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/tcga-brca.svg, FLamby's survival benchmark beside the exact Cox model, from docs/results.

python docs/images/tcga_brca.py
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
TABLE = HERE.parent / "results" / "flamby-tcga-brca"
TITLES = {
    "cox": "exact Cox, stratified by region",
    "age-fedavg": "FedAvg, age in standard deviations",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedadagrad": "FedAdagrad",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "pooled": "pooled training",
    "scaffold": "SCAFFOLD",
}
Pair = tuple[float, float]


def rows(name: str, mean: str) -> dict[str, Pair]:
    """Row of a kept table -> mean and standard deviation over five seeds."""
    with (TABLE / name).open(encoding="utf-8") as file:
        found = {row["row"]: row for row in csv.DictReader(file) if row["spread"]}
    return {row: (float(one[mean]), float(one["spread"])) for row, one in found.items()}


def main() -> None:
    """A line per method, published above measured."""
    matplotlib.rcParams.update({"svg.hashsalt": "fairflare", "svg.fonttype": "none", "font.size": 11})
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    axes = figure.add_subplot()
    for words, found, colour, shift in (
        ("published by FLamby", rows("published.csv", "mean"), "#b4470e", -0.13),
        ("here", rows("flamby-tcga-brca.csv", "value"), "#00658a", 0.13),
    ):
        places = [k + shift for k, row in enumerate(TITLES) if row in found]
        values, spreads = zip(*(found[row] for row in TITLES if row in found), strict=True)
        axes.errorbar(values, places, xerr=spreads, fmt="o", color=colour, capsize=3, label=words)
    axes.set_yticks(range(len(TITLES)), TITLES.values())
    axes.invert_yaxis()
    axes.axvline(0.5, color="#999999", linewidth=1)
    axes.set_xlabel("C-index of 222 test patients, mean and standard deviation of five seeds (0.5 is chance)")
    axes.legend(loc="lower left", frameon=False)
    figure.savefig(HERE / "tcga-brca.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
