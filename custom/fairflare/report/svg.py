# SPDX-License-Identifier: Apache-2.0
"""What figures are drawn with: inline SVG, and marks that several figures share.

No pyplot: a drawing function gets a fresh figure. The same numbers give the same bytes (fixed hash salt, no date), ids
are unique on a page (prefixed with the figure's key), text stays text, and nothing is fetched.
"""

from __future__ import annotations

import functools
import io
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from fairflare.report.values import Estimate

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

Axes: TypeAlias = "matplotlib.axes.Axes"
Figure: TypeAlias = "matplotlib.figure.Figure"

WIDTH = 4.9
"""Inches; at 72 units per inch the figure is about as wide as a phone's screen, so that its text is read unscaled."""
BLUE, RED, GREEN, ORANGE, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7"
"""Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which colour-blind readers can distinguish."""
GREY, DARK = "#b4b4b4", "#333333"
HANDLE, CHARACTER = 45, 5.8
"""Points of a legend's mark with its margins, and of a character on average, in DejaVu Sans."""
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "fairflare",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "figure.titlesize": 10.5,
    "figure.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#777777",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,
}
Draw = Callable[["Figure", dict[str, Any]], str | None]


def inline(key: str) -> Callable[[Draw], Callable[[dict[str, Any]], str]]:
    """Make ``draw(figure, data) -> title`` a function ``data -> SVG``; "" where it returns None, nothing to show.

    ``key``: prefix of the ids inside, different for every figure of a page.
    """

    def decorate(draw: Draw) -> Callable[[dict[str, Any]], str]:
        return functools.wraps(draw)(lambda data: rendered(key, lambda figure: draw(figure, data)))

    return decorate


def rendered(key: str, draw: Callable[[Figure], str | None]) -> str:
    """The SVG of what ``draw(figure) -> title`` draws; "" where it returns None. ``key``: see ``inline``."""
    figure, title = drawing(draw)
    return "" if title is None else svg_of(figure, key, title)


def drawing(draw: Callable[[Figure], str | None]) -> tuple[Figure, str | None]:
    """The figure that ``draw`` has drawn on, in this package's style, and its title; None: nothing to show."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
        FigureCanvasSVG(figure)
        title = draw(figure)
        if title is not None:
            figure.suptitle("\n".join(textwrap.wrap(title, 52)), x=0.01, ha="left")
    return figure, title


def svg_of(figure: Figure, key: str, title: str) -> str:
    """``figure`` as an SVG element for a page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
            patch.set_facecolor("none")
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # savefig draws once more, to lay it out
    return _element(buffer.getvalue(), key, title)


def legend(figure: Figure, axes: Axes, x: str = "", y: str = "", columns: int = 2) -> None:
    """Titles of the axes, and the legend below these, in as many ``columns`` as fit: no line can run through it."""
    if x:
        axes.set_xlabel(x)
    if y:
        axes.set_ylabel(y)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        fits = max(1, int(72 * WIDTH // (HANDLE + CHARACTER * max(map(len, labels)))))
        figure.legend(handles, labels, loc="outside lower left", ncols=min(columns, fits), borderaxespad=0.2)


def within(axes: Axes, axis: str, values: Iterable[float | None]) -> None:
    """Where all ``values`` are in 0..1, so is the scale of ``axis``, "x" or "y", but for half a marker at its ends."""
    known = [value for value in values if value is not None]
    if known and min(known) >= 0 and max(known) <= 1:
        start, end = getattr(axes, f"get_{axis}lim")()
        getattr(axes, f"set_{axis}lim")(max(start, -0.02), min(end, 1.02))


def short(name: str, length: int = 22) -> str:
    """A name that fits beside an axis: printable characters, cut with an ellipsis."""
    shown = "".join(char if char.isprintable() else "?" for char in name)
    return shown if len(shown) <= length else shown[: length - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _element(svg: bytes, key: str, title: str) -> str:
    root = ET.fromstring(svg)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(name): _prefixed(_local(name), value, key) for name, value in element.attrib.items()}
    for metadata in root.findall("metadata"):
        root.remove(metadata)
    label = ET.Element("title")
    label.text = "".join(char if char.isprintable() else "?" for char in title)
    root.insert(0, label)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img"}
    return ET.tostring(root, encoding="unicode", short_empty_elements=False)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _prefixed(name: str, value: str, key: str) -> str:
    if name == "id":
        return f"{key}-{value}"
    if name == "href" and value.startswith("#"):
        return f"#{key}-{value[1:]}"
    return re.sub(r"url\(#", f"url(#{key}-", value)


DASHES = (0, (4, 3))
MANY = 60
"""Sites above which figures show how they are spread instead of each of them."""


@dataclass(frozen=True)
class Series:
    """What one colour of a figure stands for.

    Attributes:
        label: in the legend; "" leaves it out.
        values: one per row of ``dots``, a number or an ``Estimate``, or one per round of ``curves``; None: a gap.
    """

    label: str
    values: Sequence[Any]
    colour: str = BLUE
    marker: str = "o"
    style: Any = "-"


def dots(
    figure: Figure,
    names: Sequence[str],
    series: Sequence[Series],
    x: str,
    *,
    at: Sequence[tuple[float, str, str]] = (),
    joined: bool = False,
    columns: int = 2,
) -> Axes:
    """A point per name and series with its interval, from the top; of more than ``MANY`` names by rank, unnamed.

    Args:
        x: title of the axis.
        at: vertical lines: place, words of the legend, colour.
        joined: whether a line joins the points of a name; else series with a point at one name stand below each other.
        columns: of the legend.
    """
    many = len(names) > MANY
    figure.set_figheight(3.7 if many else 1.7 + 0.26 * len(names))
    axes = figure.subplots()
    for place, words, colour in at:
        axes.axvline(place, color=colour, linewidth=1.5, label=words or None)
    cells = [[Estimate.of(one) for one in one_of.values] for one_of in series]
    shared = not joined and any(sum(one.mean is not None for one in row) > 1 for row in zip(*cells))
    for k, (one_of, found) in enumerate(zip(series, cells, strict=True)):
        lower = (k / (len(series) - 1) - 0.5) * 0.28 if shared else 0.0
        known = [(y + lower, one, one.mean) for y, one in enumerate(found) if one.mean is not None]
        if not known:
            continue
        # An end beyond the mean is no run's: whoever wrote it there is found by what compares it, not by a figure.
        reach = [[max(mean - (mean if one.low is None else one.low), 0.0) for _, one, mean in known]]
        reach += [[max((mean if one.high is None else one.high) - mean, 0.0) for _, one, mean in known]]
        axes.errorbar(
            [mean for *_, mean in known],
            [y for y, *_ in known],
            xerr=None if many or not any(map(any, reach)) else reach,
            label=one_of.label or None,
            color=one_of.colour,
            fmt="." if many else one_of.marker,
            markersize=4 if many else 5,
        )
    for y, row in enumerate(zip(*cells) if joined else ()):
        ends = [one.mean for one in row if one.mean is not None]
        axes.plot(ends, [y] * len(ends), color=GREY, linewidth=2, zorder=1)
    axes.set_yticks([] if many else range(len(names)), [] if many else [short(name, 30) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_ylabel(f"{len(names)} sites, best first" if many else "")
    if many:
        axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=6)
    within(axes, "x", [one.mean for found in cells for one in found])
    legend(figure, axes, x, columns=columns)
    return axes


def curves(
    figure: Figure,
    numbers: Sequence[int],
    series: Sequence[Series],
    y: str,
    *,
    others: Mapping[str, Sequence[float | None]] | None = None,
    rest: str = "other sites",
) -> Axes:
    """Lines over the rounds ``numbers``, interrupted where there is no value; dots while they are too short to be seen.

    Args:
        y: title of the axis.
        others: lines in grey behind them; of more than ``MANY`` the ranges that hold most of them.
        rest: what the legend calls these.
    """
    from matplotlib.ticker import MaxNLocator

    axes, behind = figure.subplots(), list((others or {}).values())
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.set_xlim(numbers[0] - 0.5, numbers[-1] + 0.5)
    if len(behind) > MANY:
        band(axes, numbers, list(zip(*behind, strict=True)))
        behind = []
    lines = [Series("" if k else rest, values, GREY, style="-") for k, values in enumerate(behind)]
    for one in (*lines, *series):
        values = [float("nan") if value is None else value for value in one.values]
        marker = "o" if len(numbers) < 5 and one.style == "-" else None
        axes.plot(numbers, values, color=one.colour, linestyle=one.style, label=one.label or None, marker=marker,
                  markersize=4, linewidth=1 if one in lines or one.style != "-" else 2)  # fmt: skip
    within(axes, "y", [value for one in series for value in one.values])
    legend(figure, axes, "round", y)
    return axes


def band(axes: Axes, numbers: Sequence[int], rows: Sequence[Sequence[float | None]]) -> None:
    """Over rounds, the range that holds the middle 90 % of each round's values, and the middle 50 %; gaps without."""
    for low, high, alpha in ((0.05, 0.95, 0.35), (0.25, 0.75, 0.6)):
        known = [sorted(value for value in row if value is not None) or [float("nan")] for row in rows]
        ends = [[row[round(q * (len(row) - 1))] for row in known] for q in (low, high)]
        label = f"middle {high - low:.0%} of the other sites"
        axes.fill_between(numbers, ends[0], ends[1], color=GREY, alpha=alpha, linewidth=0, label=label)
