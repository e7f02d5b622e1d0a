# SPDX-License-Identifier: Apache-2.0
"""From a matplotlib figure to an SVG element that can stand inside an HTML page.

No pyplot: a drawing function gets a fresh figure. The same numbers give the same bytes (fixed hash
salt, no date), ids are unique on a page (prefixed with the figure's key), text stays text, and nothing is fetched.
"""

from __future__ import annotations

import functools
import io
import re
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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

    Args:
        key: prefix of the ids inside, different for every figure of a page.
    """

    def decorate(draw: Draw) -> Callable[[dict[str, Any]], str]:
        @functools.wraps(draw)
        def render(data: dict[str, Any]) -> str:
            return rendered(key, lambda figure: draw(figure, data))

        return render

    return decorate


def rendered(key: str, draw: Callable[[Figure], str | None]) -> str:
    """The SVG of what ``draw(figure) -> title`` draws; "" where it returns None. ``key``: see ``inline``."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
        FigureCanvasSVG(figure)
        title = draw(figure)
        if title is None:
            return ""
        figure.suptitle("\n".join(textwrap.wrap(title, 52)), x=0.01, ha="left")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _element(buffer.getvalue(), key, title)


def legend(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """The legend below the axes, where no line can run through it."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower left", ncols=columns, borderaxespad=0.2)


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
    """A tag or attribute name without its namespace: inside HTML the parser knows it."""
    return name.rpartition("}")[2]


def _prefixed(name: str, value: str, key: str) -> str:
    if name == "id":
        return f"{key}-{value}"
    if name == "href" and value.startswith("#"):
        return f"#{key}-{value[1:]}"
    return re.sub(r"url\(#", f"url(#{key}-", value)
