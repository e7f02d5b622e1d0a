# SPDX-License-Identifier: Apache-2.0
"""The page of a decision: alone, use, or join, with one forest plot. It is made of ``decision.json`` alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairflare.report import svg
from fairflare.report.svg import BLUE, DARK, GREEN, ORANGE, inline
from fairflare.report.values import Estimate, drawn, rendered

Json = dict[str, Any]
LABELS = {"U": "using minus own", "J": "joining minus own", "D": "joining minus using"}
COLOURS = {"U": BLUE, "J": GREEN, "D": ORANGE}
MAX_DRAWN = 40


@inline("decision")
def forest(figure: Any, found: Json) -> str | None:
    """U, J and D of every hospital with their intervals, in thousandths of the Brier score."""
    rows = {name: one["estimands"] for name, one in found["sites"].items() if "estimands" in one}
    if not rows or len(rows) > MAX_DRAWN:
        return None
    series = [
        svg.Series(label, [_thousandths(each[key]) for each in rows.values()], COLOURS[key])
        for key, label in LABELS.items()
    ]
    axis = "gain in Brier score x 1,000 (95 % interval)"
    svg.dots(figure, list(rows), series, axis, at=[(0, "", DARK)], columns=3)
    return "Above 0 the first-named is better"


def _thousandths(estimate: Json) -> Estimate:
    return Estimate(*(1000 * estimate[key] for key in ("value", "low", "high")))


def with_figures(found: Mapping[str, Any]) -> Json:
    """``found`` with what a page draws."""
    return {**found, "figures": drawn([forest(dict(found))])}


def page(found: Mapping[str, Any]) -> str:
    """``join.html`` of a decision without further methods."""
    return rendered("decision", found=with_figures(found), title=found["title"])
