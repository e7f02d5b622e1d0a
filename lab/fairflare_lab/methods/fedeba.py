# SPDX-License-Identifier: Apache-2.0
"""FedEBA+: weights of largest entropy for the sites' losses, and a step that is drawn to the sites' first steps.

p_k      = exp(F_k / tau) / sum_j exp(F_j / tau)                         F_k: loss of w^t at site k
angle    = arccos( sum_k F_k / (sqrt(K) ||F||) )                          0 where all losses are equal
w^{t+1}  = w^t + (1 - a) sum_k p_k D_k + a / K sum_k d_k                  d_k: the first local step of site k's D_k
           a = alpha where the angle is at most theta, else 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from fairflare.aggregators.base import Outcome, Rule, State, add_weighted, limited
from fairflare.core.notes import Note
from fairflare.core.registry import method, trainer
from fairflare.core.types import Batch, Info, LocalWork, Objective, Reply, StateDict, TensorSpec
from fairflare.core.validation import Range
from fairflare.functional.blocks import parameters
from fairflare.functional.simplex import softmax
from fairflare.trainers.base import Optimizer, PlainTrainer

FIRST = TensorSpec("first_step", parameters, "update of the site's first local step", required=True)


@trainer("first-step")
@dataclass(frozen=True)
class FirstStep(PlainTrainer):
    """Plain training; each site also sends where its first local step led."""

    sends: ClassVar[tuple[TensorSpec, ...]] = (FIRST,)

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        loss = super().step(work, optimizer, objective, batch)
        if FIRST.name not in work.send_tensors:
            network = work.network.named_parameters()
            work.send_tensors[FIRST.name] = {k: w.detach() - work.received[k].to(w) for k, w in network}
        return loss


@method(
    "fedeba-plus",
    title="FedEBA+",
    summary="Weighs sites by the exponential of their loss, and draws the step towards the sites' first local steps.",
    paper="Wang et al.: Entropy-driven Fair and Effective Federated Learning. arXiv 2023. "
    "https://arxiv.org/abs/2301.12407",
    trainer="first-step",
    probes=("loss",),
)
@dataclass(frozen=True)
class FedEBA(Rule):
    """Entropy-based weights and model alignment (Wang et al., arXiv:2301.12407, Eq. 3, 7 and 8).

    The authors' gradient alignment, for rounds whose angle is above theta, needs an exchange before training and is not
    offered: such a round takes the weights alone.

    Args:
        tau: temperature, > 0; a large one gives uniform weights, a small one the site with the largest loss.
        alpha: the first steps' share, in [0, 1]; 0 is FedEBA, the weights alone.
        theta: degrees in [0, 90] up to which losses are even enough for the alignment.
    """

    caps: ClassVar[bool] = True
    notes: ClassVar[tuple[Note, ...]] = (
        Note("loss_angle", "Angle of the losses to equal ones", "degrees", "round", meaning="0 where all are equal."),
    )
    wanted = ("loss",)
    tau: Annotated[float, Range(1e-3, 1e6)] = 0.1
    alpha: Annotated[float, Range(0, 1)] = 0.5
    theta: Annotated[float, Range(0, 90)] = 45.0

    def aggregate(self, model: StateDict, replies: Sequence[Reply], state: State, info: Info) -> Outcome:
        """The weights are those of the whole updates; buffers are averaged by them alone."""
        losses = {r.site: r.scalars["loss"] for r in replies}
        weights = limited(softmax({site: loss / self.tau for site, loss in losses.items()}), info.cap)
        after, angle = add_weighted(model, replies, weights), angle_of(list(losses.values()))
        firsts = [r.tensors.get(FIRST.name, {}) for r in replies]
        if self.alpha and angle <= self.theta and all(firsts):
            for key in sorted(replies[0].trainable):
                mean = torch.stack([first[key] for first in firsts]).mean(0)
                moved = (1 - self.alpha) * (after[key] - model[key]) + self.alpha * mean
                after[key] = (model[key] + moved).to(model[key].dtype)
        return Outcome(after, weights, state, {"loss_angle": angle})


def angle_of(losses: Sequence[float]) -> float:
    """Degrees in [0, 90] between losses >= 0 and equal ones; 0 where all are 0."""
    length = math.sqrt(len(losses)) * math.hypot(*losses)
    return math.degrees(math.acos(min(math.fsum(losses) / length, 1.0))) if length else 0.0
