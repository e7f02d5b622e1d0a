# SPDX-License-Identifier: Apache-2.0
"""Large tensors on their way to the sites in pieces: FLARE holds several copies of each tensor of each site at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LARGEST = 1 << 21
"""Bytes of a piece: what FLARE puts into one message by default."""
MARK = "/piece "
"""Between a tensor's name and the number of a piece."""
Shapes = dict[str, list[int]]
"""Name -> shape of a tensor that travels in pieces."""


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Shapes]:
    """The tensors, of those above ``LARGEST`` bytes flat pieces that share their memory, and the shapes of the latter.

    Args:
        tensors: contiguous.

    Raises:
        ValueError: a tensor has the name of a piece.
    """
    if any(MARK in name for name in tensors):
        raise ValueError(f"tensors: expected names without {MARK!r}")
    found: dict[str, Tensor] = {}
    shapes: Shapes = {}
    for name, value in tensors.items():
        if value.nbytes <= LARGEST:
            found[name] = value
            continue
        shapes[name] = list(value.shape)
        pieces = value.view(-1).split(LARGEST // value.element_size())
        found.update((f"{name}{MARK}{place}", piece) for place, piece in enumerate(pieces))
    return found, shapes


def joined(tensors: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors that ``split`` was given, in their order.

    Raises:
        ValueError, TypeError, RuntimeError: pieces are missing, or do not make a tensor of its shape.
    """
    found: dict[str, Any] = {}
    for key, value in tensors.items():
        name, _, place = key.rpartition(MARK)
        if name not in shapes:
            found[key] = value
            continue
        pieces = found.setdefault(name, [])
        if place != str(len(pieces)):
            raise ValueError("a tensor in pieces: expected them in their order")
        pieces.append(value)
    for name, shape in shapes.items():
        found[name] = torch.cat(found.get(name, [])).view(tuple(shape))
    return found
