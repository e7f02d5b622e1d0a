# SPDX-License-Identifier: Apache-2.0
"""The features in front of a network's last layer, their means per class, and contrastive terms on them.

MOON     CE([cos(z, z_glob) / T, cos(z, z_prev) / T], 0): features close to the shared model's, away from the site's
         last ones. Li, He and Song, CVPR 2021, https://arxiv.org/abs/2103.16257.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def prototype_contrast(
    features: torch.Tensor, targets: torch.Tensor, prototypes: Mapping[int, torch.Tensor], cosine: bool = False
) -> torch.Tensor:
    """FedProc's term, the mean over the batch of -log(e^{f . c_y} / sum_c e^{f . c}), prototypes of length 1.

    Args:
        features: (N, ...) f; of length 1 too with ``cosine``.
        targets: int64 (N,) y.
        prototypes: class -> (D,) on the features' device, not all of them for want of examples. An example whose class
            has none counts as 0.
        cosine: see ``features``.

    Returns:
        A number >= 0; 0 without prototypes, or with one alone.
    """
    if not prototypes:
        return features.sum() * 0
    labels = sorted(prototypes)
    known = directions(torch.stack([prototypes[label] for label in labels]).to(features.dtype))
    place = torch.full_like(targets, -1)
    for k, label in enumerate(labels):
        place = torch.where(targets == label, k, place)
    scores = (directions(features) if cosine else features.flatten(1)) @ known.T
    return torch.nn.functional.cross_entropy(scores, place, ignore_index=-1, reduction="sum") / len(targets)
