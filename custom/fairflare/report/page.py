# SPDX-License-Identifier: Apache-2.0
"""The reports as HTML: one file each, with no script and no reference to anything outside it.

Everything that comes from sites or from a run's files is untrusted text and is escaped by Jinja; only the figures,
which this package serialises itself, go in as markup.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from fairflare.report import learned, words
from fairflare.report.compare import objective_words
from fairflare.report.compare_tables import comparison_tables
from fairflare.report.in_use import remark
from fairflare.report.metrics import label
from fairflare.report.table_files import shown
from fairflare.report.templates import environment
from fairflare.report.values import ends, in_order

if TYPE_CHECKING:
    from jinja2 import Environment

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
    """The page of one run from its report.json; the same summary gives the same bytes."""
    from markupsafe import Markup

    from fairflare.report import figures
    from fairflare.report.benefit_figure import benefit_figures
    from fairflare.report.clinical_figures import site_figures
    from fairflare.report.note_tables import noted
    from fairflare.report.numbers import number_table

    drawn = (figures.site_bars, figures.shared_test_bars, figures.metric_rounds, figures.weight_rounds)
    notes = noted(summary)
    return (
        _environment()
        .get_template("run.html.j2")
        .render(
            run=summary,
            opening=words.opening(summary),
            verdict=learned.verdict(summary),
            figures=[Markup(svg) for svg in (draw(summary) for draw in drawn) if svg],
            benefit_figures=[Markup(svg) for svg in benefit_figures(summary)],
            clinical_figures=[
                Markup(svg) for svg in site_figures(summary.get("clinical") or {"rows": [], "stages": []})
            ],
            personal_figure=Markup(figures.personal_points(summary)),
            measured=number_table(summary["numbers"]),
            noted={**notes, "figures": [Markup(svg) for svg in notes["figures"]]},
            groups=words.groups(summary),
            opportunity=words.opportunity(summary),
            metric=label(summary["headline"], summary),
            metrics=_metric_names(row["test"] for row in summary["sites"]),
            test_metrics=_metric_names(row["metrics"] for row in summary["test_sets"]["rows"]),
        )
    )


def render_edition(found: Json) -> str:
    """The page of one site from its ``edition``; the same content gives the same bytes."""
    from markupsafe import Markup

    from fairflare.report.clinical_figures import site_figures
    from fairflare.report.edition_figures import edition_figures
    from fairflare.report.edition_words import opening

    clinic = found["clinical"] or {}
    clinical = site_figures({"rows": [clinic["row"]], "stages": clinic["stages"]}) if clinic.get("row") else []
    return (
        _environment()
        .get_template("edition.html.j2")
        .render(
            found=found,
            opening=opening(found),
            figures=[Markup(svg) for svg in edition_figures(found)],
            clinical_figures=[Markup(svg) for svg in clinical],
        )
    )


def render_compare(comparison: Json) -> str:
    """The page of a comparison of methods (``compare``); the same comparison gives the same bytes."""
    from markupsafe import Markup

    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            found=comparison,
            opening=words.opening_compare(comparison),
            differences=words.differences(comparison),
            figures=[Markup(svg) for svg in _drawn(comparison) if svg],
            tables=[shown(table) for table in comparison_tables(comparison)],
            metric=label(comparison["headline"], comparison),
            remark=remark(comparison["methods"]),
            columns=_columns(comparison),
        )
    )


def _drawn(comparison: Json) -> list[str]:
    """The figures of a comparison as SVG elements, "" for one that has nothing to show."""
    from fairflare.report.figures import method_points, tradeoff
    from fairflare.report.pareto import front_figure

    found = comparison.get("pareto")
    return [method_points(comparison), front_figure(comparison, found) if found else "", tradeoff(comparison)]


def _columns(comparison: Json) -> list[tuple[str, str]]:
    """The quantities that some method has."""
    methods = comparison["methods"]
    return [
        (key, name) for key, name in COLUMNS.items() if any((m.get(key) or NONE)["mean"] is not None for m in methods)
    ]


def _metric_names(metrics: Any) -> list[str]:
    return in_order(name for found in metrics for name in found)


@cache
def _environment() -> Environment:
    made = environment().overlay()
    made.filters = {**made.filters, "label": label, "interval": ends, "objective": objective_words}
    return made
