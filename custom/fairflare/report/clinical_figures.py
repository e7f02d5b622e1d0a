# SPDX-License-Identifier: Apache-2.0
"""Small multiples of calibration: for each site a reliability curve and a decision curve, before and after a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairflare.report.marks import DASHES
from fairflare.report.svg import BLUE, DARK, GREY, ORANGE, rendered, short
from fairflare.report.values import signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = Mapping[str, Any]
MOST = 24
"""Sites that are drawn; the table has all of them."""
COLOURS = {"before": BLUE, "after": ORANGE}
MARKERS = {"before": "o", "after": "D"}
NAMES = {"before": "the model", "after": "after the step"}


def site_figures(section: Json) -> list[str]:
    """An SVG per site that released bins, the worst calibrated first."""
    rows = [row for row in section["rows"] if any((row[stage] or {}).get("curve") for stage in section["stages"])]
    rows.sort(key=lambda row: (-_off(row, section["stages"]), row["site"]))
    return [_of_site(place, row, section["stages"]) for place, row in enumerate(rows[:MOST])]


def _off(row: Json, stages: Sequence[str]) -> float:
    view = row[stages[0]] or {}
    return abs((view.get("calibration") or {}).get("value") or 0.0)


def _of_site(place: int, row: Json, stages: Sequence[str]) -> str:
    shown = {stage: row[stage] for stage in stages if (row[stage] or {}).get("curve")}

    def draw(figure: Figure) -> str:
        decides = any(view["decisions"] for view in shown.values())
        figure.set_figheight(3.1)
        panels = figure.subplots(1, 2) if decides else [figure.subplots()]
        _reliability(panels[0], shown)
        if decides:
            _decisions(panels[1], shown)
        named = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}
        figure.legend(named.values(), named.keys(), loc="outside lower left", ncols=2, borderaxespad=0.2)
        off = ", then ".join(signed(view["calibration"]["value"]) for view in shown.values())
        return f"{short(row['site'])}: risk off by {off}"

    return rendered(f"clinical{place}", draw)


def _reliability(axes: Axes, shown: Mapping[str, Json]) -> None:
    """Share of outcomes over mean risk of each bin, with Wilson's interval; the diagonal is perfect."""
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1.2, linestyle=DASHES)
    for stage, view in shown.items():
        curve, colour = view["curve"], COLOURS[stage]
        x = [point["risk"] for point in curve]
        axes.vlines(x, [p["low"] for p in curve], [p["high"] for p in curve], color=colour, linewidth=1, alpha=0.6)
        axes.plot(x, [p["share"] for p in curve], color=colour, marker=MARKERS[stage], markersize=4, label=NAMES[stage])
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1])
    axes.set_ylim(0, 1)
    axes.set_xlabel("mean predicted risk")
    axes.set_ylabel("share that it came true of")


def _decisions(axes: Axes, shown: Mapping[str, Json]) -> None:
    """Net benefit at the edges of the bins, beside treating everyone and nobody."""
    axes.axhline(0, color=DARK, linewidth=1, linestyle=":", label="treat nobody")
    rate = next(view["positives"] / view["n"] for view in shown.values())
    grid = [step / 100 for step in range(96)]
    everyone = [rate - (1 - rate) * t / (1 - t) for t in grid]
    axes.plot(grid, everyone, color=GREY, linewidth=1.5, label="treat all")
    for stage, view in shown.items():
        points = view["decisions"]
        x = [point["threshold"] for point in points]
        axes.fill_between(x, [p["low"] for p in points], [p["high"] for p in points], color=COLOURS[stage], alpha=0.15)
        axes.plot(
            x,
            [p["net_benefit"] for p in points],
            color=COLOURS[stage],
            marker=MARKERS[stage],
            markersize=4,
            label=NAMES[stage],
        )
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1])
    axes.set_ylim(-0.15 * rate - 0.02, rate * 1.15 + 0.02)
    axes.set_xlabel("threshold of the risk")
    axes.set_ylabel("net benefit")
