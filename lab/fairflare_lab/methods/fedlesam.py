# SPDX-License-Identifier: Apache-2.0
"""FedLESAM: every local step is taken with the gradient at a point towards where the shared model came from.

e_k    = rho (w_k^old - w^t) / (||w_k^old - w^t|| + 1e-12)        w_k^old: what site k received at its last visit
w     <- w - eta grad f(w + e_k)                                   one pass a step, w from w^t
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from fairflare.core.registry import method
from fairflare.core.types import Batch, LocalWork, Objective
from fairflare.core.validation import Range
from fairflare.functional.perturbation import global_norm, perturbed
from fairflare.trainers.base import Optimizer, PlainTrainer

LAST = "fedlesam received"
"""Key of a site's memory: the parameters that it received at its last visit."""


@method(
    "fedlesam",
    title="FedLESAM",
    summary="Sites perturb each step along the shared model's own last movement, to find what is flat for all.",
    settings={"rule.weighting": "uniform"},
    paper="Fan et al.: Locally Estimated Global Perturbations are Better than Local Perturbations for Federated "
    "Sharpness-aware Minimization. ICML 2024. https://arxiv.org/abs/2405.18890",
)
@dataclass(frozen=True)
class FedLESAM(PlainTrainer):
    """SAM whose direction is the shared model's movement between a site's visits (Fan et al., ICML 2024, Algorithm 1).

    The direction stays for all steps of a round. A site's first visit is plain training. The training loss is that of
    the perturbed weights, where the only pass is made.

    Args:
        rho: length of the perturbation, >= 0; 0 is FedAvg. The authors' code has 0.1, their command 0.05.
    """

    rho: Annotated[float, Range(0, 1e6)] = 0.05

    def setup(self, work: LocalWork) -> None:
        trained = {key: w for key, w in work.network.named_parameters() if w.requires_grad}
        last = work.memory.get(LAST, {})
        work.scratch["moved"] = [(w, last[key].to(w) - w.detach()) for key, w in trained.items() if key in last]
        work.memory[LAST] = {key: w.detach().clone() for key, w in trained.items()}

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        if not work.scratch["moved"]:
            loss = self.backward(work, objective, batch)
        else:
            parameters, back = zip(*work.scratch["moved"])
            with perturbed(parameters, back, self.rho, global_norm(back)):
                loss = self.backward(work, objective, batch)
        optimizer.step()
        return loss
