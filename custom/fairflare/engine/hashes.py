# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of models and of whatever state goes with them, as the audit log and the sites' memories name them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fairflare.core.tensor_files import Stored


def model_hash(model: Mapping[str, Any]) -> str:
    """SHA-256 over names, types, shapes and bytes in name order: equal exactly for bit-identical models.

    ``model`` may be an update, whose entries may be arrays or lie in files.
    """
    digest = hashlib.sha256()
    for key in sorted(model):
        value = model[key]
        value = value.materialize() if isinstance(value, Stored) else torch.as_tensor(value)
        digest.update(f"{key}|{_kind(value)}|".encode())
        digest.update(_data(value))
    return digest.hexdigest()


def state_hash(state: Mapping[str, Any]) -> str:
    """SHA-256 over a rule's state: nested mappings, lists, plain values and tensors with their types and shapes.

    Every part carries its kind and length, and keys keep their order, in which a rule may add numbers up.

    Raises:
        TypeError: the state holds something that a checkpoint cannot hold.
    """
    digest = hashlib.sha256()
    _feed(digest.update, state)
    return digest.hexdigest()


def _feed(update: Callable[[Any], None], value: Any) -> None:
    if isinstance(value, float):  # the most frequent first: a state of many sites has as many numbers
        update(b"float " + struct.pack(">d", value))
    elif isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        update(f"text {len(text)};".encode() + text)
    elif isinstance(value, (dict, Mapping)):
        update(f"mapping {len(value)};".encode())
        for key, item in value.items():
            _feed(update, key)
            _feed(update, item)
    elif isinstance(value, (list, tuple)):
        update(f"{'list' if isinstance(value, list) else 'tuple'} {len(value)};".encode())
        for item in value:
            _feed(update, item)
    elif isinstance(value, torch.Tensor):
        update(f"tensor {_kind(value)};".encode())
        update(_data(value))
    elif value is None or isinstance(value, (bool, int)):
        update(f"{type(value).__name__} {int(value or 0):x};".encode())
    else:
        raise TypeError(f"a rule's state cannot hold a {type(value).__name__}")


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}|{tuple(tensor.shape)}"


def _data(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
