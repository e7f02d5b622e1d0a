# SPDX-License-Identifier: Apache-2.0
"""What a step after the last round has fitted for a site, applied to new cases."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.data.tensors import LABEL
from fairflare.engine.after.base import AfterStep, Fit, Shape, fit_of
from fairflare.engine.after.conformal import Conformal, class_scores
from fairflare.engine.after.recalibrate import Recalibrate
from fairflare.engine.files import read_json
from fairflare.engine.memory import AFTER_ENDING
from fairflare.engine.setup.at_site import shape_of
from fairflare.engine.setup.config import RunConfig, with_step
from fairflare.engine.setup.parts import Parts
from fairflare.engine.setup.site_parts import step_of

HALF = 0.5


@dataclass(frozen=True)
class Adjustment:
    """A step with what it has fitted.

    Attributes:
        step: what was done.
        fits: index of a group -> what holds for its cases; -1: for all others.
        shape: of the task.
        words: what it is, for people.
    """

    step: AfterStep
    fits: Mapping[int, Fit]
    shape: Shape
    words: str

    @property
    def by_group(self) -> bool:
        return self.step.by == "group"

    def probabilities(self, outputs: Tensor, members: Tensor) -> np.ndarray:
        """float64 (N, C): recalibrated where the step does that, else softmax.

        Args:
            outputs: (N, C) logits.
            members: (N,) index of each case's group, -1 where it is in none.
        """
        if isinstance(self.step, Recalibrate):
            return self.step.probabilities(outputs.double().numpy(), members.numpy(), self.fits, self.shape)
        return outputs.double().softmax(1).numpy()

    def lambdas(self, members: Tensor) -> np.ndarray:
        """(N,) of a conformal step, nan where there is none."""
        found = [fit_of(self.fits, int(member)).get("threshold", math.nan) for member in members]
        return np.array(found, dtype=np.float64)

    @property
    def flags(self) -> bool:
        """Whether cases (pixels) of the second class (a structure) are flagged from a threshold on."""
        return isinstance(self.step, Conformal) and (self.step.loss == "missed" or self.shape.has_masks)

    @property
    def makes_sets(self) -> bool:
        return isinstance(self.step, Conformal) and not self.flags

    def sets(self, probabilities: np.ndarray, members: Tensor) -> list[list[int]]:
        """The classes in each case's set; all of them where there is no threshold."""
        assert isinstance(self.step, Conformal)
        scores = class_scores(probabilities, self.step.score)
        limits = np.nan_to_num(self.lambdas(members), nan=1.0)
        return [[int(c) for c in np.flatnonzero(row <= limit)] for row, limit in zip(scores, limits)]


def adjustment_of(
    config: RunConfig, parts: Parts, entries: Sequence[Mapping[str, Any]], site: str, place: Path, sha256: str
) -> tuple[Adjustment | None, list[str]]:
    """What holds for ``site``, and remarks; None where the run has no such step, or no site is named.

    The site's own file says it; without one the run's log, as far as the site's own numbers left it.

    Raises:
        UserError: the file is of another model, or holds what no step fits.
    """
    logged = [entry for entry in entries if entry.get("event") == "after"]
    if not logged:
        return None, []
    last = logged[-1]
    if not site:
        return None, [f"the run has a step after its last round ({last['step']}): --site NAME applies it"]
    path = site_file(place, site, AFTER_ENDING)
    content = read_json(path) if path is not None else _from_log(last, site)
    if content is None:
        return None, [f"what {last['step']} has fitted for {site} is not in {place}, nor in the log: not applied"]
    if path is not None and content.get("model") != sha256:
        raise UserError(f"{path.name}: was fitted to another model than the one that is used; --plain leaves it out")
    name, settings = str(content.get("step")), content.get("settings")
    if name == config.after and not isinstance(settings, dict):
        stepped = config
    else:
        stepped = with_step(config, name, {**(settings if isinstance(settings, dict) else {}), "by": content.get("by")})
    step = step_of(stepped)
    assert step is not None  # with_step has refused any other
    shape = shape_of(stepped, parts)
    fits = _fits(content, step, shape)
    if not any(fits.values()):
        return None, [f"{name} had too few cases to fit anything for {site}: not applied"]
    source = "" if path is not None else ", as far as the log says"
    return Adjustment(step, fits, shape, f"{name} by {step.by}{source}"), []


def members_of(parts: Parts, attributes: Mapping[str, Sequence[str]], n: int) -> Tensor:
    """(N,) index of each case's group in the run's grouping; -1 where it is not known, or goes by the label."""
    keys = parts.grouping.keys
    if not keys or LABEL in keys or any(key not in attributes for key in keys):
        return torch.full((n,), -1)
    return parts.grouping.index(n, torch.empty(0, dtype=torch.int64), attributes)


def _from_log(entry: Mapping[str, Any], site: str) -> dict[str, Any] | None:
    numbers = entry["sites"].get(site)
    if not isinstance(numbers, dict):
        return None
    own = {key[len("own.") :]: value for key, value in numbers.items() if key.startswith("own.")}
    shared: dict[str, dict[str, float]] = {"": {}}
    for key, value in {**(entry.get("shared") or {}), **numbers}.items():
        if key.startswith("shared."):
            name, _, group = key[len("shared.") :].partition("/")
            shared.setdefault(group, {})[name] = value
    found = own if entry["by"] == "site" else {}
    return {"step": entry["step"], "by": entry["by"], "own": found, "shared": shared}


def _fits(content: Mapping[str, Any], step: AfterStep, shape: Shape) -> dict[int, Fit]:
    """Index of a group -> its parameters, each checked against the step's ranges."""
    own, shared = content.get("own"), content.get("shared")
    if not isinstance(own, dict) or not isinstance(shared, dict):
        raise UserError("the step's parameters: expected own and shared ones")
    if step.by == "site":
        return {-1: _checked(own or shared.get("", {}), step)}
    groups = {g: _checked(shared.get(name, {}), step) for g, name in enumerate(shape.groups)}
    return {-1: _checked(shared.get("", {}), step), **groups}


def _checked(fit: Any, step: AfterStep) -> dict[str, float]:
    if not isinstance(fit, dict):
        raise UserError("the step's parameters: expected numbers by name")
    for name, value in fit.items():
        low, high, _ = step.parameters.get(name, (0.0, 0.0, ""))
        if name not in step.parameters or type(value) not in (int, float) or not low <= value <= high:
            raise UserError(f"the step's parameters: {str(name)[:40]}: expected a number in {low:g}..{high:g}")
    return {name: float(value) for name, value in fit.items()}


def site_file(place: Path, site: str, ending: str) -> Path | None:
    """``SITE<ending>`` in ``place``, or a deployed site's ``SITE.<hash><ending>``; None where there is none.

    Raises:
        UserError: there are several, of several configurations or users.
    """
    if (place / f"{site}{ending}").is_file():
        return place / f"{site}{ending}"
    name = re.compile(rf"{re.escape(site)}\.[0-9a-f]{{32}}{re.escape(ending)}")
    items = sorted(place.iterdir()) if place.is_dir() else []
    found = [path for path in items if name.fullmatch(path.name) and path.is_file()]
    if len(found) > 1:
        raise UserError(f"{place}: holds {len(found)} files {site}.*{ending}; give the folder of one federation's")
    return found[0] if found else None
