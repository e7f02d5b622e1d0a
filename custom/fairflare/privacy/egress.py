# SPDX-License-Identifier: Apache-2.0
"""The allow-list of what a site may send: everything has a name that was agreed on, a kind and a range."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fairflare.contracts import Scalar, StateDict
from fairflare.findings import KINDS
from fairflare.privacy.pairs import KEY, PROOF, is_certificates
from fairflare.versions import NAMES, TEXT

PHASES = ("validate", "probe", "train", "report", "compare")
SPLITS = ("val", "test")
TELLTALE = ("loss", "train_loss")
"""Metrics of a round that say much the same as the numbers which the sum hides."""
SIGNATURE = re.compile(r"[A-Za-z0-9+/=]{1,1024}")
LARGEST = 1e12
LONGEST = 1e7
"""Seconds, four months."""


class EgressRefused(Exception):
    """Something was about to leave the site that is not on the list; the text holds names only, never values."""


@dataclass(frozen=True)
class Egress:
    """What answers may hold; anything else refuses the whole answer.

    Attributes:
        model: w^0; an update has its floating-point entries, with their shapes.
        scalars: numbers of the method's probes.
        metrics: names of the task's metrics, "loss" and "train_loss" among them.
        groups: names of the run's groups.
        sealed: how many bytes a site's sealed numbers may have; empty: the run has no secure sums.
    """

    model: StateDict
    scalars: tuple[Scalar, ...]
    metrics: frozenset[str]
    groups: tuple[str, ...]
    sealed: range = range(0)

    def check(
        self,
        task: str,
        *,
        update: Any,
        n_examples: Any,
        scalars: Any,
        metrics: Any,
        seconds: Any,
        sealed: Any,
    ) -> None:
        """Raise EgressRefused unless every part of an answer to ``task`` is on the list."""
        training = self.task_with_update
        if (update is not None) != (task == training):
            raise EgressRefused(
                f"weights in an answer to {task}" if update is not None else "no weights after training"
            )
        if update is not None:
            self._check_update(update)
        known = {s.name: (s.low, s.high) for s in self.scalars}
        _check_numbers("scalar", scalars, known if task in ("train", "compare") else {})
        _check_numbers("seconds", seconds, dict.fromkeys(PHASES, (0.0, LONGEST)))
        if n_examples is not None:
            _check_numbers("count", {"n_examples": n_examples}, {"n_examples": (1.0, LARGEST)})
        if task == "evaluate":
            self._check_evaluation(metrics)
        elif task == "preflight":
            _check_statement(metrics)
        else:
            _check_numbers("metric", metrics, self._round_metrics if task == training else {})
        self._check_sealed(task, sealed)

    @property
    def task_with_update(self) -> str:
        """The task whose answer holds an update: the last one of a round's."""
        return "weigh" if self.sealed else "train"

    def _check_sealed(self, task: str, sealed: Any) -> None:
        """A key and its proof in answer to "preflight", sealed numbers in answer to "sum", else nothing."""
        names = {"preflight": PROOF, "sum": ("sum",)}.get(task, ())
        _check_names("sealed", sealed, names if self.sealed else ())
        for name, value in sealed.items():
            if name == "sum" and (type(value) is not bytes or len(value) not in self.sealed):
                raise EgressRefused("sealed numbers: not bytes, or too many")
            if name != "sum" and not _is_proof(name, value):
                raise EgressRefused(f"sealed {name}: not a key or its proof")

    def _check_update(self, update: Any) -> None:
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

    @property
    def _round_metrics(self) -> dict[str, tuple[float, float]]:
        """With secure sums without what says much the same as the numbers that they hide."""
        hidden = TELLTALE if self.sealed else ()
        return {name: bounds for name, bounds in self._metric_ranges.items() if name not in hidden}

    @property
    def _metric_ranges(self) -> dict[str, tuple[float, float]]:
        return dict.fromkeys(self.metrics, (-LARGEST, LARGEST))

    def _check_evaluation(self, metrics: Any) -> None:
        _check_names("metrics", metrics, (*SPLITS, "n", "groups"))
        for split in SPLITS:
            _check_numbers("metric", metrics.get(split, {}), self._metric_ranges)
        _check_numbers("size", metrics.get("n", {}), dict.fromkeys(SPLITS, (0.0, LARGEST)))
        groups = metrics.get("groups", {})
        _check_names("groups", groups, SPLITS)
        for cells in groups.values():
            _check_names("group", cells, self.groups)
            for cell in cells.values():
                _check_numbers("group", cell, {"n": (1.0, LARGEST), "value": (0.0, 1.0)})


def check_scalars(scalars: Mapping[str, Any], known: Iterable[Scalar]) -> None:
    """Raise EgressRefused unless all ``scalars`` are known and within their ranges."""
    _check_numbers("scalar", scalars, {s.name: (s.low, s.high) for s in known})


def _is_proof(name: str, value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if name == "certificate":
        return is_certificates(value)
    return (KEY if name == "key" else SIGNATURE).fullmatch(value) is not None


def _check_statement(metrics: Any) -> None:
    """Findings as codes with counts, and versions: no text of a site's own."""
    _check_names("preflight", metrics, ("findings", "versions"))
    _check_numbers("finding", metrics.get("findings", {}), dict.fromkeys(KINDS, (0.0, LARGEST)))
    told = metrics.get("versions", {})
    _check_names("version", told, NAMES)
    if not all(isinstance(text, str) and TEXT.fullmatch(text) for text in told.values()):
        raise EgressRefused("version: not one")


def all_finite(tensor: torch.Tensor) -> bool:
    """No NaN and no infinity; the extremes of a tensor with a NaN are NaN, so that one pass without a mask will do."""
    return not tensor.numel() or all(math.isfinite(float(extreme)) for extreme in torch.aminmax(tensor))


def _check_names(what: str, found: Any, known: Iterable[str]) -> None:
    if not isinstance(found, Mapping):
        raise EgressRefused(f"{what}: not a mapping")
    extra = [name for name in found if name not in set(known)]
    if extra:
        raise EgressRefused(f"{what}: a name that is not on the list")


def _check_numbers(what: str, found: Any, ranges: Mapping[str, Sequence[float]]) -> None:
    _check_names(what, found, ranges)
    for name, value in found.items():
        low, high = ranges[name]
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise EgressRefused(f"{what} {name}: not a finite number")
        if not low <= value <= high:
            raise EgressRefused(f"{what} {name}: outside {low:g} to {high:g}")
