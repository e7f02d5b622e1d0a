# SPDX-License-Identifier: Apache-2.0
"""FedProc: local features are drawn to the federation's mean features of their class, less and less over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fairflare.core.registry import method
from fairflare.core.types import Batch, Info, LocalWork, Objective, Offer, Paper, Reply, Round, StateDict, TensorSpec
from fairflare.functional.features import features_of, lacks_features, prototype_contrast
from fairflare.trainers.base import PlainTrainer, ServerState

PROTOTYPES, COUNTS = "prototypes", "prototype_counts"
GLOBAL = TensorSpec(
    "global_prototypes",
    lambda o: {str(c): (o.features,) for c in range(o.classes)},
    "mean features of every class over the sites",
)
REFERENCE_ROUNDS = 100
"""After which the authors' code trains on cross-entropy alone."""


@method(
    "fedproc",
    title="FedProc",
    summary="FedAvg whose local features are drawn to the federation's class means, strongly at first.",
    paper=Paper.cited(
        "Mu et al.: FedProc: Prototypical Contrastive Federated Learning on Non-IID Data. Future Generation Computer "
        "Systems 2023. https://arxiv.org/abs/2109.12273"
    ),
)
@dataclass(frozen=True)
class FedProc(PlainTrainer):
    """Each step minimises a f(w) + (1 - a) CE(z . c_hat, y) (Mu et al., arXiv:2109.12273), a rising to 1.

    z is what enters the last linear layer and c_hat are the classes' prototypes, of length 1. Before there are any, in
    the first round, a is 1. The server's half averages the prototypes and keeps that of a class that no site tells of.

    Args:
        variant: a = (t - 1) / T and prototypes weighed by the sites' examples ("paper"); a = min(1, (t - 1) / 100)
            ("reference", the authors' code); z of length 1, a = (t - 1) / (T - 1) and the plain mean of the sites'
            prototypes ("marsfl").
    """

    receives: ClassVar[tuple[TensorSpec, ...]] = (GLOBAL,)
    probes: ClassVar[tuple[str, ...]] = ("prototypes",)
    variant: Literal["paper", "reference", "marsfl"] = "paper"

    def missing(self, offer: Offer) -> str:
        return "" if offer.has_classes else "FedProc needs one class label per example"

    def unsuited(self, network: torch.nn.Module) -> str:
        return lacks_features(network)

    def share(self, round: Round) -> float:
        """a in round t."""
        done = round.number - 1
        if self.variant == "reference":
            return min(1.0, done / REFERENCE_ROUNDS)
        return done / max(round.total - (self.variant == "marsfl"), 1)

    def setup(self, work: LocalWork) -> None:
        found = work.tensors.get(GLOBAL.name, {})
        work.scratch["prototypes"] = {int(label): mean.to(work.device) for label, mean in found.items()}

    def step(
        self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch
    ) -> torch.Tensor:
        prototypes, a = work.scratch["prototypes"], self.share(work.round)
        if not prototypes or a >= 1:
            return super().step(work, optimizer, objective, batch)
        with features_of(work.network) as found:

            def both(logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean") -> torch.Tensor:
                term = prototype_contrast(found.pop(), targets, prototypes, cosine=self.variant == "marsfl")
                return a * objective(logits, targets, reduction=reduction) + (1 - a) * term

            return super().step(work, optimizer, both, batch)

    def collect(self, model: StateDict, replies: Sequence[Reply], state: ServerState, info: Info) -> ServerState:
        """The next prototypes; those of classes that no reply tells of stay."""
        after = dict(state.get(GLOBAL.name, {}))
        for label in sorted({label for reply in replies for label in reply.tensors.get(PROTOTYPES, {})}):
            said = [(self._weight(r, label), r) for r in replies if label in r.tensors.get(PROTOTYPES, {})]
            total, zero = sum(weight for weight, _ in said), torch.zeros((), dtype=torch.float64)
            if total > 0:
                parts = (reply.tensors[PROTOTYPES][label].double() * (weight / total) for weight, reply in said)
                after[label] = sum(parts, zero).float()
        return {GLOBAL.name: after}

    def tensors_for(self, state: ServerState, site: str, info: Info) -> dict[str, StateDict]:
        return dict(state)

    def _weight(self, reply: Reply, label: str) -> float:
        """How many examples a site's prototype stands for, never more than it has; 1 for MarsFL's plain mean."""
        if self.variant == "marsfl":
            return 1.0
        stated = float(reply.tensors.get(COUNTS, {}).get(label, torch.zeros(())))
        return min(max(stated, 0.0), float(reply.n_examples))
