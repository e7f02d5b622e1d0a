# SPDX-License-Identifier: Apache-2.0
"""What parts of every kind have in common: parameters that are JSON, and declarations that hold."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairflare.core.types import Number, TensorSpec
from fairflare.engine.state import Checkpoint, load_checkpoint, save_checkpoint
from fairflare.testing.example import outline


def is_json(id: str, part: Any) -> None:
    """Raise AssertionError unless the part is a frozen dataclass that its parameters as JSON make again."""
    made = getattr(type(part), "__dataclass_params__", None)
    assert made is not None and made.frozen, f"{id}: expected a frozen dataclass"
    content = json.loads(json.dumps(dataclasses.asdict(part), allow_nan=False))
    assert type(part)(**content) == part, f"{id}: {content} makes another one"


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether both hold the same names and, bit for bit, the same tensors."""
    return set(one) == set(other) and all(torch.equal(one[key], other[key]) for key in one)


def same(one: Any, other: Any) -> bool:
    """Whether nested mappings and sequences hold the same keys, numbers, texts and, bit for bit, tensors."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def restarted(content: Checkpoint) -> Checkpoint:
    """What a server that is started again reads of ``content``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.safetensors"
        save_checkpoint(path, content)
        return load_checkpoint(path)


def numbers_fit(id: str, declared: Sequence[Number], sent: Mapping[str, float]) -> None:
    """Raise AssertionError unless every number sent is declared, finite and within its range."""
    specs = {one.name: one for one in declared}
    assert len(specs) == len(declared), f"{id}: declares a number twice"
    for spec in declared:
        assert spec.low < spec.high and spec.meaning, f"{id}: {spec.name}: expected low < high and a meaning"
        assert not spec.required or spec.name in sent, f"{id}: {spec.name} is required and was not sent"
    for name, value in sent.items():
        assert name in specs, f"{id}: sends {name}, which it does not declare"
        fits = isinstance(value, float) and math.isfinite(value) and specs[name].low <= value <= specs[name].high
        assert fits, f"{id}: {name}: expected a float in {specs[name].low:g}..{specs[name].high:g}, got {value!r}"


def tensors_fit(id: str, declared: Sequence[TensorSpec], sent: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise AssertionError unless every tensor sent is declared, float32, finite and of its shape."""
    specs = {one.name: one for one in declared}
    assert set(sent) <= set(specs), f"{id}: sends {sorted(set(sent) - set(specs))}, which it does not declare"
    for spec in declared:
        shapes, found = spec.shapes(outline()), sent.get(spec.name, {})
        assert shapes == spec.shapes(outline()), f"{id}: {spec.name}: shapes change from call to call"
        assert set(found) <= set(shapes), f"{id}: {spec.name}: sends {sorted(set(found) - set(shapes))}"
        assert not spec.required or set(found) == set(shapes), f"{id}: {spec.name} is required and was not sent whole"
        for key, value in found.items():
            assert tuple(value.shape) == tuple(shapes[key]), f"{id}: {spec.name}/{key}: shape {tuple(value.shape)}"
            assert value.dtype == torch.float32, f"{id}: {spec.name}/{key}: expected float32, got {value.dtype}"
            fits = bool(value.isfinite().all()) and float(value.detach().abs().max()) <= spec.bound
            assert fits, f"{id}: {spec.name}/{key}: expected finite values up to {spec.bound:g}"
