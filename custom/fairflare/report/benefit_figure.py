# SPDX-License-Identifier: Apache-2.0
"""What joining gives each site, drawn: a point and its interval around zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fairflare.report.benefit import GAINS, LOSES, UNCLEAR
from fairflare.report.marks import DASHES, MANY, point
from fairflare.report.svg import BLUE, DARK, RED, legend, rendered, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = Mapping[str, Any]
LOOKS = {GAINS: (BLUE, "o"), UNCLEAR: ("#777777", "s"), LOSES: (RED, "v")}
"""Verdict -> colour and marker: neither alone has to be told apart."""


def benefit_figures(summary: Json) -> list[str]:
    """A figure as inline SVG for each metric; [] where the run did not ask, or has more sites than can be drawn."""
    found = (summary.get("benefit") or {}).get("metrics") or {}
    return [
        svg
        for place, one in enumerate(found.values())
        if len(one["sites"]) <= MANY and (svg := rendered(f"benefit{place}", partial(_draw, one=one)))
    ]


def _draw(figure: Figure, one: Json) -> str | None:
    rows = sorted((row for row in one["sites"] if row["benefit"] is not None), key=lambda row: -row["benefit"])
    if not rows:
        return None
    draw_benefits(figure, [(short(row["site"]), row) for row in rows], f"benefit in {one['label']}")
    counts = one["counts"]
    return f"Joining, {one['label']}: {counts[GAINS]} gain, {counts[LOSES]} lose, {counts[UNCLEAR]} cannot be told"


def draw_benefits(
    figure: Figure, rows: Sequence[tuple[str, Json]], what: str, words: Mapping[str, str] | None = None
) -> None:
    """A point and its interval around zero for each of ``rows``, (name, row of a benefit), from the top.

    Args:
        figure: to draw in; its height follows the rows.
        rows: each with benefit, low, high and verdict.
        what: the axis is of.
        words: verdict -> what the legend says; the verdicts themselves by default.
    """
    figure.set_figheight(1.7 + 0.26 * len(rows))
    axes = figure.subplots()
    axes.axvline(0, color=DARK, linewidth=1)
    named = set[str]()
    for y, (_, row) in enumerate(rows):
        verdict = row["verdict"]
        colour, marker = LOOKS[verdict]
        once = (words or {}).get(verdict, verdict) if verdict not in named else None
        named.add(verdict)
        where = {"mean": row["benefit"], "low": row["low"], "high": row["high"]}
        point(axes, where, y, fmt=marker, color=colour, markersize=5, label=once)
        axes.axhline(y, color="#e6e6e6", linewidth=0.8, linestyle=DASHES, zorder=0)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"{what}, above 0 joining is better\n(95 % interval over patients)")
    legend(figure, axes, columns=3)
