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
from fairflare.report.values import in_order, plural, signed, text

if TYPE_CHECKING:
    from jinja2 import Environment

Json = dict[str, Any]


def render_run(summary: Json) -> str:
    """The page of one run from its report.json; the same summary gives the same bytes."""
    from markupsafe import Markup

    from fairflare.report import figures

    drawn = (figures.site_bars, figures.shared_test_bars, figures.metric_rounds, figures.weight_rounds)
    return (
        _environment()
        .get_template("run.html.j2")
        .render(
            run=summary,
            opening=words.opening(summary),
            figures=[Markup(svg) for svg in (draw(summary) for draw in drawn) if svg],
            metric=words.label(summary["headline"]),
            metrics=_metric_names(row["test"] for row in summary["sites"]),
            test_metrics=_metric_names(row["metrics"] for row in summary["test_sets"]["rows"]),
        )
    )


def render_compare(comparison: Json) -> str:
    """The page of a comparison of methods (``compare``); the same comparison gives the same bytes."""
    from markupsafe import Markup

    from fairflare.report.figures import method_points

    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            found=comparison,
            opening=words.opening_compare(comparison),
            differences=words.differences(comparison),
            figure=Markup(method_points(comparison)),
            metric=words.label(comparison["headline"]),
        )
    )


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
        "label": words.label,
        "plural": plural,
        "interval": _interval,
        "sentence": _sentence,
    }
    return environment


def _interval(found: Json, digits: int = 3) -> str:
    """ "0.81 to 0.85", or an empty text where there is no interval."""
    return "" if found["low"] is None else f"{text(found['low'], digits)} to {text(found['high'], digits)}"


def _sentence(text: str) -> str:
    """A fact that begins with a capital letter and ends with a full stop."""
    return text[:1].upper() + text[1:].rstrip(". ") + "."
