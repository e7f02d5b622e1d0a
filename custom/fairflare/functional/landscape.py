# SPDX-License-Identifier: Apache-2.0
"""The loss around a model, on a plane of two random directions (Li et al., NeurIPS 2018, arXiv:1712.09913)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Parameters = Mapping[str, Tensor]


def filter_normalised(parameters: Parameters, generator: torch.Generator) -> dict[str, Tensor]:
    """A Gaussian direction of which every filter has the length of the model's (Section 4 of the paper).

    A filter is what one entry of a tensor's first dimension holds. Tensors of one dimension (biases, normalisation) are
    not moved, as in the paper's code; so a model's scale does not make its surroundings look sharp or flat.

    Tensors of the same names, shapes and types; the order of the parameters decides what the generator (CPU) draws.
    """
    found = {}
    for name, value in parameters.items():
        drawn = torch.randn(value.shape, generator=generator).to(value)
        if value.dim() < 2:
            found[name] = torch.zeros_like(value)
            continue
        own, new = (torch.linalg.vector_norm(one.flatten(1), dim=1) for one in (value, drawn))
        found[name] = drawn * (own / new.clamp_min(1e-12)).reshape(-1, *[1] * (value.dim() - 1))
    return found


def loss_grid(
    loss: Callable[[dict[str, Tensor]], float],
    parameters: Parameters,
    first: Parameters,
    second: Parameters,
    steps: Sequence[float],
) -> list[list[float]]:
    """loss(w + a d_1 + b d_2) for every a (outer list) and b (inner list) in ``steps``.

    ``first`` is d_1 and ``second`` d_2, with entries of w's names; a factor of 0 gives the loss of w itself.
    """
    return [
        [loss({name: w + a * first[name] + b * second[name] for name, w in parameters.items()}) for b in steps]
        for a in steps
    ]
