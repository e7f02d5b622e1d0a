# SPDX-License-Identifier: Apache-2.0
"""Contrastive terms on the features in front of a network's last layer.

MOON     CE([cos(z, z_glob) / T, cos(z, z_prev) / T], 0): features close to the shared model's, away from the site's
         last ones. Li, He and Song, CVPR 2021, https://arxiv.org/abs/2103.16257.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

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

    Args:
        z: (N, ...) features of the model that trains.
        z_global: those of the received model on the same examples.
        z_previous: those of the site's model of its last round.
        temperature: T > 0.

    Returns:
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
