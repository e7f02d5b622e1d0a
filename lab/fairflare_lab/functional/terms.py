# SPDX-License-Identifier: Apache-2.0
"""Pure mathematics of this distribution's methods: features, simplex, variance of losses, and loss landscapes.

FlexFair's penalty is the variance of the losses of sites or groups, and what it asks of each of them:

    L_g = s_g / n_g                                    mean loss of cell g: a site, or a group of patients
    P   = 1/G sum_g (L_g - m)^2                        m = sum s / sum n over all examples, or the mean of the L_g
    c_g = dP / dL_g = 2/G [(L_g - m) - n_g / n sum_h (L_h - m)]        the second term is 0 for the mean of the L_g

Nature Communications 2025, https://doi.org/10.1038/s41467-025-58549-0, as its public code has it. The loss around a
model is on a plane of two random directions (Li et al., NeurIPS 2018, arXiv:1712.09913).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch

from fairflare.core.execution import no_grad
from fairflare.core.types import Batch
from fairflare.functional.features import directions, features_of

K = TypeVar("K", bound=Hashable)
Lambda = dict[K, float]
Parameters = Mapping[str, "torch.Tensor"]


def head_of(model: Mapping[str, torch.Tensor], trainable: Collection[str], layer: str = "") -> list[str]:
    """Keys of the layer that gives each class an output: its matrix (C, ...), and its bias (C,) if it has one.

    Args:
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


class Cell(NamedTuple):
    """Examples of one site or group: how many they are, > 0, and the sum of their losses."""

    n: float
    total: float


def variance_penalty(cells: Mapping[str, Cell], pooled: bool = True) -> tuple[float, dict[str, float]]:
    """P and the c_g of the cells, which sum to 0.

    Args:
        cells: name -> cell; an empty one is passed over. One cell alone has no penalty, nor do equal losses.
        pooled: m is the mean loss of all examples; otherwise that of the cells.
    """
    known = {name: cells[name] for name in sorted(cells) if cells[name].n > 0}
    if not known:
        return 0.0, {}
    losses = {name: cell.total / cell.n for name, cell in known.items()}
    n, size = sum(cell.n for cell in known.values()), len(known)
    mean = sum(c.total for c in known.values()) / n if pooled else sum(losses.values()) / size
    away = {name: loss - mean for name, loss in losses.items()}
    rest = sum(away.values()) if pooled else 0.0
    slopes = {name: slope_of(away[name], cell.n / n, rest, size) for name, cell in known.items()}
    return sum(gap * gap for gap in away.values()) / size, slopes


def slope_of(away: float, share: float, rest: float, size: int) -> float:
    """c_g of one cell: ``away`` is L_g - m, ``share`` n_g / n, ``rest`` the sum of all L_h - m, and ``size`` G."""
    return 2 / size * (away - share * rest)


def filter_normalised(parameters: Parameters, generator: torch.Generator) -> dict[str, torch.Tensor]:
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
    loss: Callable[[dict[str, torch.Tensor]], float],
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


def with_newcomers(weights: Mapping[K, float], keys: Iterable[K]) -> Lambda[K]:
    """``weights`` with the mean share 1 / n for those of ``keys`` that are new; the others make room in proportion."""
    new = [key for key in keys if key not in weights]
    if not new:
        return dict(weights)
    n = len(weights) + len(new)
    return {key: value * len(weights) / n for key, value in weights.items()} | dict.fromkeys(new, 1 / n)


def projected(values: Mapping[K, float], mass: float = 1.0) -> Lambda[K]:
    """The nearest point, in the Euclidean norm, with entries >= 0 that sum to ``mass`` > 0; exact.

    max(v_k - theta, 0), theta = (the sum of the i largest - mass) / i for the largest i whose v_(i) exceeds its theta
    (Held, Wolfe and Crowder, Mathematical Programming 6, 1974). Values are finite, at least one.
    """
    top = max(values.values())  # the point is the same for all v_k + c, and next to 0 no digit is lost
    theta, total = -mass, 0.0
    for i, value in enumerate(sorted((v - top for v in values.values()), reverse=True), 1):
        total += value
        if value > (total - mass) / i:
            theta = (total - mass) / i
    return {k: max(value - top - theta, 0.0) for k, value in values.items()}


def projected_reference(values: Mapping[K, float]) -> Lambda[K]:
    """What fair_flearn's ``project`` returns: it looks for theta with sums that lack their last value.

    It may keep too many values, and then what is left sums to more than 1.
    """
    ordered = sorted(values.values(), reverse=True)
    kept = max(i for i, value in enumerate(ordered, 1) if i == 1 or value + (1 - sum(ordered[: i - 1])) / i > 0)
    theta = (sum(ordered[:kept]) - 1) / kept
    return {k: max(value - theta, 0.0) for k, value in values.items()}
