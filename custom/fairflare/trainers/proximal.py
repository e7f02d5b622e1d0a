# SPDX-License-Identifier: Apache-2.0
"""Trainers with a proximal term: FedProx near the received model, Ditto with own models near the shared one.

FedProx adds the term to local training. In Ditto each site trains, beside the shared model, one of its own that the
term ties to the shared one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

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
