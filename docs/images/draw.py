# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/ich_quality.png from a finished comparison.

fairflare compare fedavg fedism-plus --task ich-phantom:small --seeds 0,1,2 --out runs/quality
python docs/images/draw.py runs/quality
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fairflare.clinic import tasks

COLOURS = {"FedAvg": "#D55E00", "FedISM+": "#0072B2"}
SUBDURAL = 4


def main(folder: str) -> None:
    """One slice at every noise level over the balanced accuracy of each method there."""
    task = tasks.load("ich-phantom", "small", size=96)
    sets = task.test_sets()
    names = [s.name for s in sets]
    example = int((sets[0].targets == SUBDURAL).nonzero()[2])
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    grid = figure.add_gridspec(2, len(names), height_ratios=(1, 1.6))
    for k, test in enumerate(sets):
        axes = figure.add_subplot(grid[0, k])
        axes.imshow(test.inputs[example, 0].numpy(), cmap="gray", vmin=-0.9, vmax=2.7)
        axes.axis("off")
    axes = figure.add_subplot(grid[1, :])
    for title, values in scores(Path(folder), names).items():
        axes.plot(names, values.T, color=COLOURS[title], alpha=0.3, linewidth=1)
        axes.plot(names, values.mean(0), color=COLOURS[title], linewidth=2.5, marker="o", label=title)
    axes.set_ylabel("balanced accuracy")
    axes.set_title("Final model on shared test sets: mean over 3 seeds, each seed in light", fontsize=10)
    axes.axhline(0.2, color="grey", linewidth=0.8, linestyle=":")
    axes.text(0, 0.21, "guessing", color="grey", fontsize=8)
    axes.set_ylim(0.15, 0.95)
    axes.margins(x=0.09)
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).parent / "ich_quality.png", dpi=110)


def scores(folder: Path, names: list[str]) -> dict[str, np.ndarray]:
    """Method title -> (seeds, test sets) balanced accuracies."""
    found: dict[str, list[list[float]]] = {}
    for path in sorted(folder.glob("*/report.json")):
        report = json.loads(path.read_text())
        rows = {row["name"]: row["value"] for row in report["detail"]["test_sets"]["rows"]}
        found.setdefault(report["title"], []).append([rows[name] for name in names])
    return {title: np.array(values) for title, values in found.items()}


if __name__ == "__main__":
    main(sys.argv[1])
