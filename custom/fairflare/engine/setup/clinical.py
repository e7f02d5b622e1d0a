# SPDX-License-Identifier: Apache-2.0
"""What a configuration's sites say of calibration and clinical use of the model that each of them uses."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

from fairflare.core.types import MOST_EXAMPLES
from fairflare.data.grouping import LABEL, Grouping
from fairflare.engine.clinical import NOTHING, View
from fairflare.engine.clinical_site import ClinicalAtSite
from fairflare.privacy.egress import Egress
from fairflare.privacy.secure_sum.schemes import NONE
from fairflare.tasks.base import Task

if TYPE_CHECKING:
    from fairflare.engine.setup.run_config import RunConfig
    from fairflare.engine.setup.site_parts import Parts

BINARY = 2


def view_of(config: RunConfig, parts: Parts) -> View:
    """What server and sites know alike; ``NOTHING`` where cases have no single class."""
    task = parts.task
    if not task.kind.has_classes or len(task.classes) < BINARY:
        return NOTHING
    names, of_group = _cells(parts.grouping)
    threshold = task.threshold if config.threshold is None else config.threshold
    return View(event_of(task), threshold, names, of_group, config.secure_sum != NONE)


def event_of(task: Task) -> int | None:
    """Index of the class whose risk is looked at: that which the task names, of two the second; None: no one class."""
    if task.class_of_interest:
        return task.classes.index(task.class_of_interest)
    return 1 if len(task.classes) == BINARY else None


def at_site(config: RunConfig, parts: Parts, min_count: int | None, name: str) -> ClinicalAtSite | None:
    """A site's part; None where there is nothing to say."""
    view = view_of(config, parts)
    return None if view is NOTHING else ClinicalAtSite(view, min_count, config.seed, name)


def may_leave(config: RunConfig, parts: Parts, egress: Egress, min_count: int | None) -> Egress:
    """``egress`` with what a site of this minimum sends."""
    view = view_of(config, parts)
    if view is NOTHING or min_count is None:
        return egress
    check = view.checked
    return replace(
        egress, clinical=lambda value, as_binned: check(value, MOST_EXAMPLES, min_count, as_binned=as_binned)
    )


def _cells(grouping: Grouping) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names of the groups without the label, which nobody knows of a new patient, and each group's place in them."""
    kept = [place for place, key in enumerate(grouping.keys) if key != LABEL]
    if not kept:
        return (), ()
    names = list(product(*(grouping.values[place] for place in kept)))
    index = {name: number for number, name in enumerate(names)}
    of_group = tuple(index[tuple(cell[place] for place in kept)] for cell in product(*grouping.values))
    return tuple(", ".join(name) for name in names), of_group
