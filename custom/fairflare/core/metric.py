# SPDX-License-Identifier: Apache-2.0
"""What a metric is, and the one list of them: whatever checks, shows or compares a metric asks here.

A ``Metric`` that stands in a module is found by being there: the package's own in ``tasks/metrics*.py``, others in
plugins (``core.plugins``). Importing this file imports no NumPy and no PyTorch.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fairflare.core import plugins
from fairflare.core.errors import UserError
from fairflare.core.validation import unlisted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

OWN = "fairflare.tasks.metrics"
"""The module of the package's own metrics; beside it ``metrics_KIND`` holds those of one kind of task alone."""
LARGEST_LOSS = 1e6
"""The largest loss that a site may report."""
LOSSES = ("loss", "train_loss")
"""What every task reports beside its metrics."""
LONGEST = 64
"""Characters of a name, which the update gate allows."""


@dataclass(frozen=True)
class Metric:
    """A number that says how well a model does on a set of cases.

    ``value``, ``each`` or ``weighted`` computes it from the cases as the task's kind makes them of outputs and targets
    (``tasks.kind.Cases``); one of them is enough. None, or nan under a resample, means "not defined here".

    Attributes:
        name: in answers, logs and files.
        label: its name in words; by default the name with spaces.
        meaning: what a value means, in words that follow a colon; "" leaves it out.
        low: the least possible value; what lies outside never leaves a site.
        high: the largest; ``LARGEST_LOSS`` for what has no bound.
        chance: number of classes -> what guessing gets; None where it depends on more.
        flat: whether every constant answer gets the chance level, whatever the cases.
        value: cases -> the metric.
        each: cases -> (N,) its value for each case, of which it is the mean.
        weighted: cases, counts (B, N) -> (B,) the metric of B resamples that hold each case so often.
        ordered: whether a worst value can be named; not of one that is best in the middle of its range.
        needs: what cases it needs to be defined, in words; "": any.
        interval: cases, level -> its lower and upper end; by default that of a mean, where ``each`` lies in [0, 1].
            The unit is a patient (``cases.patients``). The ends must not depend on the order, nor on a known draw.
        of_classes: whether it compares classes: then it has an interval, and a group has it, only where each class has
            the fewest cases that may leave.
        two_classes: whether it is defined for outcomes of two classes alone.
        kind: name of the kind of task that it is for.
        always: whether every task of that kind reports it, and not only those that name it.
        benefit: whether a run reports the benefit of joining in it, too; it needs ``each`` or ``weighted``.
        groups: whether groups of patients have it too, there.
    """

    name: str
    label: str = ""
    meaning: str = ""
    low: float = 0.0
    high: float = 1.0
    higher_is_better: bool = True
    chance: Callable[[int], float | None] = lambda n_classes: None
    flat: bool = False
    value: Callable[[Any], float | None] | None = None
    each: Callable[[Any], Array] | None = None
    weighted: Callable[[Any, Array], Array] | None = None
    ordered: bool = True
    needs: str = ""
    interval: Callable[[Any, float], tuple[float, float] | None] | None = None
    of_classes: bool = False
    two_classes: bool = False
    kind: str = "classification"
    always: bool = False
    benefit: bool = False
    groups: bool = False

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name.replace("_", " "))
        if not self.low < self.high <= LARGEST_LOSS or not math.isfinite(self.low):
            raise ValueError(f"metric {self.name!r}: expected a range low < high <= {LARGEST_LOSS:g}")
        if self.benefit and not self.resampled:
            raise ValueError(f"metric {self.name!r}: benefit: expected each or weighted, which resamples need")

    @property
    def range(self) -> tuple[float, float]:
        """``low`` and ``high``."""
        return self.low, self.high

    @property
    def resampled(self) -> bool:
        """Whether it can be computed under a resample of the cases."""
        return self.each is not None or self.weighted is not None

    @property
    def computed(self) -> bool:
        """Whether it can be computed here, from outcomes and predictions."""
        return self.value is not None or self.resampled

    def fits(self, n_classes: int) -> bool:
        """Whether it is defined for an outcome of so many classes."""
        return n_classes == 2 or not self.two_classes


def metrics() -> dict[str, Metric]:
    """Every metric by name, sorted: the package's own, and the loaded plugins'; UserError where two have one name."""
    return _found(tuple(plugins.modules()))


def get(name: str) -> Metric:
    """The metric ``name``; raises UserError that lists the known ones."""
    found = metrics()
    if name not in found:
        raise UserError(unlisted("metric", name, sorted(found)))
    return found[name]


def named(name: str) -> Metric:
    """The metric ``name`` as far as it is known now: what a script reports, or an old run's log, nobody has declared.

    Such a name stands for a share of 1 of which more is better; one that ends in "loss" for a loss of at most
    ``LARGEST_LOSS``, and one in "error" for a share of which less is better.
    """
    known = metrics()
    if name in known:
        return known[name]
    high = LARGEST_LOSS if name.endswith("loss") else 1.0
    return Metric(name, high=high, higher_is_better=not name.endswith(("loss", "error")), kind="")


def described(found: Iterable[Metric], n_classes: int) -> dict[str, dict[str, Any]]:
    """Metric -> label, meaning ("" where unknown), chance (None where unknown), higher_is_better and, where it is not
    always defined, needs: for a report."""
    return {
        one.name: {
            "label": one.label,
            "meaning": one.meaning,
            "chance": one.chance(n_classes),
            "higher_is_better": one.higher_is_better,
            **({"needs": one.needs} if one.needs else {}),
        }
        for one in found
    }


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """``values`` without what a diverged model has: no loss to report; its update is for the gate to judge.

    Other numbers are without bound, but finite: the gate alone checks their range.
    """
    known = metrics()
    high = {name: (known.get(name) or named(name)).high for name in values}
    most = {name: one if one >= LARGEST_LOSS else sys.float_info.max for name, one in high.items()}
    return {name: value for name, value in values.items() if abs(value) <= most[name]}


@lru_cache(maxsize=4)
def _found(modules: tuple[ModuleType, ...]) -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    where: dict[str, str] = {}
    for module in (*_own(), *modules):
        for one in [one for one in vars(module).values() if isinstance(one, Metric)]:
            if found.get(one.name, one) is not one:
                raise UserError(f"metric {one.name!r} is defined twice: in {where[one.name]} and in {module.__name__}")
            found[one.name], where[one.name] = one, where.get(one.name, module.__name__)
    return dict(sorted(found.items()))


def _own() -> Iterator[ModuleType]:
    """The package's modules of metrics; a job carries those of its task's kind."""
    home, _, first = OWN.rpartition(".")
    names = sorted(info.name for info in pkgutil.iter_modules(importlib.import_module(home).__path__))
    return (importlib.import_module(f"{home}.{name}") for name in names if name == first or f"{first}_" in name)
