# SPDX-License-Identifier: Apache-2.0
"""The table and the page of a search."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairflare.report.svg import BLUE, ORANGE, inline, legend
from fairflare.report.templates import drawn, rendered
from fairflare.report.values import number, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Json = dict[str, Any]
COLUMNS = ("score", "mean", "worst", "worst_site")


def trials_csv(found: Mapping[str, Any]) -> str:
    """A line per trial: number, each setting, score, mean and worst site on validation, and why one failed."""
    file = io.StringIO()
    names = list(found["over"])
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["trial", *names, *COLUMNS, "reason"])
    for row in found["trials"]:
        writer.writerow(
            [row["trial"], *(row["values"][name] for name in names), *(row[key] for key in (*COLUMNS, "reason"))]
        )
    return file.getvalue()


def render_search(found: Json) -> str:
    """The page of a search from its search.json; the same content gives the same bytes."""
    return rendered("search", found=found, figures=drawn([progress(found)]))


@inline("search")
def progress(figure: Figure, found: Json) -> str | None:
    """Each trial's score, and the best so far."""
    from matplotlib.ticker import MaxNLocator

    points = [(row["trial"], row["score"]) for row in found["trials"] if row["score"] is not None]
    if len(points) < 2:
        return None
    axes = figure.subplots()
    best: list[float] = []
    for _, score in points:
        best.append(max([score, *best[-1:]]))
    numbers = [trial for trial, _ in points]
    axes.plot(numbers, [score for _, score in points], "o", color=BLUE, label="trial")
    axes.step(numbers, best, where="post", color=ORANGE, label="best so far")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("trial")
    axes.set_ylabel(f"{found['objective']} of {found['metric']}\n(validation)")
    legend(figure, axes)
    return f"Score on validation: {text(number(points[0][1]))} at first, {text(best[-1])} at best"
