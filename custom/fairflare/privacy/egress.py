# SPDX-License-Identifier: Apache-2.0
"""The allow-list of what a site may send: everything has a name that was agreed on, a kind and a range."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch

from fairflare.core.errors import EgressRefused
from fairflare.core.findings import BANDS, KINDS
from fairflare.core.manifest import NAMES, TEXT
from fairflare.core.metric import named
from fairflare.core.schema import MASKED, PHASES, SPLITS, Answer, Slot, Spec, answer_fields, wrong_tensors
from fairflare.core.types import INTERVALS, MOST_EXAMPLES, PERSONAL, TRIVIAL, Number, StateDict
from fairflare.privacy.disclosure import Budget, disclosed
from fairflare.privacy.identity import is_proof

LARGEST = float(MOST_EXAMPLES)
MOST_ROUNDS = 10**6


FieldCheck = Callable[[Any, str], object]
"""(value of a field, task) -> raises EgressRefused, or any exception, unless the value may leave."""


@dataclass(frozen=True)
class Egress:
    """What answers may hold; anything else refuses the whole answer.

    Attributes:
        model: w^0; an update has its floating-point entries, with their shapes.
        metrics: names of the task's metrics, "loss" and "train_loss" among them; with their ranges where they are not
            those of ``core.metric.named``.
        secure: whether the run has secure sums.
        tensors: "name/entry" -> slot of the tensors that the method's parts send.
        personal: whether the run's trainer keeps personal models, whose results then leave.
        checks: field -> the check of its value, for the fields of the exchanges that the run names; a field of another
            exchange must be empty.
        budget: whom the run's privacy budget protects, see ``disclosure``.
    """

    model: StateDict
    scalars: tuple[Number, ...]
    metrics: Collection[str] | Mapping[str, tuple[float, float]]
    groups: tuple[str, ...]
    secure: bool = False
    tensors: Mapping[str, Slot] = field(default_factory=dict)
    personal: bool = False
    checks: Mapping[str, FieldCheck] = field(default_factory=dict)
    budget: Budget = ""

    def check(self, task: str, answer: Answer) -> None:
        """Raise EgressRefused unless every field of an answer to ``task`` is on the list; masks come after this."""
        if (answer.update is not None) != (task == self.task_with_update):
            raise EgressRefused(
                f"weights in an answer to {task}" if answer.update is not None else "no weights after training"
            )
        if self.budget:
            allowed = disclosed(answer, task, self.budget)
            for name in answer_fields():
                if name != "update" and getattr(answer, name) != getattr(allowed, name):
                    raise EgressRefused(f"{name}: more than the privacy budget covers")
        for check, place in _checks(task, self.secure):
            check(self, getattr(answer, place.name), place)

    def check_final(self, answer: Answer) -> None:
        """The last look at an answer: raise EgressRefused where secure sums ask for a mask and the update has none."""
        if not self.secure or answer.update is None:
            return
        values = answer.update.values()
        if answer.update_kind != MASKED or any(getattr(v, "dtype", None) != torch.int64 for v in values):
            raise EgressRefused("an update that nobody masked")

    @property
    def task_with_update(self) -> str:
        """The task whose answer holds an update: the last one of a round's."""
        return "weigh" if self.secure else "train"

    def _check_of_exchange(self, value: Any, field: _Field) -> None:
        """By the exchange that fills the field; the text of any other error than EgressRefused may hold numbers."""
        if value is None if field.spec.kind == "sums" else isinstance(value, (dict, Mapping)) and not value:
            return
        check = self.checks.get(field.name) if field.here else None
        if check is None:
            raise EgressRefused(f"{field.name}: not in this exchange or this run")
        try:
            check(value, field.task)
        except EgressRefused:
            raise
        except Exception as error:
            raise EgressRefused(f"{field.name}: {type(error).__name__}") from None

    def _check_count(self, value: Any, field: _Field) -> None:
        if value is not None:
            bounds = {field.name: (field.spec.low, field.spec.high)}
            _check_numbers("count", {field.name: value}, bounds if field.here else {})
            if value != int(value):
                raise EgressRefused(f"count {field.name}: not a whole number")

    def _check_metrics(self, value: Any, field: _Field) -> None:
        hidden = field.spec.hidden if self.secure else ()
        known = {name: bounds for name, bounds in self._metric_ranges.items() if name not in hidden}
        _check_numbers("metric", value, known if field.here else {})

    def _check_update(self, update: Any) -> None:
        if update is None:
            return
        expected = {key: tuple(value.shape) for key, value in self.model.items() if value.is_floating_point()}
        if not isinstance(update, Mapping) or set(update) != set(expected):
            raise EgressRefused("weights whose names are not the model's")
        for key, value in update.items():
            try:
                tensor = torch.as_tensor(value)
            except (TypeError, ValueError, RuntimeError):
                raise EgressRefused(f"weights {key}: not a tensor") from None
            if tuple(tensor.shape) != expected[key] or not tensor.is_floating_point():
                raise EgressRefused(f"weights {key}: shape or type")
            if not all_finite(tensor):
                raise EgressRefused(f"weights {key}: not finite")

    @cached_property
    def _metric_ranges(self) -> dict[str, tuple[float, float]]:
        own = self.metrics if isinstance(self.metrics, Mapping) else {}
        return {name: own.get(name) or named(name).range for name in self.metrics}

    def _check_evaluation(self, metrics: Any, field: _Field) -> None:
        allowed = field.here and (field.name != PERSONAL or self.personal)
        beside = () if field.name == PERSONAL else (TRIVIAL,)
        _check_names(field.name, metrics, (*SPLITS, "n", "groups", INTERVALS, *beside) if allowed else ())
        for split in SPLITS:
            _check_numbers("metric", metrics.get(split, {}), self._metric_ranges)
        _check_numbers("size", metrics.get("n", {}), dict.fromkeys(SPLITS, (0.0, LARGEST)))
        trivial = metrics.get(TRIVIAL, {})
        _check_names(TRIVIAL, trivial, SPLITS)
        for found in trivial.values():
            _check_numbers("metric", found, self._metric_ranges)
        ends = metrics.get(INTERVALS, {})
        _check_names("interval", ends, self._metric_ranges)
        for name, pair in ends.items():
            _check_numbers("interval", pair, dict.fromkeys(("low", "high"), self._metric_ranges[name]))
        groups = metrics.get("groups", {})
        _check_names("groups", groups, SPLITS)
        for cells in groups.values():
            _check_names("group", cells, self.groups)
            for cell in cells.values():
                _check_numbers("group", cell, {"n": (1.0, LARGEST), "value": (0.0, 1.0)})


@dataclass(frozen=True)
class _Field:
    """A field of an answer to ``task``; ``here``: whether it may hold anything there."""

    name: str
    spec: Spec
    task: str
    here: bool

    def bounds(self, names: Iterable[str]) -> dict[str, tuple[float, float]]:
        """The field's range for each of ``names``; no name where the field may hold nothing."""
        return dict.fromkeys(names, (self.spec.low, self.spec.high)) if self.here else {}


def check_scalars(scalars: Mapping[str, Any], known: Iterable[Number]) -> None:
    """Raise EgressRefused unless all ``scalars`` are known and within their ranges."""
    _check_numbers("scalar", scalars, {s.name: (s.low, s.high) for s in known})


def _check_signed(signed: Any, field: _Field) -> None:
    """A site's signature, or nothing yet: it is made of what leaves."""
    _check_names("signed", signed, ("numbers", "certificate", "signature") if field.here else ())
    if not all(is_proof("key" if name == "numbers" else name, value) for name, value in signed.items()):
        raise EgressRefused("signed: not a signature")


def _check_statement(metrics: Any) -> None:
    """Findings as codes with bands, and versions: no text of a site's own."""
    _check_names("preflight", metrics, ("findings", "versions"))
    bands = metrics.get("findings", {})
    _check_numbers("finding", bands, dict.fromkeys(KINDS, (0.0, float(len(BANDS)))))
    if any(value != int(value) for value in bands.values()):
        raise EgressRefused("finding: not a band")
    versions = metrics.get("versions", {})
    _check_names("version", versions, NAMES)
    if not all(isinstance(text, str) and TEXT.fullmatch(text) for text in versions.values()):
        raise EgressRefused("version: not one")


def all_finite(tensor: torch.Tensor) -> bool:
    """No NaN and no infinity; the extremes of a tensor with a NaN are NaN, so that one pass without a mask will do."""
    return not tensor.numel() or all(math.isfinite(float(extreme)) for extreme in torch.aminmax(tensor))


def _check_names(what: str, found: Any, known: Iterable[str]) -> None:
    if not isinstance(found, (dict, Mapping)):
        raise EgressRefused(f"{what}: not a mapping")
    agreed = set(known) if found else ()
    if any(name not in agreed for name in found):
        listed = f": {', '.join(sorted(agreed))[:200]}" if what == "metric" and agreed else ""
        raise EgressRefused(f"{what}: a name that is not on the list{listed}")


def _check_numbers(what: str, found: Any, ranges: Mapping[str, Sequence[float]]) -> None:
    _check_names(what, found, ranges)
    for name, value in found.items():
        low, high = ranges[name]
        real = type(value) is float or (isinstance(value, numbers.Real) and not isinstance(value, bool))
        if not real or not math.isfinite(value):
            raise EgressRefused(f"{what} {name}: not a finite number")
        if not low <= float(value) <= high:
            raise EgressRefused(f"{what} {name}: outside {low:g} to {high:g}")


def _check_round(value: Any) -> None:
    if type(value) is not int or not 0 <= value <= MOST_ROUNDS:
        raise EgressRefused("round: not a whole number")


def _check_tensors(value: Any, slots: Mapping[str, Slot]) -> None:
    wrong = wrong_tensors(value, slots)
    if wrong and wrong.code != "tensor_missing":  # what does not leave is for the server to miss
        raise EgressRefused(f"tensor {wrong.name or 'names'}: {wrong.code.removeprefix('tensor_')}")
    for name, tensor in value.items():
        # Whoever serialises a view may send all of the memory that it is a part of.
        if tensor.untyped_storage().nbytes() > tensor.nbytes:
            raise EgressRefused(f"tensor {name}: a view of a larger one")


def _check_difference(value: Any) -> None:
    if value != "diff":
        raise EgressRefused("weights that are not differences")


CHECKS: Mapping[str, Callable[[Egress, Any, _Field], None]] = {
    "name": lambda egress, value, field: None,  # the transport's own
    "error": lambda egress, value, field: None,  # a code, see ``Site.handle`` and FLARE's filter
    "round": lambda egress, value, field: _check_round(value),
    "difference": lambda egress, value, field: _check_difference(value),
    "update": lambda egress, value, field: egress._check_update(value),
    "count": Egress._check_count,
    "numbers": lambda egress, value, field: check_scalars(value, egress.scalars if field.here else ()),
    "tensors": lambda egress, value, field: _check_tensors(value, egress.tensors if field.here else {}),
    "metrics": Egress._check_metrics,
    "evaluation": Egress._check_evaluation,
    "statement": lambda egress, value, field: _check_statement(value),
    "seconds": lambda egress, value, field: _check_numbers("seconds", value, field.bounds(PHASES)),
    "signed": lambda egress, value, field: _check_signed(value, field),
    **dict.fromkeys(("sealed", "sums", "adjusted", "benefit", "clinical", "reports"), Egress._check_of_exchange),
}
"""Kind -> the check of a value before it leaves; what is of a kind that is not here cannot leave."""


@cache
def _checks(task: str, secure: bool) -> list[tuple[Callable[[Egress, Any, _Field], None], _Field]]:
    """The check of every field of an answer to ``task``."""
    return [
        (CHECKS[spec.kind_in(task)], _Field(name, spec, task, spec.travels(task, secure=secure)))
        for name, spec in answer_fields().items()
    ]
