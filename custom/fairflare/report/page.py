# SPDX-License-Identifier: Apache-2.0
"""The reports as HTML: one file each, with no script and no reference to anything outside it.

Everything that comes from sites or from a run's files is untrusted text and is escaped by Jinja; only the figures,
which this package serialises itself, go in as markup.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairflare.report import words
from fairflare.report.metrics import label
from fairflare.report.values import capital, in_order, moment, plural, signed, stop, text

if TYPE_CHECKING:
    from jinja2 import Environment

Json = dict[str, Any]
COLUMNS = {
    "mean": "Mean over sites",
    "worst": "Worst site",
    "gap": "Gap",
    "std": "Spread (std)",
    "clean": "Clean tests",
    "corrupted": "Corrupted tests",
    "group_disparity": "Disparity over groups",
    "worst_group": "Worst group",
}


def render_run(summary: Json) -> str:
    """The page of one run from its report.json; the same summary gives the same bytes."""
    from markupsafe import Markup

    from fairflare.report import figures, method_figures

    drawn = (figures.site_bars, figures.shared_test_bars, figures.metric_rounds, figures.weight_rounds)
    of_method = (method_figures.lambda_rounds, method_figures.cell_map, method_figures.layer_map)
    of_contribution = (method_figures.contribution_rounds, method_figures.rider_rounds)
    return (
        _environment()
        .get_template("run.html.j2")
        .render(
            run=summary,
            opening=words.opening(summary),
            figures=[Markup(svg) for svg in (draw(summary) for draw in (*drawn, *of_method)) if svg],
            contribution_figures=[Markup(svg) for svg in (draw(summary) for draw in of_contribution) if svg],
            groups=words.groups(summary),
            opportunity=words.opportunity(summary),
            contribution=words.contribution(summary),
            metric=label(summary["headline"]),
            metrics=_metric_names(row["test"] for row in summary["sites"]),
            test_metrics=_metric_names(row["metrics"] for row in summary["test_sets"]["rows"]),
        )
    )


def render_compare(comparison: Json) -> str:
    """The page of a comparison of methods (``compare``); the same comparison gives the same bytes."""
    from markupsafe import Markup

    from fairflare.report.figures import method_points, tradeoff

    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            found=comparison,
            opening=words.opening_compare(comparison),
            differences=words.differences(comparison),
            figure=Markup(method_points(comparison)),
            tradeoff=Markup(tradeoff(comparison)),
            metric=label(comparison["headline"]),
            columns=_columns(comparison),
        )
    )


def _columns(comparison: Json) -> list[tuple[str, str]]:
    """The quantities that some method has."""
    methods = comparison["methods"]
    return [(key, name) for key, name in COLUMNS.items() if any(m[key]["mean"] is not None for m in methods)]


def _metric_names(metrics: Any) -> list[str]:
    return in_order(name for found in metrics for name in found)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "num": text,
        "signed": signed,
        "label": label,
        "plural": plural,
        "interval": _interval,
        "stop": stop,
        "capital": capital,
        "moment": moment,
    }
    return environment


def _interval(found: Json, digits: int = 3) -> str:
    """ "0.81 to 0.85", or an empty text where there is no interval."""
    return "" if found["low"] is None else f"{text(found['low'], digits)} to {text(found['high'], digits)}"
