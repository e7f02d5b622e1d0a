# SPDX-License-Identifier: Apache-2.0
"""Tensors that travel beside the model: where each fits, how it is named on the way, and what is wrong with one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from fairflare.core.errors import UserError
from fairflare.core.lazy_tensors import Stored
from fairflare.core.types import Outline, TensorSpec

T = TypeVar("T")


@dataclass(frozen=True)
class Slot:
    """A tensor that may travel: its shape, whether it must be there, the largest absolute value, and ``compared``."""

    shape: tuple[int, ...]
    required: bool = False
    bound: float = 1e6
    compared: bool = True


def slots_of(specs: Iterable[TensorSpec], outline: Outline, wanted: Iterable[str] = ()) -> dict[str, Slot]:
    """ "name/entry" -> slot of every tensor that ``specs`` declare.

    Args:
        specs: of a method's parts; the same declaration in two parts counts once.
        outline: what the shapes follow from.
        wanted: names of specifications that are required whatever they say.

    Raises:
        UserError: a name with "/" or a shape that is none, or two specifications of one name that differ.
    """
    found: dict[str, Slot] = {}
    by_name: dict[str, TensorSpec] = {}
    for spec in specs:
        if by_name.setdefault(spec.name, spec) != spec:
            raise UserError(f"tensors {spec.name!r}: declared twice, in two ways")
        if not spec.name or "/" in spec.name or not 0 < spec.bound < math.inf:
            raise UserError(f"tensors {spec.name!r}: expected a name without '/' and a finite bound above 0")
        for entry, shape in spec.shapes(outline).items():
            if not isinstance(entry, str) or not all(type(size) is int and size >= 0 for size in shape):
                raise UserError(f"tensors {spec.name!r}: entry {entry!r}: expected a name and a shape, got {shape!r}")
            required = spec.required or spec.name in wanted
            found[f"{spec.name}/{entry}"] = Slot(tuple(shape), required, spec.bound, spec.compared)
    return found


def flat(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """name -> {entry: tensor} as it travels: "name/entry" -> tensor."""
    return {f"{name}/{entry}": value for name, entries in tensors.items() for entry, value in entries.items()}


def nested(tensors: Mapping[str, T]) -> dict[str, dict[str, T]]:
    found: dict[str, dict[str, T]] = {}
    for key, value in tensors.items():
        name, _, entry = key.partition("/")
        found.setdefault(name, {})[entry] = value
    return found


@dataclass(frozen=True)
class Wrong:
    """What is wrong with tensors: a code, the declared tensor at fault (empty: none that is declared), and why."""

    code: str
    name: str
    why: str


def wrong_tensors(tensors: Any, slots: Mapping[str, Slot]) -> Wrong | None:
    """What is wrong with ``tensors`` ("name/entry" -> float32), held against what was declared; None: nothing."""
    if not isinstance(tensors, Mapping):
        return Wrong("tensor_type", "", f"expected tensors by name, got {type(tensors).__name__}")
    if any(name not in slots for name in tensors):
        return Wrong("tensor_unknown", "", "a tensor that no part of the method declares")
    found = (_wrong(name, tensors[name], slot) for name, slot in slots.items() if name in tensors)
    missing = (name for name, slot in slots.items() if slot.required and name not in tensors)
    # What is there comes first: a site's own check lets a missing tensor pass, and nothing else with it.
    lacking = (Wrong("tensor_missing", name, "expected a tensor, got none") for name in missing)
    return next(filter(None, found), None) or next(lacking, None)


def _wrong(name: str, value: Any, slot: Slot) -> Wrong | None:
    if isinstance(value, Stored):
        if value.shape != slot.shape:
            return Wrong("tensor_shape", name, f"expected {slot.shape}, got {value.shape}")
        value = value.materialize()
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_meta:
        return Wrong("tensor_type", name, f"expected a dense tensor, got {type(value).__name__}")
    if value.dtype != torch.float32:
        return Wrong("tensor_type", name, f"expected torch.float32, got {value.dtype}")
    if tuple(value.shape) != slot.shape:
        return Wrong("tensor_shape", name, f"expected {slot.shape}, got {tuple(value.shape)}")
    if not value.numel():
        return None
    low, high = (float(extreme) for extreme in torch.aminmax(value.detach()))
    if not math.isfinite(low) or not math.isfinite(high):
        return Wrong("tensor_nonfinite", name, "expected finite numbers, got NaN or infinity")
    if max(-low, high) > slot.bound:
        return Wrong("tensor_range", name, f"expected absolute values of at most {slot.bound:g}")
    return None
