# SPDX-License-Identifier: Apache-2.0
"""The tables of ``fairflare contribution`` and ``fairflare riders``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.cli.console import say, show_table
from fairflare.report.values import label, plural, with_sd
from fairflare.studies.display import out


def contribution(found: Mapping[str, Any], folder: Path) -> None:
    """The table of ``fairflare contribution``: what each site's absence costs, and what the methods thought of it."""
    together, runs, rows = found["together"], found["runs"], []
    columns = ["site", "drop without it", "p (Holm)", "leave-one-out share", "by interval and Holm's p"]
    columns += ["Shapley value", "Shapley share"] if together["shapley"] else []
    for site, one in together["leave_one_out"].items():
        cells = [site, with_sd(one["drop"]), _number(one["drop"]["p_holm"]), _number(one["share"]["mean"])]
        cells += [one["verdict"] if one["drop"]["low"] is not None else "one seed"]
        if together["shapley"]:
            value = together["shapley"][site]
            cells += [with_sd(value["value"]), _number(value["share"]["mean"])]
        for method in (next(iter(runs[0]["methods"])), "examples"):
            cells.append(_number(sum(run["methods"][method][site] for run in runs) / len(runs)))
        rows.append(cells)
    title = f"{found['method']} on {found['task']}: contribution, in {label(found['metric'], {})}, "
    title += plural(len(found["seeds"]), "seed")
    show_table(title, [*columns, "method's last weight", "share of examples"], rows)
    score = sum(run["score"] for run in runs) / len(runs)
    out.print(f"score with all sites: {_number(score)} (mean over all sites' own test splits)")
    if found["shapley_by"] and not found["shapley_by"]["exact"]:
        say(f"Shapley values are of {found['shapley_by']['permutations']} drawn orders; JSON has their standard errors")
    _agreements(together["agreement"])
    say(f"contribution: {folder / 'contribution.json'}")


def riders(found: Mapping[str, Any], folder: Path) -> None:
    """The tables of ``fairflare riders``: per method, kinds of riders down and detectors across."""
    from fairflare_lab.studies.free_riders import DETECTORS

    for method in found["methods"]:
        rows = []
        for kind, one in method["kinds"].items():
            cells = [f"{_share(rates['found'])}, {_share(rates['accused'])}" for rates in one["detectors"].values()]
            rows.append([kind, with_sd(one["score"]), *cells])
        title = f"free riders under {method['label']}, {plural(len(found['seeds']), 'seed')}: found, accused"
        show_table(title, ["kind", found["metric"], *DETECTORS], rows)
    for name, words in DETECTORS.items():
        say(f"{name}: {words}")
    say(f"riders: {folder / 'riders.json'}")


def _share(found: Mapping[str, Any]) -> str:
    return f"{found['count']}/{found['of']}" if found["of"] else "-"


def _agreements(found: Mapping[str, Any]) -> None:
    words = {"leave_one_out": "leave-one-out", "shapley": "Shapley"}
    for method, kinds in found.items():
        for kind, measures in kinds.items():
            if measures is not None:
                numbers = ", ".join(f"{name} {_number(value['mean'])}" for name, value in measures.items())
                say(f"agreement of {method} with the {words[kind]} shares: {numbers}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
