# SPDX-License-Identifier: Apache-2.0
"""The gate's check of each field of an answer: the update's form, its counts, and what parts declared.

An update is looked at once: form, finiteness and norms come of one pass over its entries. Small entries are looked at
together, since a network has a hundred of them: a call costs more than their contents. Counts are held against the
site's number of training examples, and against each other: each of them is within its own range, which is as wide as
any site may be, and rules add them over sites, so that a site whose counts nothing holds down is the federation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairflare.core.metric import named
from fairflare.core.schema import LONGEST_WORK, Slot, Spec, answer_fields, nested, wrong_tensors
from fairflare.core.tensor_files import Stored, gathered
from fairflare.core.types import GROUP_COUNT, MOST_EXAMPLES, Number, StateDict
from fairflare.engine import checks
from fairflare.engine.norms import Norms, hypots, kind_of, norm_of
from fairflare.functional.group_rates import CORRECT, SEEN, Counts, counts_of
from fairflare.privacy.egress import all_finite

Ranges = Mapping[str, tuple[float, float]]
MOST_METRICS = 64
SMALL = 1 << 14
"""Entries below this size are looked at together."""
VARIANCE = "running_var"
"""How the name of a variance ends."""
ROUNDING = -1e-6
"""How far below zero a variance may end."""


def materialized(value: Any) -> Any:
    """The tensor itself: FLARE keeps large ones on disk until someone looks at them."""
    return value.materialize() if callable(getattr(value, "materialize", None)) else value


def checked_count(value: Any, declared: int | None, name: str = "n_examples", spec: Spec | None = None) -> int:
    """A whole number within the range of its specification and at most ``declared``; raises Refused.

    Args:
        declared: what the site declared before the first round; None: nothing.
        name: the field, which is also the refusal's code.
        spec: its specification; by default that of n_k.
    """
    spec = spec or answer_fields()[name]
    if not checks.is_number(value) or not math.isfinite(value) or value != int(value) or value < spec.low:
        least = f"above {spec.low - 1:g}" if spec.low > 0 else f"of at least {spec.low:g}"
        raise checks.Refused(name, f"{name}: expected a whole number {least}, got {checks.short(repr(value))}")
    if declared is not None and value > declared:
        raise checks.Refused("count_mismatch", f"{name}: expected at most the declared {declared}, got {int(value)}")
    if value > spec.high:
        raise checks.Refused(name, f"{name}: expected at most {spec.high:.0f}, got {value:g}")
    return int(value)


def checked_metrics(metrics: Any, ranges: Ranges | None = None) -> dict[str, float]:
    """The numbers within their ranges among ``metrics``; they inform people, so a bad one is just dropped.

    Args:
        ranges: name -> range of every metric of the task; None: any short name, see ``core.metric.named``.
    """
    return _among(metrics, lambda name: named(name).range if ranges is None else ranges.get(name))


def checked_sizes(sizes: Any, names: Sequence[str]) -> dict[str, float]:
    """The whole numbers among ``sizes`` that can be numbers of examples."""
    found = _among(sizes, lambda name: (0.0, float(MOST_EXAMPLES)) if name in names else None)
    return {name: value for name, value in found.items() if value == int(value)}


def checked_seconds(seconds: Any) -> dict[str, float]:
    """The wall times among ``seconds``; empty for an answer that holds something else there."""
    return _among(seconds, lambda name: (0.0, LONGEST_WORK))


def _among(content: Any, range_of: Callable[[str], tuple[float, float] | None]) -> dict[str, float]:
    """Name -> number, sorted by name, for short names that have a range and numbers within; never raises."""
    try:
        content = content if isinstance(content, (dict, Mapping)) else {}
        pairs = [(name, content[name]) for name in content if isinstance(name, str) and len(name) <= checks.LONGEST]
        good = {checks.one_line(name): float(v) for name, v in pairs if checks.is_number(v)}
    except Exception:  # an answer may hold anything
        return {}
    found = {}
    for name in sorted(good):
        low, high = range_of(name) or (1.0, 0.0)
        if low <= good[name] <= high:
            found[name] = good[name]
    return dict(list(found.items())[:MOST_METRICS])


@dataclass(frozen=True)
class Measured:
    """An accepted update, and kind -> size, see ``norms.norms_of``: both come of one look."""

    update: Mapping[str, Tensor]
    sizes: Norms


@dataclass(frozen=True)
class Group:
    """Entries that are looked at together: one large one, or the small ones of one kind and type.

    Attributes:
        room: how large the update's norm may be there for its sum with the model to be finite for sure.
        variances: (N,) the model's values, where these are variances.
    """

    keys: tuple[str, ...]
    kind: str
    room: float
    variances: Tensor | None


@dataclass(frozen=True)
class Form:
    """What an update to a model must look like, worked out once for all sites that were sent it."""

    entries: StateDict
    dtypes: Mapping[str, torch.dtype]
    sizes: Norms
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, model: StateDict, trainable: frozenset[str]) -> Form:
        """The form of updates to ``model``."""
        entries = {key: value for key, value in model.items() if value.is_floating_point()}
        together: dict[tuple[str, torch.dtype, bool, str], list[str]] = {}
        for key, value in entries.items():
            variance = key.endswith(VARIANCE)
            alone = "" if value.numel() < SMALL or variance else key
            together.setdefault((kind_of(key, trainable), value.dtype, variance, alone), []).append(key)
        groups, norms = [], []
        for (kind, dtype, variance, _), keys in together.items():
            flat = _flat([entries[key] for key in keys])
            norms.append((kind, norm_of(flat)))
            room = torch.finfo(dtype).max / 2 - norms[-1][1]
            groups.append(Group(tuple(keys), kind, room, flat if variance and flat.numel() else None))
        return cls(entries, {key: value.dtype for key, value in entries.items()}, hypots(norms), tuple(groups))

    def look(self, update: Mapping[str, Any]) -> Measured | None:
        """The update with its sizes; None where an entry needs a closer look, whether or not it is good.

        Entries that lie in files stay there: those of one group at a time are read.
        """
        held: dict[str, Tensor | Stored] = {}
        for key, like in self.entries.items():
            value = update[key]
            kind = type(value)
            if kind is Tensor:
                if value.layout is not torch.strided or value.device.type != "cpu":
                    return None
                value = value.detach() if value.requires_grad else value
            elif kind is not Stored:
                return None
            if value.shape != like.shape or value.dtype is not like.dtype:
                return None
            held[key] = value
        norms = []
        for group in self.groups:
            flat = _flat([materialized(held[key]) for key in group.keys])
            norms.append((group.kind, norm_of(flat)))
            # A norm is no less than any entry: below this none of the sum with the model leaves the type's range.
            if not norms[-1][1] < group.room:
                return None
            if group.variances is not None and not float((group.variances + flat).min()) >= ROUNDING:
                return None
        return Measured(gathered(held, self.dtypes), hypots(norms))


def _flat(values: Sequence[Tensor]) -> Tensor:
    """(N,): all entries of ``values``, of one without a copy."""
    flat = [value.reshape(-1) for value in values]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


@dataclass(frozen=True)
class Against:
    """What the server knows that an answer is held against."""

    form: Form
    declared: int | None
    numbers: Sequence[Number]
    wanted: Sequence[str]
    metrics: Ranges | None = None
    tensors: Mapping[str, Slot] = field(default_factory=dict)


def _checked_update(update: Any, form: Form) -> Measured:
    """The update with the model's own types; nothing of it is kept when any entry is wrong."""
    expected = form.entries
    if not isinstance(update, Mapping):
        raise checks.Refused("keys", f"expected {len(expected)} tensors, got {type(update).__name__}")
    missing, extra = sorted(set(expected) - set(update)), sorted(map(str, set(update) - set(expected)))
    if missing or extra:
        what = f"missing {checks.short(missing[0])!r}" if missing else f"unexpected {checks.short(extra[0])!r}"
        raise checks.Refused("keys", f"expected the model's {len(expected)} floating-point entries, {what}")
    return form.look(update) or _entry_by_entry(update, form)


def _entry_by_entry(update: Mapping[str, Any], form: Form) -> Measured:
    """The closer look: the first wrong entry is named, and one of another floating-point type is cast."""
    held: dict[str, Tensor | Stored] = {}
    norms = []
    kinds = {key: group.kind for group in form.groups for key in group.keys}
    for key, like in form.entries.items():
        value = update[key]
        tensor = _tensor_of(key, value, like)
        if key.endswith(VARIANCE) and bool((like + tensor < ROUNDING).any()):
            raise checks.Refused("variance", f"{key}: expected a difference that leaves the variance >= 0")
        if not all_finite(tensor) or not all_finite(like + tensor):
            raise checks.Refused("nonfinite", f"{key}: expected finite numbers, got NaN or infinity")
        norms.append((kinds[key], norm_of(tensor)))
        held[key] = value if isinstance(value, Stored) else tensor
    return Measured(gathered(held, form.dtypes), hypots(norms))


def _tensor_of(key: str, value: Any, like: Tensor) -> Tensor:
    """What was sent for an entry as a tensor like the model's; of a tensor in a file the form is known unread."""
    if isinstance(value, Stored):
        _check_form(key, value.shape, value.dtype, like)
    # Site privacy filters (FLARE's SVT) turn tensors into numpy arrays: that is no fault of the site.
    value = materialized(value)
    tensor = torch.from_numpy(value) if type(value).__module__ == "numpy" and hasattr(value, "shape") else value
    if not isinstance(tensor, Tensor):
        raise checks.Refused("dtype", f"{key}: expected a tensor, got {type(value).__name__}")
    _check_form(key, tensor.shape, tensor.dtype, like)
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise checks.Refused("dtype", f"{key}: expected a dense tensor, got {tensor.layout}")
    return tensor.detach().to(device="cpu", dtype=like.dtype)


def _check_form(key: str, shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> None:
    if tuple(shape) != tuple(like.shape):
        raise checks.Refused("shape", f"{key}: expected {tuple(like.shape)}, got {tuple(shape)}")
    if not dtype.is_floating_point:
        raise checks.Refused("dtype", f"{key}: expected {like.dtype}, got {dtype}")


def _checked_tensors(value: Any, slots: Mapping[str, Slot]) -> dict[str, Mapping[str, Tensor]]:
    """name -> {entry: tensor} of what parts declared; the whole answer is refused for any other."""
    if isinstance(value, Mapping):
        value = {name: one if isinstance(one, Stored) else materialized(one) for name, one in value.items()}
    if wrong := wrong_tensors(value, slots):
        raise checks.Refused(wrong.code, f"tensor {wrong.name}: {wrong.why}" if wrong.name else f"tensors: {wrong.why}")
    found = {name: value[name] for name in slots if name in value}
    kept = {name: one if isinstance(one, Stored) else one.detach().cpu() for name, one in found.items()}
    return {name: gathered(entries, dict.fromkeys(entries, torch.float32)) for name, entries in nested(kept).items()}


def _check_difference(value: Any) -> None:
    if value != "diff":
        raise checks.Refused("params_type", f"expected a difference, got {checks.short(str(value))!r}")


Check = Callable[[str, Any, Spec, Against], Any]
CHECKS: Mapping[str, Check | None] = {
    "round": None,  # ``first_good`` has looked at it
    "error": None,
    "name": None,
    "signed": None,  # ``Countersigned`` has looked at it
    "difference": lambda name, value, spec, at: _check_difference(value),
    "update": lambda name, value, spec, at: _checked_update(value, at.form),
    "count": lambda name, value, spec, at: checked_count(value, at.declared if spec.declared else None, name, spec),
    "numbers": lambda name, value, spec, at: checks.checked_scalars(value, at.numbers, at.wanted),
    "tensors": lambda name, value, spec, at: _checked_tensors(value, at.tensors),
    "metrics": lambda name, value, spec, at: checked_metrics(value, at.metrics),
    "seconds": lambda name, value, spec, at: checked_seconds(value),
}
"""Kind -> the check of a value, which returns it as it is accepted or raises ``Refused``; None: nothing to accept.

A kind that is not here cannot be accepted.
"""


def check_counts(scalars: Mapping[str, float], specs: Sequence[Number], n_examples: int) -> None:
    """Raise Refused for counts that no ``n_examples`` training examples have."""
    counted = {spec.name: spec.of_examples for spec in specs if spec.of_examples is not None and spec.name in scalars}
    for name, times in counted.items():
        value, most = scalars[name], times * n_examples
        if value != int(value) or value > most:
            raise _wrong(f"{name}: expected a whole number of at most {most:g}, got {value:g}")
    # Groups are parts of the training split.
    sizes = [value for name, value in scalars.items() if name.startswith(f"{GROUP_COUNT}/")]
    if any(value != int(value) for value in sizes) or sum(sizes) > n_examples:
        raise _wrong(f"group_count: expected whole numbers of at most {n_examples} in all")
    if SEEN in counted:
        _check_decisions(scalars)


def _check_decisions(scalars: Mapping[str, float]) -> None:
    """Groups are parts of the examples that were seen, and what is right or wrong in them is so of all.

    A positive that was found is a right answer; one that was missed and a false alarm are wrong ones, whatever the
    number of classes.
    """
    seen, correct = scalars[SEEN], scalars.get(CORRECT, 0.0)
    if correct > seen:
        raise _wrong(f"{CORRECT}: expected at most the {seen:g} seen, got {correct:g}")
    groups = counts_of(scalars)
    for name, one in groups.items():
        if one.true_positives > one.positives or one.false_positives > one.negatives:
            raise _wrong(f"group {name}: more decisions for the positive class than examples")
    total = sum(groups.values(), Counts())
    if total.positives + total.negatives > seen:
        raise _wrong(f"groups: expected at most the {seen:g} examples seen, got {total.positives + total.negatives:g}")
    wrong = total.positives - total.true_positives + total.false_positives
    if total.true_positives > correct or wrong > seen - correct:
        raise _wrong(f"groups: expected decisions of which {correct:g} of {seen:g} can be right")


def _wrong(detail: str) -> checks.Refused:
    return checks.Refused("count_mismatch", detail)
