# SPDX-License-Identifier: Apache-2.0
"""The weight perturbation of sharpness-aware methods: its radius, the ascent step and BatchNorm's part in it.

Foret et al., "Sharpness-Aware Minimization", ICLR 2021, https://arxiv.org/abs/2010.01412, Eq. 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
