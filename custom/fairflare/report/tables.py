# SPDX-License-Identifier: Apache-2.0
"""A comparison as files to keep: CSV and Markdown tables with the command, the versions and the machine behind them."""

from __future__ import annotations

import csv
import io
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

from fairflare.report.compare import drawn_words, objective_words, same_objective
from fairflare.report.compare_tables import comparison_tables
from fairflare.report.deployed_model import remark
from fairflare.report.quantities import NAMES, QUANTITIES
from fairflare.report.sentences import differences
from fairflare.report.table_files import as_markdown as as_markdown_table
from fairflare.report.table_files import markdown, piped, spreadsheet
from fairflare.report.values import MISSING, capital, with_half_width, with_interval

COLUMNS = (
    "method", "quantity", "mean", "low", "high", "n", "difference", "difference_low", "difference_high", "wins",
    "trained_with",
)  # fmt: skip
STATISTICS = ("p", "p_holm", "hedges_g", "verdict", "bootstrap_low", "bootstrap_high")
"""Further columns, of comparisons that hold them: those of the first version do not."""
Json = Mapping[str, Any]


def machine() -> str:
    """Architecture, cores and Python of this machine, without its name."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def as_csv(comparison: Json) -> str:
    """One line per method and quantity: mean and 95 % interval over seeds, paired difference from the first method.

    "trained_with" distinguishes methods that were not all trained under one objective; one that was trained otherwise
    than the first has no wins.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    judged = any(
        "p" in paired for method in comparison["methods"] for paired in (method["versus_first"] or {}).values()
    )
    writer.writerow(COLUMNS + STATISTICS if judged else COLUMNS)
    for method in comparison["methods"]:
        for name in _known(comparison["methods"]):
            found, paired = method[name], (method["versus_first"] or {}).get(name) or {}
            row = [found["mean"], found["low"], found["high"], found["n"]]
            row += [paired.get("mean"), paired.get("low"), paired.get("high")]
            row += [paired.get("wins") if same_objective(comparison, method) else None, objective_words(method)]
            row += _statistics(paired) if judged else []
            words = [spreadsheet(value) if isinstance(value, str) else value for value in (method["label"], name, *row)]
            writer.writerow("" if value is None else value for value in words)
    return out.getvalue()


def _statistics(paired: Json) -> list[Any]:
    again = paired.get("bootstrap") or {}
    return [paired.get(key) for key in ("p", "p_holm", "g", "verdict")] + [again.get(end) for end in ("low", "high")]


def as_markdown(comparison: Json, command: str, versions: Mapping[str, str]) -> str:
    """The same as tables, quantities down and methods across, under the command that made them."""
    methods, names = comparison["methods"], _known(comparison["methods"])
    labels = [markdown(method["label"]) for method in methods]
    values = [[NAMES[name], *(with_half_width(method[name]) for method in methods)] for name in names]
    rule = ["---", *("--:" for _ in methods)]
    if methods[0]["objective"]:
        values = [["trained with", *(markdown(objective_words(method)) for method in methods)], *values]
    parts = [
        markdown(f"# {comparison['headline']} on {comparison['task']['id']}:{comparison['task'].get('preset')}"),
        f"    {command}",
        f"Seeds {', '.join(map(str, comparison['seeds']))}. Mean over matched seeds ± half the 95 % interval.",
        f"{capital(drawn_words(comparison))}.",
        markdown(remark(methods)),
        piped([["final model", *labels], rule, *values]),
    ]
    if len(methods) > 1:
        others = methods[1:]
        paired = [[NAMES[name], *(_difference(comparison, method, name) for method in others)] for name in names]
        parts += [
            f"Paired differences from {labels[0]}, with the 95 % interval and the number of seeds with a better value:",
            piped([["difference", *labels[1:]], rule[:-1], *paired]),
        ]
        parts += ["\n".join(f"- {markdown(line)}" for line in differences(comparison))]
    for table in comparison_tables(comparison):
        parts += [as_markdown_table(table, heading=2).rstrip("\n")]
    parts += ["\n".join(f"- {markdown(line)}" for line in (*comparison["notes"], *comparison["caveats"]))]
    parts += [f"{machine()}; " + ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) + "."]
    return "\n\n".join(part for part in parts if part) + "\n"


def _known(methods: Sequence[Json]) -> list[str]:
    """The quantities that at least one method has; a comparison of an earlier version may lack one altogether."""
    held = ((name, [method.get(name) for method in methods]) for name in QUANTITIES)
    return [name for name, found in held if any(one is not None and one["mean"] is not None for one in found)]


def _difference(comparison: Json, method: Json, name: str) -> str:
    paired = (method["versus_first"] or {}).get(name)
    if not paired or paired["mean"] is None:
        return MISSING
    wins = f"{paired['wins']} of {paired['n']}" if same_objective(comparison, method) else "other objective"
    return f"{with_interval(paired)}, {wins}"
