# SPDX-License-Identifier: Apache-2.0
"""The gate's check of every kind of field: the value as it is accepted, or ``Refused`` with a code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fairflare.core.lazy_tensors import Stored, gathered
from fairflare.core.schema import Spec
from fairflare.core.slots import Slot, nested, wrong_tensors
from fairflare.core.types import Number
from fairflare.engine.checks import (
    Ranges,
    Refused,
    checked_count,
    checked_metrics,
    checked_scalars,
    checked_seconds,
    materialized,
    short,
)
from fairflare.engine.norms import hypots, norm_of
from fairflare.engine.update_form import ROUNDING, VARIANCE, Form, Measured
from fairflare.privacy.egress import all_finite


@dataclass(frozen=True)
class Against:
    """What the server knows that an answer is held against."""

    form: Form
    round: int
    declared: int | None
    numbers: Sequence[Number]
    wanted: Sequence[str]
    metrics: Ranges | None = None
    tensors: Mapping[str, Slot] = field(default_factory=dict)


def _checked_update(update: Any, form: Form) -> Measured:
    """The update with the model's own types; nothing of it is kept when any entry is wrong."""
    expected = form.entries
    if not isinstance(update, Mapping):
        raise Refused("keys", f"expected {len(expected)} tensors, got {type(update).__name__}")
    missing, extra = sorted(set(expected) - set(update)), sorted(map(str, set(update) - set(expected)))
    if missing or extra:
        what = f"missing {short(missing[0])!r}" if missing else f"unexpected {short(extra[0])!r}"
        raise Refused("keys", f"expected the model's {len(expected)} floating-point entries, {what}")
    return form.look(update) or _entry_by_entry(update, form)


def _entry_by_entry(update: Mapping[str, Any], form: Form) -> Measured:
    """The closer look: the first wrong entry is named, and one of another floating-point type is cast."""
    held: dict[str, Tensor | Stored] = {}
    norms = []
    kinds = {key: group.kind for group in form.groups for key in group.keys}
    for key, like in form.entries.items():
        value = update[key]
        tensor = _tensor_of(key, value, like)
        norms.append((kinds[key], _checked_size(key, tensor, like)))
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
        raise Refused("dtype", f"{key}: expected a tensor, got {type(value).__name__}")
    _check_form(key, tensor.shape, tensor.dtype, like)
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise Refused("dtype", f"{key}: expected a dense tensor, got {tensor.layout}")
    return tensor.detach().to(device="cpu", dtype=like.dtype)


def _check_form(key: str, shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> None:
    if tuple(shape) != tuple(like.shape):
        raise Refused("shape", f"{key}: expected {tuple(like.shape)}, got {tuple(shape)}")
    if not dtype.is_floating_point:
        raise Refused("dtype", f"{key}: expected {like.dtype}, got {dtype}")


def _checked_size(key: str, tensor: Tensor, like: Tensor) -> float:
    """``norms.norm_of`` the entry; raises Refused where the model plus the entry is not finite, or is no variance."""
    if key.endswith(VARIANCE) and bool((like + tensor < ROUNDING).any()):
        raise Refused("variance", f"{key}: expected a difference that leaves the variance >= 0")
    if not all_finite(tensor) or not all_finite(like + tensor):
        raise Refused("nonfinite", f"{key}: expected finite numbers, got NaN or infinity")
    return norm_of(tensor)


def _checked_tensors(value: Any, slots: Mapping[str, Slot]) -> dict[str, Mapping[str, Tensor]]:
    """name -> {entry: tensor} of what parts declared; the whole answer is refused for any other."""
    if isinstance(value, Mapping):
        value = {name: one if isinstance(one, Stored) else materialized(one) for name, one in value.items()}
    if wrong := wrong_tensors(value, slots):
        raise Refused(wrong.code, f"tensor {wrong.name}: {wrong.why}" if wrong.name else f"tensors: {wrong.why}")
    found = {name: value[name] for name in slots if name in value}
    kept = {name: one if isinstance(one, Stored) else one.detach().cpu() for name, one in found.items()}
    return {name: gathered(entries, dict.fromkeys(entries, torch.float32)) for name, entries in nested(kept).items()}


def _check_difference(value: Any) -> None:
    if value != "diff":
        raise Refused("params_type", f"expected a difference, got {short(str(value))!r}")


Check = Callable[[str, Any, Spec, Against], Any]
CHECKS: Mapping[str, Check | None] = {
    "round": None,  # ``check_tag`` has looked at it
    "error": None,
    "name": None,
    "difference": lambda name, value, spec, at: _check_difference(value),
    "update": lambda name, value, spec, at: _checked_update(value, at.form),
    "count": lambda name, value, spec, at: checked_count(value, at.declared if spec.declared else None, name, spec),
    "numbers": lambda name, value, spec, at: checked_scalars(value, at.numbers, at.wanted),
    "tensors": lambda name, value, spec, at: _checked_tensors(value, at.tensors),
    "metrics": lambda name, value, spec, at: checked_metrics(value, at.metrics),
    "seconds": lambda name, value, spec, at: checked_seconds(value),
}
"""Kind -> the check of a value, which returns it as it is accepted or raises ``Refused``; None: nothing to accept.

A kind that is not here cannot be accepted.
"""
