# SPDX-License-Identifier: Apache-2.0
"""pFedMe: the shared model descends the Moreau envelopes of the losses, whose minimisers are personal models."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import method
from fairflare.core.types import Batch, Cost, LocalWork, Objective
from fairflare.core.validation import Range
from fairflare.trainers.base import Optimizer, PlainTrainer, add_proximal, keep_optimizer_beside, optimizer_beside


@method(
    "pfedme",
    title="pFedMe",
    summary="A model of each site's own that is drawn to the shared one, which follows the sites' own models in turn.",
    settings={"weighting": "uniform"},
    paper="T Dinh et al.: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020. "
    "https://arxiv.org/abs/2006.08848",
)
@dataclass(frozen=True)
class PFedMe(PlainTrainer):
    """On each batch theta descends f(theta) + lam/2 ||theta - w||^2, and w moves by -eta lam (w - theta).

    T Dinh et al., Algorithm 1. theta begins each round as w^t and descends by the task's optimizer; it is the personal
    model.

    Args:
        lam: lambda > 0; a large one keeps theta at w.
        eta: w's learning rate > 0, with eta lam <= 1.
        inner_steps: K >= 1, theta's steps on a batch.
    """

    cost: ClassVar[Cost] = Cost(forward=5, backward=5)
    keeps_personal_model: ClassVar[bool] = True
    lam: Annotated[float, Range(0, 1e6)] = 15.0
    eta: Annotated[float, Range(0, 1e6)] = 0.05
    inner_steps: Annotated[int, Range(1, 1000)] = 5

    def __post_init__(self) -> None:
        if not 0 < self.lam * self.eta <= 1:
            raise ValueError(f"eta: expected more than 0 and at most 1 / lam, got {self.eta} with lam {self.lam}")

    def setup(self, work: LocalWork) -> None:
        work.scratch["own"] = copy.deepcopy(work.network)
        optimizer_beside(work, work.scratch["own"])

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        """theta's steps, then w's; returns the loss of theta before them."""
        own, losses = work.scratch["own"], []
        for _ in range(self.inner_steps):
            own.zero_grad(set_to_none=True)
            losses.append(self.backward(work, objective, batch, own).detach())
            add_proximal(list(own.parameters()), list(work.network.parameters()), self.lam)
            work.scratch["beside"].step()
        _approach(list(work.network.parameters()), list(own.parameters()), self.eta * self.lam)
        return losses[0]

    def finish(self, work: LocalWork) -> None:
        """theta stays; w, which computes nothing itself, takes over its running statistics."""
        own = work.scratch["own"]
        work.personal = {key: value.clone() for key, value in own.state_dict().items()}
        for buffer, found in zip(work.network.buffers(), own.buffers(), strict=True):
            buffer.copy_(found)
        keep_optimizer_beside(work)


@no_grad
def _approach(parameters: list[torch.Tensor], goal: list[torch.Tensor], share: float) -> None:
    """Move ``parameters`` by this share of the way to ``goal``."""
    for w, theta in zip(parameters, goal, strict=True):
        w.add_(theta - w, alpha=share)
