# SPDX-License-Identifier: Apache-2.0
"""The two sides of a configuration's step after the last round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fairflare.clinic.base import Task
from fairflare.clinic.grouping import LABEL
from fairflare.core.errors import UserError
from fairflare.core.types import MOST_EXAMPLES
from fairflare.federation.after.base import AfterStep, Shape
from fairflare.federation.after.conformal import Conformal
from fairflare.federation.after.recalibrate import Recalibrate
from fairflare.federation.after.server import After
from fairflare.federation.after.site import AfterAtSite, after_file
from fairflare.federation.clinical import View
from fairflare.privacy.egress import Egress
from fairflare.privacy.secure_sum.schemes import NONE, masked_sizes

if TYPE_CHECKING:
    from fairflare.build.config import RunConfig
    from fairflare.build.parts import Parts

NO_STEP = "none"
_CLASSES: dict[str, type[AfterStep]] = {"recalibrate": Recalibrate, "conformal": Conformal}
STEPS = (NO_STEP, *_CLASSES)
TRAINED = "the model was trained on these cases: it fits them better than new ones, and no guarantee holds"
MEASURED = "parts of the method measured on these cases in every round: they are not quite new to the model"
OWN = "fitted to the model that each site uses, which is its own"
NEW = "the method's parts did not use these cases; whether anyone chose settings by them this log cannot know"


def step_class(name: str) -> type[AfterStep] | None:
    """The class of a step; None for "none"."""
    return _CLASSES.get(name)


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


def at_server(config: RunConfig, parts: Parts, view: View) -> After | None:
    """The server's side; ``view``: what sites say of calibration and decisions."""
    step = step_of(config)
    if step is None:
        return None
    return After(config.after, step, shape_of(config, parts), config.secure_sum != NONE, _remark(step, parts), view)


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


def _remark(step: AfterStep, parts: Parts) -> str:
    """What a reader must know of the calibration cases, and of whose model they are."""
    measured = any(need.split == step.split for need in parts.needs)
    cases = TRAINED if step.split == "train" else MEASURED if measured else NEW
    return f"{cases}; {OWN}" if parts.has_personal or parts.rule.counts_own else cases
