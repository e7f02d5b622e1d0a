# SPDX-License-Identifier: Apache-2.0
"""What the reader of a run folder must know beside the configuration; written before the first round.

The report is made from the run folder alone: it loads no task and no method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairflare.core.metric import described
from fairflare.core.types import PERSONAL
from fairflare.engine.clinical import NOTHING, View
from fairflare.engine.setup.clinical import view_of
from fairflare.engine.setup.run_config import RunConfig

if TYPE_CHECKING:
    from fairflare.engine.setup.site_parts import Parts

SHARED = "shared"


def about(config: RunConfig, parts: Parts) -> dict[str, Any]:
    """The key "about" of ``config.json``, as JSON values.

    Args:
        config: the run.
        parts: the objects that it names.

    Returns:
        counted: "personal" where the results are those of the sites' own models, else absent; used: where sites are
        shown models of their own, "personal" if these are the ones that they use, else "shared"; title, real,
        simulated, drawn, classes, headline and primary endpoint of the task; sites: name -> description, in its order;
        domains (where a task has any): name -> domain; table_sets: "clean" and "corrupted" -> the shared test sets of
        the papers' tables; groups: names, in order; clinical (where cases have one class): event, the class whose risk
        is looked at (None: that the likeliest is right) and threshold; group_metric: what a group's value is; metrics:
        name -> label, meaning, chance, higher_is_better; numbers: name -> meaning of what sites report beside the
        update.
    """
    task, view = parts.task, view_of(config, parts)
    described_sites = zip(config.clients or task.sites(), task.sites().values(), strict=True)
    domains = dict(zip(config.clients or task.domains(), task.domains().values(), strict=False))
    own = {"counted": PERSONAL} if parts.counts_own else {}
    if parts.has_personal or parts.rule.own_models:
        own["used"] = PERSONAL if parts.has_personal or parts.counts_own else SHARED
    return {
        **own,
        "title": task.title,
        "real": task.real,
        "simulated": task.simulated,
        "drawn": list(task.drawn()),
        "classes": list(task.classes),
        "headline": task.headline,
        "primary": task.primary,
        "sites": dict(described_sites),
        **({"domains": domains} if domains else {}),
        "table_sets": task.table_sets(),
        "groups": list(parts.grouping.names),
        **({} if view is NOTHING else {"clinical": _clinical(task.classes, view)}),
        "group_metric": task.kind.score or task.headline,
        "metrics": described(map(task.metric, _shown(parts)), len(task.classes)),
        "numbers": {
            number.name: number.meaning for anchored in (False, True) for number in parts.scalars(anchored=anchored)
        },
    }


def _shown(parts: Parts) -> tuple[str, ...]:
    """The metrics that a report says in words; every format that was written before knows what accuracy is."""
    task = parts.task
    return tuple(dict.fromkeys((*parts.metrics, task.headline, task.kind.score or "accuracy", "accuracy")))


def _clinical(classes: Sequence[str], view: View) -> dict[str, Any]:
    return {"event": None if view.event is None else classes[view.event], "threshold": view.threshold}
