# SPDX-License-Identifier: Apache-2.0
"""The page of a decision: alone, use, or join, with one forest plot. It is made of ``decision.json`` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairflare.report import svg
from fairflare.report.svg import BLUE, DARK, GREEN, ORANGE, inline, legend, point
from fairflare.report.values import drawn, rendered

Json = dict[str, Any]
LABELS = {"U": "using less own", "J": "joining less own", "D": "joining less using"}
COLOURS = {"U": BLUE, "J": GREEN, "D": ORANGE}
MAX_DRAWN = 40


@inline("decision")
def forest(figure: Any, found: Json) -> str | None:
    """U, J and D of every hospital with their intervals, in thousandths of the Brier score."""
    rows = {name: one["estimands"] for name, one in found["sites"].items() if "estimands" in one}
    if not rows or len(rows) > MAX_DRAWN:
        return None
    figure.set_figheight(1.9 + 0.42 * len(rows))
    axes = figure.subplots()
    axes.axvline(0, color=DARK, linewidth=1)
    for y, each in enumerate(rows.values()):
        for place, (key, label) in enumerate(LABELS.items()):
            where = {"mean": each[key]["value"], "low": each[key]["low"], "high": each[key]["high"]}
            where = {end: 1000 * value for end, value in where.items()}
            style = {"fmt": "o", "color": COLOURS[key], "markersize": 4, "label": label if y == 0 else None}
            point(axes, where, y + 0.25 * (place - 1), **style)
    axes.set_yticks(range(len(rows)), [svg.short(name) for name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    legend(figure, axes, "gain in Brier score x 1,000 (95 % interval)", columns=3)
    return "Above 0 the first-named is better"


def with_figures(found: Mapping[str, Any]) -> Json:
    """``found`` with what a page draws."""
    return {**found, "figures": drawn([forest(dict(found))])}


def page(found: Mapping[str, Any]) -> str:
    """``join.html`` of a decision without further methods."""
    return rendered("decision", found=with_figures(found), title=found["title"])
