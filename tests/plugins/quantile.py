# SPDX-License-Identifier: Apache-2.0
"""An exchange of a plugin: a quantile of the predicted risks of all sites' test patients.

A site answers once, with cumulative counts at edges of a grid. It leaves out every edge that has fewer than ``least``
patients since the last one, or above it: so no two of its counts differ by fewer patients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax

from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import MOST_EXAMPLES, Number
from fairflare.engine.checks import Rejection
from fairflare.engine.exchanges.base import Ended, Exchange, OfRun, Work, ask, exchange
from fairflare.engine.site import Site

EDGES = np.linspace(0.0, 1.0, 33)[1:-1]
"""Risks at which a site counts the patients below."""


@dataclass(frozen=True)
class AtSite:
    """``least``: the fewest patients between two counts; None: nothing leaves."""

    least: int | None

    @property
    def tasks(self) -> Mapping[str, Work]:
        return {"risks": self.counts}

    def counts(self, site: Site, instruction: Instruction) -> Answer:
        """The site's counts; raises AskedAgain for another model than the first."""
        model, _ = site.question(instruction)
        site.asked.once("risks", model)
        risks = softmax(site.predict("test")[0].double().numpy(), axis=1)[:, 1]
        reports = released(risks, self.least) if self.least and len(risks) >= self.least else {}
        return Answer(site.name, instruction.round.number, reports=reports)


def released(risks: np.ndarray, least: int) -> dict[str, float]:
    """Name -> count of what may leave of (N,) risks."""
    n, last, found = len(risks), 0, {}
    for place, edge in enumerate(EDGES):
        below = int((risks <= edge).sum())
        if below - last >= least and n - below >= least:
            found[f"below{place}"] = float(below)
            last = below
    return found | {"n": float(n)}


def distribution(counts: Mapping[str, float]) -> np.ndarray:
    """(32,) patients up to each edge, and up to 1; linear between the edges that a site has told."""
    told = {float(EDGES[k]): counts[f"below{k}"] for k in range(len(EDGES)) if f"below{k}" in counts}
    points = {0.0: 0.0, **told, 1.0: counts["n"]}
    return np.interp([*EDGES, 1.0], list(points), list(points.values()))


@dataclass(frozen=True)
class AtServer:
    """The server's half."""

    level: float
    numbers: tuple[Number, ...]

    event: ClassVar[str] = "exchange"
    needs_first: ClassVar[bool] = False
    of_training_sites: ClassVar[bool] = False

    def run(self, ended: Ended) -> tuple[dict[str, Any], list[Rejection]]:
        """The quantile: the risk below which a share ``level`` of all patients lies."""
        found, rejections = ask(ended, "risks", self.numbers)
        total = sum((distribution(one) for one in found.values() if "n" in one), np.zeros(len(EDGES) + 1))
        value = float(np.interp(self.level * total[-1], [0.0, *total], [0.0, *EDGES, 1.0])) if total[-1] else None
        return {"exchange": "quantile", "level": self.level, "value": value, "sites": found}, rejections


@exchange("quantile")
@dataclass(frozen=True)
class Quantile(Exchange):
    """``level``: of the quantile, in (0, 1); ``least``: a minimum count of its own, beside the site's."""

    tasks = ("risks",)

    level: float = 0.5
    least: int = 20

    def at_site(self, run: OfRun) -> AtSite:
        return AtSite(None if run.min_count is None else max(self.least, run.min_count))

    def at_server(self, run: OfRun) -> AtServer:
        return AtServer(self.level, self.numbers(run))

    def numbers(self, run: OfRun) -> tuple[Number, ...]:
        count = (0.0, float(MOST_EXAMPLES))
        below = (Number(f"below{k}", *count, f"patients with a risk of at most {e:g}") for k, e in enumerate(EDGES))
        return (Number("n", *count, "test patients"), *below)
