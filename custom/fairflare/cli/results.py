# SPDX-License-Identifier: Apache-2.0
"""The tables that runs, comparisons and measurements end with in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape

from fairflare.cli.console import say, show_table
from fairflare.report.benefit import over_methods
from fairflare.report.compare import drawn_words, table
from fairflare.report.deployed_model import remark
from fairflare.report.quantities import NAMES
from fairflare.report.sanity_checks import sentences, verdict
from fairflare.report.sentences import differences, group_metric_words
from fairflare.report.values import label, plural, with_half_width
from fairflare.studies.display import note, out

LABELS = {
    **NAMES,
    "std": "standard deviation over sites",
    "gap": "gap best to worst",
    "calibration_worst": "worst site's calibration in the large",
    "ece_worst": "worst site's ECE",
    "worst vs first": "worst site, beside the first method",
    "wins": "seeds with a better worst site",
}


def run_result(report: Mapping[str, Any], folder: Path) -> None:
    """What came out of one run, and where it is."""
    summary = report["detail"]
    fairness, columns = summary["fairness"], ["final model", label(summary["headline"], summary)]
    rows = [
        ["mean over sites", _number(fairness["mean"])],
        *([f"{end} site ({fairness[end]['site']})", _number(fairness[end]["value"])] for end in ("worst", "best")),
        ["gap best to worst", _number(fairness["gap"])],
    ]
    if own := (summary.get("personal") or {}).get("personal"):
        columns.append("personal models")
        ends = [f"{_number(own[end]['value'])} ({own[end]['site']})" for end in ("worst", "best")]
        for row, cell in zip(rows, (_number(own["mean"]), *ends, _number(own["gap"])), strict=True):
            row.append(cell)
    rows += [[f"shared test set: {row['name']}", _number(row["value"])] for row in summary["test_sets"]["rows"]]
    show_table(f"{summary['method']['title']} on {summary['task']['id']}:{summary['task']['preset']}", columns, rows)
    if doubt := verdict(summary):
        out.print(f"[bold red]{escape(doubt)}[/]")
    for sentence in sentences(summary):
        out.print(escape(sentence))
    for section in summary["after"]:
        _after(section)
    for sentence in (summary["benefit"] or {}).get("sentences", ()):
        say(sentence)
    if left_out := sum(len(record.get("rejected") or {}) for record in summary["rounds"]):
        out.print(f"{left_out} updates were left out; the report says which and why")
    say(f"report: {folder / 'report.html'}")


def _after(section: Mapping[str, Any]) -> None:
    """What a step after the last round came to: mean and worst site, stage by stage."""
    rows = []
    for metric, name in section["metrics"].items():
        stages = section["summary"][metric].values()
        rows.append([name, *(f"{_number(found['mean'])} (worst {_number(found['worst'])})" for found in stages)])
    title = f"{section['title']} (by {section['by']}, from {section['split']})"
    show_table(title, ["over sites, absolute", *section["stages"].values()], rows)
    note(f"calibration cases: {section['remark']}")


def comparison(found: dict[str, Any], folder: Path) -> None:
    """The table of ``fairflare compare``, a column per method, and where the reports are."""
    rows = table(found)
    quantities = [name for name in rows[0] if name not in ("method", "seeds")]
    show_table(
        f"{label(found['headline'], found)}, {'' if found['higher_is_better'] else 'less is better, '}"
        + plural(len(found["seeds"]), "seed"),
        ["", *(row["method"] for row in rows)],
        [[LABELS.get(name, name), *(str(row.get(name, "")) for row in rows)] for name in quantities],
    )
    for sentence in (
        drawn_words(found),
        group_metric_words(found),
        remark(found["methods"]),
        *differences(found),
        *over_methods(found),
    ):
        if sentence:
            say(sentence)
    for text in found["notes"]:
        note(text)
    for report in sorted(folder.glob("*/report.html")):
        say(f"report: {report}")
    say(f"comparison: {folder / 'compare.html'}")


def contribution(found: Mapping[str, Any], folder: Path) -> None:
    """The table of ``fairflare contribution``: what each site's absence costs, and what the methods thought of it."""
    together, runs, rows = found["together"], found["runs"], []
    columns = ["site", "drop without it", "p (Holm)", "leave-one-out share", "by interval and Holm's p"]
    columns += ["Shapley value", "Shapley share"] if together["shapley"] else []
    for site, one in together["leave_one_out"].items():
        cells = [site, with_half_width(one["drop"]), _number(one["drop"]["p_holm"]), _number(one["share"]["mean"])]
        cells += [one["verdict"] if one["drop"]["low"] is not None else "one seed"]
        if together["shapley"]:
            value = together["shapley"][site]
            cells += [with_half_width(value["value"]), _number(value["share"]["mean"])]
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
    from fairflare.studies.free_riders import DETECTORS

    for method in found["methods"]:
        rows = []
        for kind, one in method["kinds"].items():
            cells = [f"{_share(rates['found'])}, {_share(rates['accused'])}" for rates in one["detectors"].values()]
            rows.append([kind, with_half_width(one["score"]), *cells])
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


def editions(found: Mapping[str, Any], folder: Path) -> None:
    """Where the pages of hospitals are, with the first sentence of each."""
    from fairflare.report.site_report import opening

    for site, one in found.items():
        say(f"{site}: {opening(one)[0][0]}")
        say(f"edition: {folder / f'{site}.html'}")
