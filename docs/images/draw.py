# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/disparity.png from the comparisons in docs/results.

python docs/images/draw.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
sys.path.insert(0, str(RESULTS))

import kept  # noqa: E402

PANELS = {"support2-groups": "SUPPORT2, label x sex", "covid-groups": "COVID-19 Brazil by region, label x race"}
NAMES = {
    "FedAvg, logit_tau=0.0, weighting=examples": "FedAvg",
    "FedAvg, logit_tau=0.0, weighting=uniform": "FedAvg, uniform weights",
    "FedAvg, logit_tau=1.0, weighting=examples": "FedAvg, prior correction",
    "FedUFO, logit_tau=0.0": "FedUFO",
    "FedUFO, logit_tau=1.0": "FedUFO, prior correction",
}
COLOURS = {0.0: "#D55E00", 1.0: "#0072B2"}


def main() -> None:
    """One panel per task: disparity over groups of every arm with its 95 % interval over seeds."""
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (folder, title) in zip(panels, PANELS.items()):
        comparison = kept.comparison(RESULTS / folder)
        for row, method in enumerate(comparison["methods"]):
            found, tau = method["group_disparity"], float(method["objective"]["logit_tau"])
            half = [[found["mean"] - found["low"]], [found["high"] - found["mean"]]]
            axes.errorbar(found["mean"], -row, xerr=half, fmt="o", color=COLOURS[tau], capsize=3)
        axes.set_yticks(
            [-row for row in range(len(comparison["methods"]))], [NAMES[m["label"]] for m in comparison["methods"]]
        )
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(f"disparity over groups, {len(comparison['seeds'])} seeds", fontsize=9)
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.3)
    figure.savefig(HERE / "disparity.png", dpi=110)


if __name__ == "__main__":
    main()
