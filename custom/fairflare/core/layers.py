# SPDX-License-Identifier: Apache-2.0
"""The layers of a model, read from the names and shapes of its state dict, so that server and site agree on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import torch

from fairflare.core.types import Outline

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


def head_of(model: Mapping[str, torch.Tensor], trainable: Collection[str], layer: str = "") -> list[str]:
    """Keys of the layer that gives each class an output: its matrix (C, ...), and its bias (C,) if it has one.

    Args:
        model: a state dict, in its order.
        trainable: names of the trainable parameters.
        layer: the layer's name; empty: the one of the last trainable matrix, which is the last layer where a network
            registers its layers in the order of their use.

    Raises:
        ValueError: there is no such layer.
    """
    matrices = [key for key, value in model.items() if key in trainable and value.dim() > 1]
    found = [key for key in matrices if not layer or key.rpartition(".")[0] == layer][-1:]
    if not found:
        known = ", ".join(dict.fromkeys(key.rpartition(".")[0] for key in matrices)) or "none"
        raise ValueError(f"head: expected a layer with a trainable matrix ({known[:200]}), got {layer[:80]!r}")
    weight = found[0]
    module = weight.rpartition(".")[0]
    bias = f"{module}.bias" if module else "bias"
    fits = bias in trainable and bias in model and model[bias].shape == model[weight].shape[:1]
    return [weight, bias] if fits else [weight]


def parameters(outline: Outline) -> dict[str, tuple[int, ...]]:
    """Shapes of the model's parameters: its floating-point entries but running statistics."""
    return {k: tuple(v.shape) for k, v in outline.model.items() if v.is_floating_point() and "running_" not in k}
