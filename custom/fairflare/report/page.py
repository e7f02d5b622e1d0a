# SPDX-License-Identifier: Apache-2.0
"""The page of a run: the answer first, then its sections."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairflare.report import sentences as words
from fairflare.report.benefit import groups_harmed
from fairflare.report.groups import group_words, opportunity
from fairflare.report.rounds import metric_rounds, weight_rounds
from fairflare.report.sanity_checks import verdict
from fairflare.report.sections import quantities, sections
from fairflare.report.shared_sets import KINDS, shared_test_points
from fairflare.report.sites import final, in_grey, site_points
from fairflare.report.values import capital, class_words, drawn, in_order, label, rendered, text

Json = dict[str, Any]
FIGURES = (shared_test_points, metric_rounds, weight_rounds)


def render_run(summary: Json) -> str:
    from fairflare.report.clinical import per_thousand  # not above: it imports NumPy

    further = [one for one in quantities().values() if one.over and one.name not in ("mean", "worst")]
    tests = summary["test_sets"]
    means = {f"mean of {kind}": tests[f"{kind}_mean"] for kind in KINDS}
    about = {
        "metric": label(summary["headline"], summary),
        "model": final(summary),
        "in_grey": in_grey(summary),
        "metrics": _metric_names(summary, (row["test"] for row in summary["sites"])),
        "test_metrics": _metric_names(summary, (row["metrics"] for row in tests["rows"])),
        "test_means": [{"name": name, "n": None, "metrics": found} for name, found in means.items() if found],
    }
    return rendered(
        "run",
        {"label": label, "class_words": class_words, "group_words": group_words, "opportunity": opportunity},
        run=summary,
        study=words.study(summary),
        size=words.size(summary),
        harm=groups_harmed(summary),
        not_concluded=words.not_concluded(summary),
        glossary=words.glossary(summary),
        opening=words.opening({**summary, "benefit": None}),  # which the answer above says
        verdict=verdict(summary),
        headline=words.headline(summary),
        thousand=per_thousand(summary),
        plot=drawn([site_points(summary)]),
        figures=drawn(one(summary) for one in FIGURES),
        sections=[{**one, **about} for section in sections().values() if (one := section.shown(summary))],
        tiles={capital(one.label): text(one.value(summary)) for one in further},
        **about,
    )


def _metric_names(summary: Json, metrics: Iterable[Json]) -> dict[str, str]:
    return {name: label(name, summary) for name in in_order(name for found in metrics for name in found)}
