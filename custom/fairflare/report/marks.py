# SPDX-License-Identifier: Apache-2.0
"""What the figures are made of: bars, lines over rounds, points with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairflare.report.svg import DARK, GREY, RED, short
from fairflare.report.values import text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    """The interval of each bar over a site's test patients, from the top; None: that bar has none."""
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
        known = [sorted(value for value in row if value is not None) for row in rows]
        ends = [[_quantile(row, q) for row in known] for q in (low, high)]
        label = f"middle {high - low:.0%} of the other sites"
        axes.fill_between(numbers, ends[0], ends[1], color=GREY, alpha=alpha, linewidth=0, label=label)


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[round(q * (len(ordered) - 1))] if ordered else float("nan")


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
