# SPDX-License-Identifier: Apache-2.0
"""What is kept of a comparison: ``runs.csv``, a line per method and seed, and ``shown.csv``, the tables that follow.

``fairflare compare ... --tables docs/results/NAME`` writes compare.json, compare.md and more; ``keep`` makes the two
files of them and removes the rest. ``fairflare paper`` writes NAME.md, of which ``keep_page`` makes ``shown.csv``.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

from fairflare.report import fairness as statistics
from fairflare.report.fairness import mean_ci
from fairflare.report.sections import quantities
from fairflare.report.values import higher_is_better

RUNS, PAGE, SHOWN_TABLES = "runs.csv", "compare.md", "shown.csv"
DROPPED = ("compare.json", "compare.csv")
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
    keep_page(folder / PAGE)


def keep_page(page: Path) -> None:
    """Write ``shown.csv`` beside a Markdown page, a cell per cell of its tables, and remove the page."""
    write_shown(page.with_name(SHOWN_TABLES), page.read_text(encoding="utf-8"))
    page.unlink()


def write_shown(path: Path, markdown: str) -> None:
    """Markdown as CSV: a table's line has its cells, any other line is one cell, its rule and escapes go."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for line in markdown.splitlines():
            if re.fullmatch(r"\|( *:?-+:? *\|)+", line):
                continue
            table = line.startswith("|") and line.endswith("|")
            cells = [cell.strip() for cell in line[1:-1].split("|")] if table else [line]
            writer.writerow([re.sub(r"\\([\[\]])", r"\1", cell) for cell in cells])


def shown(folder: Path) -> str:
    """``shown.csv`` of a folder as Markdown."""
    lines, inside = [], False
    with (folder / SHOWN_TABLES).open(newline="", encoding="utf-8") as file:
        for row in csv.reader(file):
            lines.append(f"| {' | '.join(row)} |" if len(row) > 1 else "".join(row))
            if len(row) > 1 and not inside:
                lines.append("| --- " * len(row) + "|")
            inside = len(row) > 1
    return "\n".join(lines) + "\n"


def comparison(folder: Path) -> Json:
    """The comparison that ``runs.csv`` holds, its means, intervals and differences computed anew.

    Returns:
        command, headline, seeds and methods as ``report.compare.compare`` gives them.
    """
    lines = shown(folder).splitlines()
    headline = lines[0].removeprefix("# ").split(" on ")[0]
    with (folder / RUNS).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [name for name in rows[0] if name in quantities()]
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
