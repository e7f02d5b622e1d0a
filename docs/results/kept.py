# SPDX-License-Identifier: Apache-2.0
"""What is kept of a comparison: ``runs.csv``, a line per method and seed; the tables of ``compare.md`` follow from it.

``fairflare compare ... --tables docs/results/NAME`` writes compare.json and more; ``keep`` makes ``runs.csv`` of it and
removes what can be computed from that.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from fairflare.report import fairness as statistics
from fairflare.report.fairness import mean_ci
from fairflare.report.sections import quantities
from fairflare.report.values import higher_is_better

RUNS, PAGE = "runs.csv", "compare.md"
DROPPED = ("compare.json", "compare.csv", "compare.tex", "tables.csv")
FIRST = ("method", "trained_with", "seed", "data_seed", "worst_site", "model")
"""Columns before the quantities of the run; model: the first ``SHOWN`` digits of its SHA-256."""
SHOWN = 16
Json = dict[str, Any]


def keep(folder: Path) -> None:
    """Write ``runs.csv`` from a fresh compare.json and remove ``DROPPED``; figures unrounded, for p depends on ties."""
    comparison = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    methods = comparison["methods"]
    names = [name for name in quantities() if any(run.get(name) is not None for m in methods for run in m["runs"])]
    with (folder / RUNS).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*FIRST, *names])
        for method in methods:
            trained = ", ".join(f"{key}={value}" for key, value in method["objective"].items())
            for run in method["runs"]:
                known = [run["seed"], run["data_seed"], run["worst_site"], run["model_sha256"][:SHOWN]]
                cells = [run.get(name) for name in names]
                writer.writerow([method["label"], trained, *known, *("" if cell is None else cell for cell in cells)])
    for name in DROPPED:
        (folder / name).unlink(missing_ok=True)


def comparison(folder: Path) -> Json:
    """The comparison that ``runs.csv`` holds, its means, intervals and differences computed anew.

    Returns:
        command, headline, seeds and methods as ``report.compare.compare`` gives them.
    """
    lines = (folder / PAGE).read_text(encoding="utf-8").splitlines()
    headline = lines[0].removeprefix("# ").split(" on ")[0]
    with (folder / RUNS).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name not in FIRST]
    grouped: dict[str, list[Json]] = {}
    for row in rows:
        figures = {name: float(row[name]) if row[name] else None for name in names}
        grouped.setdefault(row["method"], []).append({**row, "seed": int(row["seed"]), **figures})
    first = next(iter(grouped.values()))
    higher = higher_is_better(headline, {})
    methods = [_method(label, runs, first, names, higher) for label, runs in grouped.items()]
    _judge(methods, names, higher)
    methods[0]["versus_first"] = None
    return {
        "command": lines[2].strip(),
        "headline": headline,
        "seeds": [run["seed"] for run in first],
        "methods": methods,
    }


def _method(label: str, runs: list[Json], first: list[Json], names: list[str], higher: bool) -> Json:
    trained = runs[0]["trained_with"]
    return {
        "label": label,
        "objective": dict(part.split("=", 1) for part in trained.split(", ") if part),
        "runs": runs,
        **{name: mean_ci(run[name] for run in runs) for name in names},
        "versus_first": {name: _paired(name, runs, first, higher) for name in names},
    }


def _paired(name: str, runs: list[Json], first: list[Json], higher: bool) -> Json:
    sign = 1 if quantities()[name].higher_is_better(higher) else -1
    pairs = [(run[name], other[name]) for run, other in zip(runs, first, strict=True)]
    differences = [own - other for own, other in pairs if own is not None and other is not None]
    return {**statistics.paired(differences), "wins": sum(sign * value > 0 for value in differences)}


def _judge(methods: list[Json], names: list[str], higher: bool) -> None:
    """Add Holm's p over the methods, and the verdict."""
    for name in names:
        found = {method["label"]: method["versus_first"][name] for method in methods[1:]}
        adjusted = statistics.holm({label: one["p"] for label, one in found.items()})
        for method in methods[1:]:
            one = found[method["label"]]
            one["p_holm"] = adjusted[method["label"]]
            alike = method["objective"] == methods[0]["objective"]
            said = statistics.corrected(one, quantities()[name].higher_is_better(higher))
            one["verdict"] = said if alike else "other objective"
