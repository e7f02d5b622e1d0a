# SPDX-License-Identifier: Apache-2.0
"""A configuration's step after the last round, and a site's side of it; the server's is in ``at_server``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairflare.core.errors import UserError
from fairflare.core.types import MOST_EXAMPLES
from fairflare.data.grouping import LABEL
from fairflare.engine.after.base import AfterStep, Shape
from fairflare.engine.after.site import AfterAtSite, after_file
from fairflare.privacy.egress import Egress
from fairflare.privacy.secure_sum.schemes import NONE, masked_sizes
from fairflare.tasks.base import Task

if TYPE_CHECKING:
    from fairflare.engine.setup.run_config import RunConfig
    from fairflare.engine.setup.site_parts import Parts

NO_STEP = "none"
STEPS = (NO_STEP, "recalibrate", "conformal")


def step_class(name: str) -> type[AfterStep] | None:
    """The class of a step; None for "none"."""
    if name == "recalibrate":
        from fairflare.engine.after.recalibrate import Recalibrate

        return Recalibrate
    if name == "conformal":
        from fairflare.engine.after.conformal import Conformal

        return Conformal
    return None


def step_of(config: RunConfig) -> AfterStep | None:
    """The run's step; None: there is none."""
    cls = step_class(config.after)
    if cls is None:
        return None
    try:
        return cls(**config.after_settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"after: {error}") from None


def shape_of(config: RunConfig, parts: Parts) -> Shape:
    """What server and sites know alike of the run's task.

    Nobody is calibrated among those of whom it came true: recalibration has no use for groups by label.
    """
    by_label = config.after == "recalibrate" and LABEL in config.group_by.split("+")
    return shape(parts.task, () if by_label else parts.grouping.names)


def shape(task: Task, groups: tuple[str, ...]) -> Shape:
    """The same of a task whose sites tell ``groups`` apart."""
    return Shape(len(task.classes), task.kind.has_classes, groups, task.kind.has_masks)


def at_site(config: RunConfig, parts: Parts, min_count: int | None, memory: Path | None) -> AfterAtSite | None:
    """A site's side."""
    step = step_of(config)
    if step is None:
        return None
    path = None if memory is None else after_file(memory)
    return AfterAtSite(step, shape_of(config, parts), min_count, path, config.secure_sum != NONE)


def may_leave(config: RunConfig, parts: Parts, egress: Egress) -> Egress:
    """``egress`` with what the step sends."""
    step = step_of(config)
    if step is None:
        return egress
    shape, secure = shape_of(config, parts), config.secure_sum != NONE
    return replace(
        egress,
        sums=lambda sums: step.checked(sums, shape, MOST_EXAMPLES),
        adjusted=step.reports(shape, secure=secure),
        sealed_sums=masked_sizes(step.terms(shape)) if secure else range(0),
    )
