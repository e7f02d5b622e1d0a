# SPDX-License-Identifier: Apache-2.0
"""Trainers with a proximal term: FedProx near the received model; Ditto, pFedMe with own models near the shared one.

FedProx adds the term to local training. In Ditto each site trains, beside the shared model, one of its own that the
term ties to the shared one. In pFedMe the shared model descends the Moreau envelopes of the losses, whose minimisers
are personal models.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import method
from fairflare.core.types import Batch, Cost, LocalWork, Objective
from fairflare.core.validation import Range
from fairflare.trainers.base import Optimizer, PlainTrainer, add_proximal, keep_optimizer_beside, optimizer_beside


@method(
    "fedprox",
    title="FedProx",
    summary="FedAvg whose sites stay near the received model: a proximal term on top of the local objective.",
    paper="Li et al.: Federated Optimization in Heterogeneous Networks. MLSys 2020. https://arxiv.org/abs/1812.06127",
)
@dataclass(frozen=True)
class FedProx(PlainTrainer):
    """Each step minimises f(w) + mu/2 ||w - w^t||^2 over the parameters, with the task's optimizer (Li et al., Eq. 2).

    Args:
        mu: weight of the proximal term, >= 0; 0 is plain training. The authors try 0.001, 0.01, 0.1 and 1.
    """

    mu: Annotated[float, Range(0, 1e6)] = 0.01

    def setup(self, work: LocalWork) -> None:
        """Keep the parameters that the round starts from, w^t, on the device."""
        work.scratch["anchor"] = [p.detach().clone() for p in work.network.parameters()]

    def correct_gradients(self, work: LocalWork) -> None:
        """grad f(w) + mu (w - w^t); the step returns f(w), without the term."""
        add_proximal(list(work.network.parameters()), work.scratch["anchor"], self.mu)


@method(
    "ditto",
    title="Ditto",
    summary="FedAvg, and at each site a model of its own that is drawn towards the shared one.",
    paper="Li et al.: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021. "
    "https://arxiv.org/abs/2012.04221",
)
@dataclass(frozen=True)
class Ditto(PlainTrainer):
    """The shared model trains as in FedAvg; v minimises f(v) + lam/2 ||v - w^t||^2 on the same batches.

    Every site's v begins as the first model that it receives (Li et al., ICML 2021, Algorithm 1).

    Args:
        lam: lambda >= 0; 0 trains v alone, a large one keeps it at w^t. The authors choose among 0.1, 1 and 2.
        aggregate: "shared": the server averages what sites make of w^t, as published; "personal": it averages the
            sites' v, and nothing else is trained, as in FedHEAL's tables.
    """

    cost = Cost(forward=2, backward=2)
    keeps_personal_model: ClassVar[bool] = True
    lam: Annotated[float, Range(0, 1e6)] = 1.0
    aggregate: Literal["shared", "personal"] = "shared"

    def setup(self, work: LocalWork) -> None:
        work.scratch["anchor"] = [p.detach().clone() for p in work.network.parameters()]
        if self.aggregate == "personal":
            work.network.load_state_dict(work.personal or work.received)
            return
        own = copy.deepcopy(work.network)
        own.load_state_dict(work.personal or work.received)
        work.scratch["own"] = own
        optimizer_beside(work, own)

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        """One step of the shared model, then one of v; returns the loss of the model that is sent."""
        if self.aggregate == "personal":
            return self._personal_step(work, optimizer, objective, batch, work.network)
        loss = super().step(work, optimizer, objective, batch)
        self._personal_step(work, work.scratch["beside"], objective, batch, work.scratch["own"])
        return loss

    def _personal_step(
        self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch, own: torch.nn.Module
    ) -> torch.Tensor:
        """One step of v = ``own``; returns f(v), without the term."""
        optimizer.zero_grad(set_to_none=True)
        loss = self.backward(work, objective, batch, own)
        add_proximal(list(own.parameters()), work.scratch["anchor"], self.lam)
        optimizer.step()
        return loss

    def finish(self, work: LocalWork) -> None:
        own = work.scratch.get("own", work.network)
        work.personal = {key: value.clone() for key, value in own.state_dict().items()}
        keep_optimizer_beside(work)


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
