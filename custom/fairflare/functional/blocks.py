# SPDX-License-Identifier: Apache-2.0
"""The sites' updates side by side, in pieces that stay in cache, and their directions compared by inner products.

A model's layers are read from the names and shapes of its state dict, so that server and site agree on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fairflare.core.tensor_files import Entries
from fairflare.core.types import Outline, Reply

Group = Literal["leaf", "conv_bn", "block"]
SIMILARITY = "similarity"
"""Family of the scalars "similarity/LAYER" that Fed-LWR's probe reports and its rule reads."""
LAST_ENCODER = "last_encoder"
"""In place of a layer's name where one similarity stands for the whole model."""


def layers_of(model: Mapping[str, torch.Tensor], group: Group = "leaf") -> dict[str, list[str]]:
    """Layer -> its keys, both in the state dict's order; every key but those of the outermost module is in one layer.

    Args:
        model: a state dict; only names and shapes are looked at.
        group: "leaf": one layer per module that holds parameters itself (a convolution and its normalisation are two);
            "conv_bn": a module whose parameters are vectors (normalisation, PReLU) belongs to the one before it;
            "block": all leaves of one parent module, e.g. a residual block, are one layer.
    """
    leaves: dict[str, list[str]] = {}
    for key in model:
        leaves.setdefault(key.rpartition(".")[0], []).append(key)
    leaves.pop("", None)
    if group == "leaf":
        return leaves
    layers: dict[str, list[str]] = {}
    name = ""
    for leaf, keys in leaves.items():
        if group == "block":
            name = leaf.rpartition(".")[0] or leaf
        elif not name or any(model[key].dim() > 1 for key in keys):
            name = leaf
        layers.setdefault(name, []).extend(keys)
    return layers


def module_of(layer: str, keys: list[str], group: Group) -> str:
    """The module whose output is the layer's: the block itself, or the last leaf of the layer."""
    return layer if group == "block" else keys[-1].rpartition(".")[0]


def parameters(outline: Outline) -> dict[str, tuple[int, ...]]:
    """Shapes of the model's parameters: its floating-point entries but running statistics."""
    return {k: tuple(v.shape) for k, v in outline.model.items() if v.is_floating_point() and "running_" not in k}


BLOCK = 1 << 16
"""Positions worked on at once: 256 KB of float32."""


class Side(Sequence["np.ndarray"]):
    """Each reply's update at one block of positions, read when it is asked for."""

    def __init__(self, updates: Sequence[np.ndarray | Entries], key: str, block: slice) -> None:
        """``updates``: of the replies: (N,) what lies in memory, and the rest with its other entries."""
        self._updates, self._key, self._block = updates, key, block

    def __len__(self) -> int:
        return len(self._updates)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[one] for one in range(len(self))[k]]
        update = self._updates[k]
        return update[self._block] if isinstance(update, np.ndarray) else _array(update.part(self._key, self._block))

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[k] for k in range(len(self._updates)))


def blocks_of(replies: Sequence[Reply], key: str, size: int = BLOCK) -> Iterator[tuple[slice, Sequence[np.ndarray]]]:
    """Positions, and each reply's update there in float32 or wider, without a copy where it is that already.

    What lies in files is read block by block: as many blocks are in memory as the caller keeps.
    """
    updates = [r.update if isinstance(r.update, Entries) else _array(r.update[key].reshape(-1)) for r in replies]
    entries = replies[0].update[key].numel()
    for start in range(0, entries, size):
        block = slice(start, start + size)
        yield block, Side(updates, key, block)


def square_of(block: np.ndarray) -> float:
    """The sum of squares; in float64 where float32 overflows."""
    square = float(np.vdot(block, block))
    return square if math.isfinite(square) else float(np.dot(block.astype(np.float64), block.astype(np.float64)))


def _array(update: torch.Tensor) -> np.ndarray:
    return update.detach().to(torch.promote_types(update.dtype, torch.float32)).numpy()


COMPARED = 1 << 13
"""Positions compared at once by up to ``SOME`` sites; of more sites, fewer."""
SOME = 64


def compared(sites: int) -> int:
    """Positions at which so many sites are compared at once."""
    return COMPARED * SOME // max(SOME, 1 << (sites - 1).bit_length())


def gram(replies: Sequence[Reply]) -> np.ndarray:
    """float64 (K, K): inner products of the updates over their trainable entries, in one pass over the updates."""
    total = np.zeros((len(replies), len(replies)))
    for block in side_by_side(replies, compared(len(replies))):
        # NumPy sees that both factors are one array and computes half of the products.
        with np.errstate(over="ignore", invalid="ignore"):
            products = block @ block.T
        if not np.isfinite(products).all():
            products = block.astype(np.float64) @ block.astype(np.float64).T
        total += products
    return total


def side_by_side(replies: Sequence[Reply], size: int) -> Iterator[np.ndarray]:
    """(K, at most ``size``) blocks of the updates' trainable entries; each is there until the next one."""
    updates, room = [r.update for r in replies], np.empty((len(replies), size), dtype=np.float32)
    in_memory = not any(isinstance(update, Entries) for update in updates)
    for key in sorted(replies[0].trainable & set(updates[0])):
        if in_memory and updates[0][key].numel() <= size:  # one call: one for each site costs more than its numbers
            yield _array(torch.stack([update[key] for update in updates]).view(len(updates), -1))
            continue
        for _, rows in blocks_of(replies, key, size):
            yield _stacked(rows, room)


def _stacked(updates: Sequence[np.ndarray], room: np.ndarray) -> np.ndarray:
    """(K, B): the sites' blocks, in ``room`` where they are of its type."""
    rows = list(updates)
    if any(row.dtype != room.dtype for row in rows):
        return np.stack(rows)
    flat = room.reshape(-1)[: len(rows) * len(rows[0])]
    return np.concatenate(rows, out=flat).reshape(len(rows), -1)
