# SPDX-License-Identifier: Apache-2.0
"""Writes shown.csv, every table of the measurements, from the other CSV files beside it.

python docs/results/drift/drift_page.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import drift_plan as plan
import drift_tables as tables

sys.path.append(str(Path(__file__).resolve().parents[1]))

from kept import SHOWN_TABLES, write_shown  # noqa: E402

from fairflare.report.values import signed, text  # noqa: E402

CHOSEN = tables.HERE / "chosen.csv"
TITLES = {
    "heart": "Heart disease: four hospitals, 920 patients (`heart:full`)",
    "support2": "SUPPORT2: four disease classes as sites (`support2:default`)",
    "ist": "International Stroke Trial: 17 countries (`ist:countries`)",
}
PRESETS = {
    "heart": "a new Adam in each round, learning rate .005, batches of 8, one epoch, 40 rounds",
    "support2": "a new Adam in each round, learning rate .003, batches of 64, one epoch, 20 rounds; 64 hidden units",
    "ist": "SGD, learning rate .02, momentum .9 that starts at zero in each round, batches of 32, one epoch, 30 rounds",
}
MARKS = {"better": " +", "worse": " −", tables.CANNOT: ""}
SHOWN = ("preset", "fedavg", "sgd", "scaffold", "whole", "fedavg+intercept", "whole+intercept", "whole-adjusted+shares")
VERSIONS = "fairflare 0.1.0, torch 2.13.0+cpu, nvflare 2.9.0, numpy 2.4.6, Python 3.11; Linux x86_64, 2 cores, no GPU."


def main() -> None:
    """Write the file."""
    write_shown(tables.HERE / SHOWN_TABLES, written())


def written() -> str:
    """The tables as Markdown."""
    measured = {row["task"] for row in tables.read(tables.DIFFERENCES)}
    parts = [VERSIONS]
    for task in (task for task in plan.TASKS if task.key in measured):
        parts += [f"## {TITLES[task.key]}", f"{task.deals} deals. The preset: {PRESETS[task.key]}."]
        parts += [main_table(task), "Brier score of each site, minus that of its own model:", site_table(task)]
        if task.key == "heart":
            parts += [
                "The split of the study and of `make demo`, seed 0, without intervals: Brier score / accuracy",
                natural(),
            ]
    parts += ["## Learning rates that were chosen", chosen()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main_table(task: plan.Measured) -> str:
    """A line per arm: endpoints with their differences from solo and from FedAvg."""
    index = {
        tuple(row[key] for key in ("arm", "versus", "over", "metric")): row for row in of(tables.DIFFERENCES, task)
    }
    joined = {row["arm"]: row for row in of(tables.JOINING, task) if row["metric"] == "brier"}
    heads = ["arm", "**worst site's Brier score**", "minus solo", "minus FedAvg", "mean Brier score", "minus solo"]
    heads += ["minus FedAvg, one full-batch step", "mean accuracy", "mean AUC", "sites against solo"]
    lines = []
    for arm in plan.arms(task):
        cells = [any_value(index, arm.key, "worst", "brier")]
        cells += [told(index.get((arm.key, versus, "worst", "brier"))) for versus in ("solo", "fedavg")]
        cells += [any_value(index, arm.key, "mean", "brier")]
        cells += [told(index.get((arm.key, versus, "mean", "brier"))) for versus in ("solo", "whole")]
        cells += [any_value(index, arm.key, "mean", metric) for metric in ("accuracy", "auc")]
        if cells[0]:
            lines.append([arm.title, *cells, counts(joined.get(arm.key))])
    return drawn(heads, lines)


def site_table(task: plan.Measured) -> str:
    """A line per site: the change by joining under the main arms."""
    index = {
        (row["arm"], row["over"]): row
        for row in of(tables.DIFFERENCES, task)
        if (row["versus"], row["metric"]) == ("solo", "brier")
    }
    table = tables.values(task.key, "brier")
    titles = {arm.key: arm.title for arm in plan.ARMS}
    shown = [key for key in SHOWN if (key, "mean") in index]
    sites = [over for over in table["solo"] if over not in ("mean", "worst")]
    lines = [[site, text(table["solo"][site].mean()), *(told(index[key, site]) for key in shown)] for site in sites]
    return drawn(["site", "solo", *(titles[key] for key in shown)], lines)


def natural() -> str:
    """A line per arm: Brier score and accuracy of each hospital."""
    both = [tables.values(plan.NATURAL.key, metric) for metric in ("brier", "accuracy")]
    overs = [over for over in next(iter(both[0].values()), {}) if over != "worst"]
    lines = [
        [arm.title, *(" / ".join(text(table[arm.key][over].mean()) for table in both) for over in overs)]
        for arm in plan.ARMS
        if arm.key in both[0]
    ]
    return drawn(["arm", *overs], lines)


def chosen() -> str:
    """A line per arm: what was run with each task."""
    lines = [
        [row["task"], row["arm"], f"`{row['candidate']}`"] for row in tables.read(CHOSEN) if row["chosen"] == "True"
    ]
    return drawn(["task", "arm", "run as"], lines)


def of(path: tables.Path, task: plan.Measured) -> list[dict[str, str]]:
    """The lines of a task."""
    return [row for row in tables.read(path) if row["task"] == task.key]


def any_value(index: Mapping[tuple[str, ...], Mapping[str, str]], arm: str, over: str, metric: str) -> str:
    """An arm's own value, whatever it is compared with."""
    found = [
        row for (own, _, of_over, of_metric), row in index.items() if (own, of_over, of_metric) == (arm, over, metric)
    ]
    return text(float(found[0]["value"])) if found else ""


def told(row: Mapping[str, str] | None) -> str:
    """A difference with its interval, marked where it excludes zero."""
    if row is None:
        return ""
    mean, low, high = (signed(float(row[key])) for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]{MARKS[row['verdict']]}"


def counts(row: Mapping[str, str] | None) -> str:
    """Gain / cannot be told / lose (gain, lose together)."""
    if row is None:
        return ""
    single = " / ".join(row[key] for key in ("gains", "cannot_be_told", "loses"))
    return f"{single} ({row['gains_together']}, {row['loses_together']})"


def drawn(heads: list[str], lines: list[list[str]]) -> str:
    """Markdown."""
    rule = ["---", *["--:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rule, *lines])


if __name__ == "__main__":
    main()
