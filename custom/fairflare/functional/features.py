# SPDX-License-Identifier: Apache-2.0
"""The features in front of a network's last layer, and their means per class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from fairflare.core.execution import no_grad
from fairflare.core.types import Batch


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


@no_grad
def class_means(
    network: torch.nn.Module, batches: Iterable[Batch], counts: Sequence[int], device: torch.device
) -> dict[int, torch.Tensor]:
    """Class -> mean features (D,), float32 on ``device``, of every class with examples; sums are in float64.

    Args:
        network: on ``device``; it is left in evaluation mode.
        batches: all examples, each once.
        counts: examples of each class.
        device: where the network computes.
    """
    sums: torch.Tensor | None = None
    with features_of(network.eval()) as found:
        for batch in batches:
            network(batch.inputs.to(device))
            features = found.pop().flatten(1).double()
            if sums is None:
                sums = features.new_zeros(len(counts), features.shape[1])
            sums.index_add_(0, batch.targets.to(device), features)
    return {} if sums is None else {c: (sums[c] / n).float() for c, n in enumerate(counts) if n}


def class_distance(features: torch.Tensor, targets: torch.Tensor, means: dict[int, torch.Tensor]) -> torch.Tensor:
    """Mean squared difference between features (N, D) and the means (D,) of their classes.

    Examples of a class that ``means`` lacks count as lying on their class's mean.
    """
    goal = features.detach().clone()
    for label, mean in means.items():
        goal = torch.where((targets == label)[:, None], mean.to(goal), goal)
    return torch.nn.functional.mse_loss(features, goal)
