# SPDX-License-Identifier: Apache-2.0
"""SAM and GSAM: steps that look for flat regions of the loss.

    g  = grad f(w)
    g' = grad f(w + rho g / (||g|| + 1e-12))          BatchNorm's running statistics held still
    d  = g' - alpha (g - cos(g, g') ||g|| g' / (||g'|| + 1e-12))
    the base optimizer steps along d from the unperturbed w; alpha = 0 is SAM

Zhuang et al., "Surrogate Gap Minimization Improves Sharpness-Aware Training", ICLR 2022,
https://arxiv.org/abs/2203.08065, Algorithm 1; Foret et al., ICLR 2021, https://arxiv.org/abs/2010.01412.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import trainer
from fairflare.core.types import Batch, Cost, LocalWork, Objective
from fairflare.core.validation import within
from fairflare.functional.perturbation import TINY, frozen_running_statistics, global_norm, perturbed, rho_at
from fairflare.trainers.base import Optimizer, Trainer

BLOCK = 2**17
"""Entries per block: half a megabyte in float32."""


@trainer("gsam")
@dataclass(frozen=True)
class GSAM(Trainer):
    """GSAM with the progressive radius of FedISM+; twice the passes of plain training.

    Args:
        rho_max: radius at the last round, >= 0; 0 is plain training up to BatchNorm's batch counter.
        rho_tau: exponent of (t / T), >= 0; 0 keeps the radius constant.
        gsam_alpha: weight of the surrogate gap, >= 0; 0 is SAM. The authors' code uses 0.1, their paper gives none.
    """

    cost: ClassVar[Cost] = Cost(forward=2, backward=2)

    rho_max: float = 0.1
    rho_tau: float = 0.5
    gsam_alpha: float = 0.1

    def __post_init__(self) -> None:
        within(self, rho_max="[0, inf)", rho_tau="[0, inf)", gsam_alpha="[0, inf)")

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        rho = rho_at(work.round, self.rho_max, self.rho_tau)
        closure = partial(self.backward, work, objective, batch)
        return gsam_step(work.network, optimizer, closure, rho, self.gsam_alpha)


@trainer("sam")
@dataclass(frozen=True)
class SAM(GSAM):
    """SAM: GSAM without the surrogate gap."""

    rho_max: float = 0.05
    rho_tau: float = 0.0
    gsam_alpha: float = 0.0


def gsam_step(
    network: torch.nn.Module, optimizer: Optimizer, closure: Callable[[], torch.Tensor], rho: float, alpha: float
) -> torch.Tensor:
    """One step of ``optimizer`` along GSAM's direction; returns the loss of the first, unperturbed pass.

    ``closure`` computes the batch's loss, calls ``backward`` on it and returns it. BatchNorm keeps its running
    statistics in the second pass; if that raises, weights and momenta are restored before the error goes on.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = closure()
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    first = [p.grad for p in parameters]
    norm = global_norm(first)
    optimizer.zero_grad(set_to_none=True)
    with perturbed(parameters, first, rho, norm), frozen_running_statistics(network):
        closure()
    if alpha:
        _subtract_gap(first, norm, [p.grad for p in parameters], alpha)
    optimizer.step()
    return loss


@no_grad
def _subtract_gap(
    first: Sequence[torch.Tensor], norm: torch.Tensor, second: Sequence[torch.Tensor], alpha: float
) -> None:
    """second <- g' - alpha (g - cos ||g|| g' / (||g'|| + 1e-12)), in place; all numbers stay on the device."""
    first, second = _blocks(first), _blocks(second)
    products = torch.stack([product for a, b in zip(first, second) for product in (torch.dot(a, b), torch.dot(b, b))])
    inner, square = products.view(-1, 2).double().sum(0).unbind()
    norm, second_norm = norm.double(), square.sqrt()
    scale = 1 + alpha * (inner / (norm * second_norm + TINY)) * norm / (second_norm + TINY)
    if second[0].device.type == "cpu":
        for a, b in zip(first, second):
            b.mul_(scale).add_(a, alpha=-alpha)
    else:
        torch._foreach_mul_(second, scale.to(second[0].dtype))
        torch._foreach_add_(second, first, alpha=-alpha)


def _blocks(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Flat views of all entries, on the CPU cut so small that a block stays in cache between two operations.

    In memory order, which a gradient shares with its parameter's gradients.
    """
    flat = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]
    if all(t.numel() <= BLOCK or t.device.type != "cpu" for t in flat):
        return flat
    return [block for t in flat for block in t.split(BLOCK)]
