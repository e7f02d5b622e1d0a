# SPDX-License-Identifier: Apache-2.0
"""What a number of a run and a section of its page are; ``sections`` has the list of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fairflare.core.metric import named
from fairflare.report.values import drawn, number

Json = dict[str, Any]
Values = Mapping[str, float | None]
Range = tuple[float, float]


def headline_range(run: Json) -> Range:
    return named(run["headline"]).range


def headline_width(run: Json) -> Range:
    """Of a distance between two values of the headline metric."""
    low, high = headline_range(run)
    return 0.0, high - low


@dataclass(frozen=True)
class Quantity:
    """One number of a run, which every comparison and its files show.

    Attributes:
        name: in files and settings.
        label: in words, as a row of a table begins.
        of: summary of a run (``summary.summarise``) -> the number; None where the run has none. By default ``over``
            the headline metric on the sites' own test splits.
        better: "metric": as of the headline metric.
        within: the least and the largest possible value, or a function of the summary.
        column: its heading in the first table of a comparison, and on the terminal; "": it is in neither.
        over: site -> value, whether higher is better -> the number; the run's page and TensorBoard, there of each
            metric in each round, show what has it.
    """

    name: str
    label: str
    of: Callable[[Json], Any] | None = None
    better: Literal["metric", "higher", "lower"] = "metric"
    within: Range | Callable[[Json], Range] = headline_range
    column: str = ""
    over: Callable[[Values, bool], float | None] | None = None

    def value(self, run: Json) -> float | None:
        if self.of is not None:
            return number(self.of(run))
        values = {row["site"]: row["value"] for row in run["sites"]}
        return None if self.over is None else number(self.over(values, run["higher_is_better"]))

    def higher_is_better(self, headline: bool) -> bool:
        return headline if self.better == "metric" else self.better == "higher"

    def range(self, run: Json) -> Range:
        return self.within(run) if callable(self.within) else self.within


def nothing(run: Json) -> Sequence[Any]:
    return ()


@dataclass(frozen=True)
class Section:
    """A part of the run's page, which is left out where all of it is empty.

    ``words.html.j2`` may show it in its own way; else the page has its sentences, figures and tables.

    Attributes:
        id: its anchor.
        title: its heading, or a function of the summary.
        at: where its rows stand in the summary.
        tables: summary -> tables for the page, see ``frames.shown``.
        sentence: summary -> paragraphs.
        figure: summary -> SVG elements of ``report.svg``.
    """

    id: str
    title: str | Callable[[Json], str]
    at: tuple[str, ...] = ()
    tables: Callable[[Json], Sequence[Json]] = nothing
    sentence: Callable[[Json], Sequence[str]] = nothing
    figure: Callable[[Json], Sequence[str]] = nothing

    def rows(self, run: Json) -> Any:
        """What stands at ``at``; None where the run has none."""
        found: Any = run if self.at else None
        for key in self.at:
            found = (found or {}).get(key)
        return found

    def shown(self, run: Json) -> Json | None:
        """What the templates take; None where there is nothing to show."""
        found = {"said": [*self.sentence(run)], "tables": [*self.tables(run)]}
        parts = {**found, "figures": drawn(self.figure(run))}
        if not self.rows(run) and not any(parts.values()):
            return None
        return {"id": self.id, "title": self.title(run) if callable(self.title) else self.title, **parts}
