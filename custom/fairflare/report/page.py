# SPDX-License-Identifier: Apache-2.0
"""The pages of runs, of single hospitals and of comparisons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairflare.report import sanity_checks as learned
from fairflare.report import sentences as words
from fairflare.report.compare import objective_words
from fairflare.report.compare_tables import comparison_tables
from fairflare.report.deployed_model import remark
from fairflare.report.table_files import csv_text, shown
from fairflare.report.values import drawn, in_order, label, rendered

Json = dict[str, Any]
NONE: Json = {"mean": None}
"""What a comparison of an earlier version has of a newer quantity."""
COLUMNS = {
    "mean": "Mean over sites",
    "worst": "Worst site",
    "trivial": "Without a network",
    "gap": "Gap",
    "std": "Spread (std)",
    "clean": "Clean tests",
    "corrupted": "Corrupted tests",
    "group_disparity": "Disparity over groups",
    "worst_group": "Worst group",
    "calibration_worst": "Worst site: calibration in the large",
    "brier_worst": "Worst site: Brier score",
    "ece_worst": "Worst site: ECE",
    "personal_mean": "Personal models: mean",
    "personal_worst": "Personal models: worst site",
    "personal_std": "Personal models: spread",
    "shared_mean": "Shared model: mean",
    "shared_worst": "Shared model: worst site",
    "shared_std": "Shared model: spread",
}


def render_run(summary: Json) -> str:
    from fairflare.report import figures
    from fairflare.report.coefficients import forest
    from fairflare.report.notes import noted
    from fairflare.report.rows import number_table

    draw = (figures.site_bars, figures.shared_test_bars, figures.metric_rounds, figures.weight_rounds)
    notes, tests = noted(summary), summary["test_sets"]
    means = {"mean of clean": tests["clean_mean"], "mean of corrupted": tests["corrupted_mean"]}
    return rendered(
        "run",
        {"label": label, "class_words": words.class_words, "group_words": words.group_words},
        run=summary,
        study=words.study(summary),
        size=words.size(summary),
        harm=words.groups_harmed(summary),
        not_concluded=words.not_concluded(summary),
        glossary=words.glossary(summary),
        opening=words.opening({**summary, "benefit": None}),  # which the answer above says
        verdict=learned.verdict(summary),
        figures=drawn(one(summary) for one in draw),
        benefit_figures=drawn(figures.benefit_figures(summary)),
        clinical_figures=drawn(figures.clinical_figures(summary.get("clinical") or {"rows": [], "stages": []})),
        curve_figures=drawn(figures.curve_figures(summary.get("curves") or {"rows": []})),
        coefficient_figures=drawn([forest(summary["coefficients"])] if "coefficients" in summary else []),
        personal_figures=drawn([figures.personal_points(summary)]),
        measured=number_table(summary["numbers"]),
        noted={**notes, "figures": drawn(notes["figures"])},
        groups=words.groups(summary),
        opportunity=words.opportunity(summary),
        metric=label(summary["headline"], summary),
        metrics=_metric_names(summary, (row["test"] for row in summary["sites"])),
        test_metrics=_metric_names(summary, (row["metrics"] for row in tests["rows"])),
        test_means=[{"name": name, "n": None, "metrics": found} for name, found in means.items() if found],
    )


def render_edition(found: Json) -> str:
    """The page of one site from its ``edition``, which holds nothing else; the same content gives the same bytes."""
    from fairflare.report.figures import clinical_figures, edition_figures
    from fairflare.report.site_report import opening

    clinic = found["clinical"] or {}
    clinical = clinical_figures({"rows": [clinic["row"]], "stages": clinic["stages"]}) if clinic.get("row") else []
    figures = {"figures": drawn(edition_figures(found)), "clinical_figures": drawn(clinical)}
    return rendered("edition", {"label": label}, found=found, opening=opening(found), **figures)


def render_compare(comparison: Json) -> str:
    from fairflare.report.figures import forest, front_figure, method_points, tradeoff

    front = comparison.get("pareto")
    middle = front_figure(comparison, front) if front else ""
    figures = (method_points(comparison), forest(comparison), middle, tradeoff(comparison))
    methods = comparison["methods"]
    return rendered(
        "compare",
        {"objective": objective_words},
        found=comparison,
        study=words.study(comparison),
        opening=words.opening_compare(comparison),
        differences=words.differences(comparison),
        figures=drawn(figures),
        tables=[shown(table) for table in comparison_tables(comparison)],
        metric=label(comparison["headline"], comparison),
        remark=" ".join(filter(None, (words.group_metric_words(comparison), remark(methods)))),
        columns={
            key: name
            for key, name in COLUMNS.items()
            if any((method.get(key) or NONE)["mean"] is not None for method in methods)
        },
    )


def _metric_names(summary: Json, metrics: Iterable[Json]) -> dict[str, str]:
    return {name: label(name, summary) for name in in_order(name for found in metrics for name in found)}


TRIAL_COLUMNS = ("score", "mean", "worst", "worst_site")


def trials_csv(found: Mapping[str, Any]) -> str:
    """A line per trial: number, each setting, score, mean and worst site on validation, and why one failed."""
    names, kept = list(found["over"]), (*TRIAL_COLUMNS, "reason")
    rows = found["trials"]
    lines = [[row["trial"], *(row["values"][name] for name in names), *(row[key] for key in kept)] for row in rows]
    return csv_text(["trial", *names, *kept], lines)


def render_search(found: Json) -> str:
    from fairflare.report.figures import progress

    return rendered("search", {"label": label}, found=found, figures=drawn([progress(found)]))
