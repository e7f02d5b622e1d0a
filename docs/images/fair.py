# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/fair.svg, five fair methods and FedAvg at four heart hospitals, from docs/results/heart-fair.

python docs/images/fair.py
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

from fairflare.report import svg
from fairflare.report.fairness import mean_ci
from fairflare.report.values import Estimate

HERE = Path(__file__).resolve().parent
RUNS = HERE.parent / "results" / "heart-fair" / "runs.csv"
LOOKS = {"mean": ("mean of four hospitals", svg.BLUE, "o"), "worst": ("worst hospital", svg.RED, "D")}
NAMES = {"FedAvg, weighting=examples": "FedAvg", "FedAvg, weighting=uniform": "FedAvg, equal weights"}


def rows() -> dict[str, dict[str, Estimate]]:
    """Method -> "mean" and "worst" -> patients classified right of 100, with the 95 % interval over seeds."""
    values: dict[str, dict[str, list[float]]] = {}
    with RUNS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            one = values.setdefault(NAMES.get(row["method"], row["method"]), {key: [] for key in LOOKS})
            for key in LOOKS:
                one[key].append(100 * float(row[key]))
    return {name: {key: Estimate.of(mean_ci(of)) for key, of in one.items()} for name, one in values.items()}


def title(found: dict[str, dict[str, Estimate]]) -> str:
    before, after = (found[name]["worst"].mean for name in ("FedAvg", "FedISM+"))
    return f"Worst hospital: {before:.0f} of 100 patients right with FedAvg, {after:.0f} with FedISM+"


def main() -> None:
    found = rows()

    def draw(figure: svg.Figure) -> str:
        series = [
            svg.Series(words, [one[key] for one in found.values()], colour, marker)
            for key, (words, colour, marker) in LOOKS.items()
        ]
        words = "test patients classified right, of 100\n(mean and 95 % interval over ten seeds)"
        svg.dots(figure, [*found], series, words)
        return title(found)

    figure, _ = svg.drawing(draw)
    with matplotlib.rc_context(svg.STYLE):
        figure.savefig(HERE / "fair.svg", metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
