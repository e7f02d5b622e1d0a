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
from typing import TYPE_CHECKING, Any

from fairflare.report.values import text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH = 4.9
"""Inches; at 72 units per inch the figure is about as wide as a phone's screen, so that its text is read unscaled."""
BLUE, RED, GREEN, ORANGE, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7"
"""Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which colour-blind readers can distinguish."""
GREY, DARK = "#b4b4b4", "#333333"
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
    """Titles of the axes, and the legend below these, where no line can run through it."""
    if x:
        axes.set_xlabel(x)
    if y:
        axes.set_ylabel(y)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower left", ncols=columns, borderaxespad=0.2)


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
Bar = tuple[str, float | None, str]
"""Name, length and colour of a bar."""


def bars(figure: Figure, rows: Sequence[Bar], decimals: int = 3) -> Axes:
    """Horizontal bars from zero, the first on top, values in a column at the right: nothing overlaps, however many."""
    figure.set_figheight(1.5 + 0.24 * len(rows))
    axes = figure.subplots()
    lengths = [value or 0.0 for _, value, _ in rows]
    axes.barh(range(len(rows)), lengths, color=[colour for *_, colour in rows], height=0.72)
    axes.set_yticks(range(len(rows)), [short(name) for name, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1 if max(lengths) <= 1 else None)
    axes.grid(axis="y", visible=False)
    for y, (_, value, colour) in enumerate(rows):
        ink = RED if colour == RED else DARK
        axes.text(1.02, y, text(value, decimals), va="center", color=ink, transform=axes.get_yaxis_transform())
    return axes


def whiskers(axes: Axes, intervals: Sequence[Mapping[str, float] | None]) -> None:
    known = [(y, ends["low"], ends["high"]) for y, ends in enumerate(intervals) if ends]
    if known:
        places, low, high = zip(*known, strict=True)
        axes.hlines(places, low, high, color=DARK, linewidth=1.2, label="95 % interval over test patients")


def ranked(figure: Figure, values: Sequence[float]) -> Axes:
    """A point per value in the order given, the first on top and the last, which is the worst, in red."""
    axes = figure.subplots()
    axes.plot(values, range(1, len(values) + 1), ".", color=GREY, markersize=4, label="a site each")
    axes.plot(values[-1:], [len(values)], "o", color=RED, markersize=5, label="worst served")
    axes.set_ylim(len(values) + 1, 0)
    axes.set_ylabel(f"sites with a result, best first (of {len(values)})")
    axes.set_xlim(0, 1 if max(values) <= 1 else None)
    return axes


def band(axes: Axes, numbers: Sequence[int], rows: Sequence[Sequence[float | None]]) -> None:
    """Over rounds, the range that holds the middle 90 % of each round's values, and the middle 50 %; gaps without."""
    for low, high, alpha in ((0.05, 0.95, 0.35), (0.25, 0.75, 0.6)):
        known = [sorted(value for value in row if value is not None) or [float("nan")] for row in rows]
        ends = [[row[round(q * (len(row) - 1))] for row in known] for q in (low, high)]
        label = f"middle {high - low:.0%} of the other sites"
        axes.fill_between(numbers, ends[0], ends[1], color=GREY, alpha=alpha, linewidth=0, label=label)


def over_rounds(figure: Figure, numbers: Sequence[int]) -> Axes:
    """Axes whose x axis holds the rounds ``numbers``, ascending, at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, min_n_ticks=1))
    axes.set_xlim(numbers[0] - 0.5, numbers[-1] + 0.5)
    axes.set_xlabel("round")
    return axes


def curve(axes: Axes, numbers: Sequence[int], values: Sequence[float | None], **style: Any) -> None:
    """A line over rounds, interrupted where there is no value; with dots while it is too short to be seen."""
    style = {"marker": "o" if len(numbers) < 5 else None, "markersize": 4, **style}
    axes.plot(numbers, [float("nan") if value is None else value for value in values], **style)


def point(axes: Axes, found: Mapping[str, float | None], y: float, **style: Any) -> None:
    """A mean and, where there is one, its interval; nothing without a mean."""
    mean, low, high = (found[key] for key in ("mean", "low", "high"))
    if mean is not None:
        reach = None if low is None or high is None else [[mean - low], [high - mean]]
        axes.errorbar(mean, y, xerr=reach, capsize=3, **style)
