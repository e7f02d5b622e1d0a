# SPDX-License-Identifier: Apache-2.0
"""Sites keep some layers, the others are averaged: the last in FedPer and FedRep, BatchNorm in FedBN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from fairflare.core.errors import UserError
from fairflare.core.execution import ahead
from fairflare.core.registry import method
from fairflare.core.types import Cost, LocalWork, StateDict
from fairflare.core.validation import Names, Range
from fairflare.functional.blocks import layers_of
from fairflare.trainers.base import PlainTrainer, keep_optimizer_beside, local_batches, optimizer_beside


@method(
    "fedper",
    title="FedPer",
    summary="FedAvg over all layers but the last, of which every site has its own; for label shift.",
    paper="Arivazhagan et al.: Federated Learning with Personalization Layers. arXiv 2019. "
    "https://arxiv.org/abs/1912.00818",
)
@dataclass(frozen=True)
class FedPer(PlainTrainer):
    """Plain training of all layers; the last ones stay at the site.

    Arivazhagan et al., 2019, Algorithms 1 and 2. A layer is a module with a matrix and the normalisation after it.

    Args:
        layers: K_P >= 1, how many of the last layers stay, in the order in which the network registers them.
        head: "A,B", names of the modules that stay in place of the last layers, with all that is in them.
    """

    layers: Annotated[int, Range(1, 1000)] = 1
    head: Names = ""

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        """The entries of the last layers, or of the named ones. Raises UserError: there are none, or nothing else."""
        if names := [name.strip() for name in self.head.split(",") if name.strip()]:
            own = frozenset(key for key in model if any(key.startswith(f"{name}.") for name in names))
        else:
            own = frozenset(key for keys in list(layers_of(model, "conv_bn").values())[-self.layers :] for key in keys)
        if not own or not any(value.is_floating_point() for key, value in model.items() if key not in own):
            wanted = f"modules {self.head}" if names else f"more than {self.layers} layers"
            raise UserError(f"trainer fedper or fedrep: expected a network with {wanted}, and a layer to share")
        return own


@method(
    "fedrep",
    title="FedRep",
    summary="As FedPer, but each site fits its own last layer first, and then the shared ones to it; for label shift.",
    paper="Collins et al.: Exploiting Shared Representations for Personalized Federated Learning. ICML 2021. "
    "https://arxiv.org/abs/2102.07078",
)
@dataclass(frozen=True)
class FedRep(FedPer):
    """The site's own last layers learn first, with the shared ones fixed; then the shared ones, with its own fixed.

    Collins et al., ICML 2021, Algorithm 1. The round's local steps are those of the shared layers.

    Args:
        head_passes: how many times as many steps the head makes before, >= 1.
    """

    cost: ClassVar[Cost] = Cost(forward=2, backward=2)
    head_passes: Annotated[int, Range(1, 100)] = 1

    def setup(self, work: LocalWork) -> None:
        """The head's steps, with an optimizer of its own."""
        own, parameters = self.personal_entries(work.received), dict(work.network.named_parameters())
        work.scratch["fixed"] = [p for name, p in parameters.items() if name not in own]
        optimizer, objective = optimizer_beside(work, work.network), self.objective(work)
        for _ in range(self.head_passes):
            for batch in ahead(local_batches(work), work.device):
                work.stop_if_aborted()
                self.step(work, optimizer, objective, batch.to(work.device))
        work.scratch["fixed"] = [p for name, p in parameters.items() if name in own]

    def correct_gradients(self, work: LocalWork) -> None:
        """An optimizer passes over parameters without gradients: over the shared ones at first, then over the head."""
        for parameter in work.scratch["fixed"]:
            parameter.grad = None

    def finish(self, work: LocalWork) -> None:
        keep_optimizer_beside(work)


@method(
    "fedbn",
    title="FedBN",
    summary="FedAvg over all layers but BatchNorm, of which every site has its own; for feature shift.",
    paper="Li et al.: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021. "
    "https://arxiv.org/abs/2102.07623",
)
@dataclass(frozen=True)
class FedBN(PlainTrainer):
    """Plain training; scale, shift and running statistics of BatchNorm stay at the site (Li et al., Algorithm 1)."""

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        """All entries of the layers that have running statistics (BatchNorm, and InstanceNorm that tracks them)."""
        layers = [keys for keys in layers_of(model).values() if any(key.endswith("running_mean") for key in keys)]
        if not layers:
            raise UserError("trainer fedbn or silobn: expected a network with BatchNorm, which this one has none of")
        return frozenset(key for keys in layers for key in keys)
