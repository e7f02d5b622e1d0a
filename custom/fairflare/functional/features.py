# SPDX-License-Identifier: Apache-2.0
"""The features in front of a network's last layer, and a contrastive term on them.

MOON     CE([cos(z, z_glob) / T, cos(z, z_prev) / T], 0): features close to the shared model's, away from the site's
         last ones. Li, He and Song, CVPR 2021, https://arxiv.org/abs/2103.16257.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def features_of(network: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Collects what enters the network's last linear layer: float32 (N, D), one tensor for every forward pass.

    Raises:
        ValueError: the network has no linear layer.
    """
    layer = _last(network)
    if layer is None:
        raise ValueError("expected a network with a linear layer, got none")
    found: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda layer, inputs: found.append(inputs[0].float()))
    try:
        yield found
    finally:
        hook.remove()


def lacks_features(network: torch.nn.Module) -> str:
    """Why a network has no features to train, in words that end a sentence; empty where it has."""
    layer = _last(network)
    if layer is None:
        return "expected a network with a linear layer, whose inputs are its features"
    head = {id(p) for p in layer.parameters()}
    if all(id(p) in head for p in network.parameters()):
        return "expected a network with layers in front of its last one: this one's features are its inputs"
    return ""


def _last(network: torch.nn.Module) -> torch.nn.Linear | None:
    """The linear layer that is registered last; None where there is none."""
    layers = [module for module in network.modules() if isinstance(module, torch.nn.Linear)]
    return layers[-1] if layers else None


TINY = 1e-8
"""Length below which a vector has no direction."""


def directions(vectors: torch.Tensor) -> torch.Tensor:
    """Rows of (N, ...), flattened to (N, D), of length 1; a row shorter than 1e-8 becomes 0 and has no gradient."""
    flat = vectors.flatten(1)
    length = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return torch.where(length > TINY, flat / length.clamp_min(TINY), torch.zeros_like(flat))


def model_contrast(
    z: torch.Tensor, z_global: torch.Tensor, z_previous: torch.Tensor, temperature: float
) -> torch.Tensor:
    """MOON's term, the mean over the batch of -log(e^{s_glob / T} / (e^{s_glob / T} + e^{s_prev / T})).

    Features (N, ...) are of the model that trains, of the received one, and of the site's one of its last round; T > 0.
    A number > 0; log 2 where the two models give the same features.
    """
    here = directions(z)
    alike = [(here * directions(other)).sum(1) / temperature for other in (z_global, z_previous)]
    return torch.nn.functional.cross_entropy(
        torch.stack(alike, dim=1), torch.zeros(len(z), dtype=torch.int64, device=z.device)
    )
