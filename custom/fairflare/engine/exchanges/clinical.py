# SPDX-License-Identifier: Apache-2.0
"""Calibration and decisions of the model that a site uses, or survival curves: it adds them to other answers.

``engine.clinical`` and ``engine.curves`` make and check the numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, cast

from fairflare.core.types import LABEL, MOST_EXAMPLES, Cost
from fairflare.engine.clinical import NOTHING, ClinicalAtSite, View
from fairflare.engine.exchanges.base import Exchange, OfRun
from fairflare.privacy.egress import FieldCheck

if TYPE_CHECKING:
    from fairflare.tasks.kinds.survival import Survival

CURVES = "fairflare.engine.curves"
"""By a name that no reader of imports follows: jobs on classes or masks do not carry it."""


@dataclass(frozen=True)
class Clinical(Exchange):
    """No question of its own: it fills a field of the answers to "evaluate" and "adjust"."""

    fields = ("clinical",)
    cost = Cost()

    def at_site(self, run: OfRun) -> Any:
        """What makes the numbers."""
        view = view_of(run)
        if run.parts.task.kind.has_times:
            return importlib.import_module(CURVES).CurvesAtSite(view, run.min_count, kind=run.parts.task.kind)
        return ClinicalAtSite(view, run.min_count, run.config.seed, run.site)

    def leaves(self, run: OfRun) -> Mapping[str, FieldCheck]:
        """Nothing of fewer patients than the site's minimum; no minimum: nothing."""
        view, least = view_of(run), run.min_count
        if least is None:
            return {}
        return {"clinical": lambda value, task: view.checked(value, MOST_EXAMPLES, least, as_binned=task == "evaluate")}


EXCHANGE = Clinical()


def view_of(run: OfRun) -> View:
    """What server and sites know alike; ``NOTHING`` where cases have no single class and are no times."""
    task, grouping = run.parts.task, run.parts.grouping
    if not task.kind.has_times and (not task.kind.has_classes or len(task.classes) < 2):
        return NOTHING
    groups = _cells(grouping)
    if task.kind.has_times:
        curves, kind = importlib.import_module(CURVES).Curves, cast("Survival", task.kind)
        view: View = curves(None, 0.5, *groups, run.secure, kind.ends)
        return view
    threshold = task.threshold if run.config.threshold is None else run.config.threshold
    return View(task.event, threshold, *groups, run.secure)


def _cells(grouping: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names of the groups without the label, which nobody knows of a new patient, and each group's place in them."""
    kept = [place for place, key in enumerate(grouping.keys) if key != LABEL]
    if not kept:
        return (), ()
    names = list(product(*(grouping.values[place] for place in kept)))
    index = {name: number for number, name in enumerate(names)}
    of_group = tuple(index[tuple(cell[place] for place in kept)] for cell in product(*grouping.values))
    return tuple(", ".join(name) for name in names), of_group
