# SPDX-License-Identifier: Apache-2.0
"""Which methods another one is at least as good as in two quantities, and better in one: the dominated ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairflare.report.svg import BLUE, DARK, GREY, legend, rendered, short
from fairflare.report.values import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = dict[str, Any]
Point = tuple[float, float]


def dominated_by(points: Mapping[str, Sequence[float | None]], better: tuple[bool, bool]) -> dict[str, list[str]]:
    """Name -> the names that are at least as good in both quantities and better in one; [] for those of the front.

    Args:
        points: name -> its two values; a name that lacks one is left out.
        better: whether higher values are better, of the first and of the second quantity.
    """
    known = {name: _signed(values, better) for name, values in points.items()}
    found = {name: value for name, value in known.items() if value is not None}
    return {name: [other for other, rival in found.items() if _dominates(rival, own)] for name, own in found.items()}


def front(comparison: Mapping[str, Any], x: str, y: str, better: tuple[bool, bool], names: Mapping[str, str]) -> Json:
    """The methods of a comparison as points.

    Args:
        comparison: with methods, each of which has ``x`` and ``y`` as means with intervals.
        x: a quantity.
        y: another.
        better: see ``dominated_by``.
        names: quantity -> what it is called.

    Returns:
        x and y ({"quantity", "name", "higher_is_better"}); points: label, x, y (means), dominated_by (labels), the best
        in x first.
    """
    methods = [method for method in comparison["methods"] if method.get(x) and method.get(y)]
    points = {method["label"]: (method[x]["mean"], method[y]["mean"]) for method in methods}
    by = dominated_by(points, better)
    order = sorted(by, key=lambda label: -(number(points[label][0]) or 0.0) * (1 if better[0] else -1))
    axes = {
        key: {"quantity": quantity, "name": names.get(quantity, quantity), "higher_is_better": higher}
        for key, quantity, higher in zip("xy", (x, y), better, strict=True)
    }
    rows = [
        {"label": label, "x": points[label][0], "y": points[label][1], "dominated_by": by[label]} for label in order
    ]
    return {**axes, "points": rows}


def front_figure(comparison: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The points as an SVG element, the front joined by a line, dominated ones in grey; "" for fewer than two."""
    return rendered("pareto", lambda figure: _draw(figure, comparison, found)) if len(found["points"]) > 1 else ""


def _draw(figure: Figure, comparison: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    rows, methods = found["points"], {method["label"]: method for method in comparison["methods"]}
    figure.set_figheight(3.4 + 0.22 * len(rows))
    axes = figure.subplots()
    best = [row for row in rows if not row["dominated_by"]]
    axes.plot([row["x"] for row in best], [row["y"] for row in best], "-", color=BLUE, linewidth=1, zorder=1)
    markers = "osD^vP*X<>"
    for i, row in enumerate(rows):
        color, mark = (GREY, " (dominated)") if row["dominated_by"] else (BLUE, "")
        label, marker = short(row["label"], 34) + mark, markers[i % len(markers)]
        axes.plot([row["x"]], [row["y"]], marker, color=color, markeredgecolor=DARK, markersize=7, label=label)
        _bars(axes, methods[row["label"]], found, color)
    sides = ["higher" if found[key]["higher_is_better"] else "lower" for key in "xy"]
    axes.set_xlabel(f"{found['x']['name']} ({sides[0]} is better)")
    axes.set_ylabel(f"{found['y']['name']} ({sides[1]} is better)")
    legend(figure, axes, columns=1)
    return f"Pareto front: {found['y']['name']} against {found['x']['name']}"


def _bars(axes: Any, method: Mapping[str, Any], found: Mapping[str, Any], color: str) -> None:
    """The 95 % intervals of both quantities, where there are any."""
    x, y = (method[found[key]["quantity"]] for key in "xy")
    for key, one, other in (("xerr", x, y), ("yerr", y, x)):
        if one["low"] is not None:
            ends = [[one["mean"] - one["low"]], [one["high"] - one["mean"]]]
            place = (one["mean"], other["mean"]) if key == "xerr" else (other["mean"], one["mean"])
            axes.errorbar([place[0]], [place[1]], **{key: ends}, fmt="none", ecolor=color, linewidth=0.8, zorder=0)


def _signed(values: Sequence[float | None], better: tuple[bool, bool]) -> Point | None:
    x, y = (number(value) for value in values)
    return None if x is None or y is None else (x if better[0] else -x, y if better[1] else -y)


def _dominates(rival: Point, own: Point) -> bool:
    return rival != own and rival[0] >= own[0] and rival[1] >= own[1]
