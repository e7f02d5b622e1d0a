# SPDX-License-Identifier: Apache-2.0
"""The weight perturbation of sharpness-aware methods: its radius, the ascent step and BatchNorm's part in it.

Foret et al., "Sharpness-Aware Minimization", ICLR 2021, https://arxiv.org/abs/2010.01412, Eq. 2. And the loss around a
model, on a plane of two random directions (Li et al., NeurIPS 2018, arXiv:1712.09913).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from fairflare.core.types import Round

TINY = 1e-12
"""Added to gradient norms, so that a zero gradient perturbs nothing."""


def rho_at(round: Round, rho_max: float, rho_tau: float) -> float:
    """rho(t) = rho_max (t / T)^tau (FedISM+, arXiv:2503.09587); tau = 0 is constant, as in FedISM."""
    return float(rho_max * (round.number / round.total) ** rho_tau)


def global_norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The L2 norm of all entries together, a scalar where they are: reading it on the host would hold a GPU up."""
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(tensors))))
    return norm


@contextmanager
def perturbed(
    parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], rho: float, norm: torch.Tensor
) -> Iterator[None]:
    """Within: w + rho g / (||g||_2 + 1e-12). Left: the same vector subtracted again, whatever happened within.

    No copy of the weights is made; leaving restores them to within one rounding. Weights that meet a gradient which is
    not finite become NaN, as the step along it would make them: the site's egress check refuses such an update.
    """
    if not rho:
        yield
        return
    scale = (rho / (norm.double() + TINY)).to(norm.dtype)
    with torch.no_grad():
        add_scaled(parameters, gradients, scale)
    try:
        yield
    finally:
        with torch.no_grad():
            add_scaled(parameters, gradients, scale, sign=-1)


def add_scaled(
    tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor], scale: torch.Tensor, sign: int = 1
) -> None:
    """tensors <- tensors + sign * scale * others, in place; ``scale`` is a scalar on their device."""
    if scale.device.type == "cpu":
        for t, other in zip(tensors, others):
            t.addcmul_(other, scale, value=sign)
    else:  # two launches for all tensors; the product is as large as the model
        torch._foreach_add_(list(tensors), torch._foreach_mul(list(others), scale), alpha=sign)


@contextmanager
def frozen_running_statistics(network: torch.nn.Module) -> Iterator[None]:
    """Within: BatchNorm in train mode leaves its running statistics alone (momentum 0)."""
    layers = [m for m in network.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta):
            layer.momentum = momentum


Parameters = Mapping[str, "torch.Tensor"]


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
