# SPDX-License-Identifier: Apache-2.0
"""MOON: the features of the local model stay close to the shared model's and away from those of the round before."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from fairflare.core.execution import no_grad
from fairflare.core.registry import method
from fairflare.core.types import Batch, Cost, LocalWork, Objective, Offer, StateDict
from fairflare.core.validation import Range
from fairflare.functional.features import features_of, lacks_features, model_contrast
from fairflare.trainers.base import Optimizer, PlainTrainer

PREVIOUS = "previous model"
"""Key of a site's memory: the model that its last round ended in."""


@method(
    "moon",
    title="MOON",
    summary="FedAvg whose local features stay close to the shared model's and away from the site's last ones.",
    paper="Li et al.: Model-Contrastive Federated Learning. CVPR 2021. https://arxiv.org/abs/2103.16257",
)
@dataclass(frozen=True)
class Moon(PlainTrainer):
    """Each step minimises f(w) + ``mu`` CE([cos(z, z_glob) / T, cos(z, z_prev) / T], 0) (Li et al., CVPR 2021).

    z is what enters the network's last linear layer. z_glob and z_prev are the same features under w^t and under the
    model that the site's last round ended in, both in evaluation mode and without gradient; before a site's first
    round the latter is w^t, too, and the term has no gradient.

    The term leads away from the site's last model, towards what the others changed. Where two liars of eight changed
    it, the honest sites followed. So a batch has the term only where w^t serves it about as well as the last model.

    Args:
        mu: weight of the term, >= 0; 0 is plain training. The authors choose among 0.1, 1, 5 and 10.
        temperature: T > 0.
        loss_ratio: r >= 0: a batch, or a part of one that is trained on in parts, has no term where its loss under w^t
            is more than r times that under the site's last model; 0: all have it, as published and with ``robust=off``.
    """

    cost: ClassVar[Cost] = Cost(forward=3, backward=1)
    as_published: ClassVar[Mapping[str, float]] = {"loss_ratio": 0.0}
    mu: Annotated[float, Range(0, 1e6)] = 1.0
    temperature: Annotated[float, Range(1e-3, 1e3)] = 0.5
    loss_ratio: Annotated[float, Range(0, 1e6)] = 1.05

    def missing(self, offer: Offer) -> str:
        """Labels of whole examples: a network that labels pixels has no features of an example."""
        return "" if offer.has_classes else "MOON needs one class label per example"

    def unsuited(self, network: torch.nn.Module) -> str:
        return lacks_features(network)

    def setup(self, work: LocalWork) -> None:
        if self.mu:
            frozen = [_frozen(work.network, model) for model in (work.received, work.memory.get(PREVIOUS))]
            work.scratch["frozen"] = frozen

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        if not self.mu:
            return super().step(work, optimizer, objective, batch)
        optimizer.zero_grad(set_to_none=True)
        with features_of(work.network) as found:

            def part(outputs: torch.Tensor, rows: slice) -> torch.Tensor:
                fixed = [_passed(network, batch.inputs[rows]) for network in work.scratch["frozen"]]
                (shared_features, _), (last_features, _) = fixed
                term = model_contrast(found.pop(), shared_features, last_features, self.temperature)
                if self.loss_ratio:
                    shared, last = (objective(made, batch.targets[rows]) for _, made in fixed)
                    term = term * (shared <= self.loss_ratio * last)
                return (objective(outputs, batch.targets[rows]) + self.mu * term) * (len(outputs) / len(batch.targets))

            loss = work.execution.backward(work.network, batch.inputs, part)
        optimizer.step()
        return loss

    def finish(self, work: LocalWork) -> None:
        work.memory[PREVIOUS] = {key: value.detach().clone() for key, value in work.network.state_dict().items()}


def _frozen(network: torch.nn.Module, model: StateDict | None) -> torch.nn.Module:
    """A copy of ``network`` in evaluation mode without gradients; ``model`` in it, where there is one."""
    made = copy.deepcopy(network).eval().requires_grad_(False)
    if model is not None:
        made.load_state_dict(model)
    return made


@no_grad
def _passed(network: torch.nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and outputs."""
    with features_of(network) as found:
        outputs = network(inputs)
    return found[-1], outputs
