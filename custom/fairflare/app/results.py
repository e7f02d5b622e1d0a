# SPDX-License-Identifier: Apache-2.0
"""The tables that runs, comparisons and measurements end with in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fairflare.app.console import note, say
from fairflare.app.terminal import out
from fairflare.report.benefit import over_methods
from fairflare.report.compare import drawn_words, table
from fairflare.report.deployed_model import QUANTITIES as PERSONAL
from fairflare.report.deployed_model import remark
from fairflare.report.free_riders import DETECTORS
from fairflare.report.sentences import differences
from fairflare.report.values import label, plural, with_half_width

LABELS = {
    "mean": "mean over sites",
    "worst": "worst site",
    "std": "standard deviation over sites",
    "gap": "gap best to worst",
    "clean": "clean test set, last 5 rounds",
    "corrupted": "corrupted test set, last 5 rounds",
    "calibration_worst": "worst site's calibration in the large",
    "brier_worst": "worst site's Brier score",
    "ece_worst": "worst site's ECE",
    "group_disparity": "disparity over groups (sample sd)",
    "worst_group": "worst group",
    **PERSONAL,
    "worst vs first": "worst site, beside the first method",
    "wins": "seeds with a better worst site",
}


def run_result(report: Mapping[str, Any], folder: Path) -> None:
    """What came out of one run, and where it is."""
    summary = report["detail"]
    fairness, sets = summary["fairness"], summary["test_sets"]
    headline = summary["headline"]
    found = Table(title=f"{summary['method']['title']} on {summary['task']['id']}:{summary['task']['preset']}")
    found.add_column("final model")
    found.add_column(escape(label(headline, summary)), justify="right")
    worst, best = fairness["worst"], fairness["best"]
    own = (summary.get("personal") or {}).get("personal")
    if own:
        found.add_column("personal models", justify="right")
    rows = {
        "mean over sites": _number(fairness["mean"]),
        f"worst site ({worst['site']})": _number(worst["value"]),
        f"best site ({best['site']})": _number(best["value"]),
        "gap best to worst": _number(fairness["gap"]),
    }
    for (name, value), beside in zip(rows.items(), _evenness(own) if own else [()] * len(rows), strict=True):
        found.add_row(name, value, *beside)
    for row in sets["rows"]:
        found.add_row(f"shared test set: {row['name']}", _number(row["value"]))
    out.print(found)
    for said in _learned(summary):
        out.print(said)
    _after(summary["after"])
    for sentence in (summary["benefit"] or {}).get("sentences", ()):
        say(sentence)
    left_out = sum(len(r) for r in (_rejected(c) for c in summary["rounds"]))
    if left_out:
        out.print(f"{left_out} updates were left out; the report says which and why")
    say(f"report: {folder / 'report.html'}")


def _learned(summary: Mapping[str, Any]) -> list[str]:
    """Whether the model has learned, and whether it was still improving."""
    from fairflare.report.sanity_checks import sentences, verdict

    doubt = verdict(summary)
    return [*([f"[bold red]{escape(doubt)}[/]"] if doubt else []), *map(escape, sentences(summary))]


def _after(sections: Sequence[Mapping[str, Any]]) -> None:
    """What each step after the last round came to: mean and worst site, stage by stage."""
    for section in sections:
        shown = Table(title=f"{section['title']} (by {section['by']}, from {section['split']})")
        shown.add_column("over sites, absolute")
        for words in section["stages"].values():
            shown.add_column(escape(words), justify="right")
        for metric, name in section["metrics"].items():
            of = section["summary"][metric].values()
            cells = [f"{_number(found['mean'])} (worst {_number(found['worst'])})" for found in of]
            shown.add_row(escape(name), *cells)
        out.print(shown)
        note(f"calibration cases: {section['remark']}")


def _evenness(found: Mapping[str, Any]) -> list[tuple[str]]:
    """Mean, worst and best site and gap over the sites' personal models."""
    ends = [f"{_number(found[end]['value'])} ({escape(str(found[end]['site']))})" for end in ("worst", "best")]
    return [(_number(found["mean"]),), *((end,) for end in ends), (_number(found["gap"]),)]


def comparison(found: dict[str, Any], folder: Path) -> None:
    """The table of ``fairflare compare``, a column per method, and where the reports are."""
    rows = table(found)
    shown = Table(title=f"{escape(label(found['headline'], found))}, {plural(len(found['seeds']), 'seed')}")
    shown.add_column("")
    for row in rows:
        shown.add_column(escape(row["method"]), justify="right")
    for name in rows[0]:
        if name not in ("method", "seeds"):
            shown.add_row(LABELS.get(name, name), *(escape(str(row.get(name, ""))) for row in rows))
    out.print(shown)
    say(drawn_words(found))
    if said := remark(found["methods"]):
        say(said)
    for sentence in differences(found):
        say(sentence)
    for sentence in over_methods(found):
        say(sentence)
    for text in found["notes"]:
        note(text)
    for report in sorted(folder.glob("*/report.html")):
        say(f"report: {report}")
    say(f"comparison: {folder / 'compare.html'}")


def contribution(found: Mapping[str, Any], folder: Path) -> None:
    """The table of ``fairflare contribution``: what each site's absence costs, and what the methods thought of it."""
    together, seeds = found["together"], found["seeds"]
    method = found["runs"][0]["methods"]
    own = next(iter(method))
    shown = Table(
        title=f"{found['method']} on {found['task']}: contribution, in {found['metric']}, {plural(len(seeds), 'seed')}"
    )
    names = ["site", "drop without it", "p (Holm)", "leave-one-out share", "by interval and Holm's p"]
    names += ["Shapley value", "Shapley share"] if together["shapley"] else []
    names += ["method's last weight", "share of examples"]
    for name in names:
        shown.add_column(name, justify="left" if name == "site" else "right")
    for site, one in together["leave_one_out"].items():
        cells = [with_half_width(one["drop"]), _number(one["drop"]["p_holm"]), _number(one["share"]["mean"])]
        cells += [one["verdict"] if one["drop"]["low"] is not None else "one seed"]
        if together["shapley"]:
            value = together["shapley"][site]
            cells += [with_half_width(value["value"]), _number(value["share"]["mean"])]
        for method in (own, "examples"):
            cells.append(_number(sum(run["methods"][method][site] for run in found["runs"]) / len(seeds)))
        shown.add_row(escape(site), *map(escape, cells))
    out.print(shown)
    scores = [run["score"] for run in found["runs"]]
    out.print(f"score with all sites: {_number(sum(scores) / len(scores))} (mean over all sites' own test splits)")
    if found["shapley_by"] and not found["shapley_by"]["exact"]:
        say(f"Shapley values are of {found['shapley_by']['permutations']} drawn orders; JSON has their standard errors")
    _agreements(together["agreement"])
    say(f"contribution: {folder / 'contribution.json'}")


def riders(found: Mapping[str, Any], folder: Path) -> None:
    """The tables of ``fairflare riders``: per method, kinds of riders down and detectors across."""
    for method in found["methods"]:
        shown = Table(
            title=f"free riders under {escape(method['label'])}, {plural(len(found['seeds']), 'seed')}: found, accused"
        )
        shown.add_column("kind")
        shown.add_column(found["metric"], justify="right")
        for name in DETECTORS:
            shown.add_column(name, justify="right")
        for kind, one in method["kinds"].items():
            cells = [f"{_share(rates['found'])}, {_share(rates['accused'])}" for rates in one["detectors"].values()]
            shown.add_row(kind, with_half_width(one["score"]), *cells)
        out.print(shown)
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


def _rejected(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return record.get("rejected") or {}


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def editions(found: Mapping[str, Any], folder: Path) -> None:
    """Where the pages of hospitals are, with the first sentence of each."""
    from fairflare.report.site_report import opening

    for site, one in found.items():
        say(f"{site}: {opening(one)[0][0]}")
        say(f"edition: {folder / f'{site}.html'}")
