# SPDX-License-Identifier: Apache-2.0
"""The figure of a search: each trial's score, and the best so far."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fairflare.report import svg
from fairflare.report.values import number, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = dict[str, Any]


@svg.inline("search")
def progress(figure: Figure, found: Json) -> str | None:
    from matplotlib.ticker import MaxNLocator

    points = [(row["trial"], row["score"]) for row in found["trials"] if row["score"] is not None]
    if len(points) < 2:
        return None
    axes = figure.subplots()
    best = [*accumulate((score for _, score in points), max)]
    numbers = [trial for trial, _ in points]
    axes.plot(numbers, [score for _, score in points], "o", color=svg.BLUE, label="trial")
    axes.step(numbers, best, where="post", color=svg.ORANGE, label="best so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    svg.legend(figure, axes, "trial", f"{found['objective']} of {found['metric']}\n(validation)")
    return f"Score on validation: {text(number(points[0][1]))} at first, {text(best[-1])} at best"
