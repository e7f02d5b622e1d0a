# SPDX-License-Identifier: Apache-2.0
"""Class prototypes, the mean features of each class: FedProto shares them in place of models or beside them.

In FedProto local features stay near their class's global prototype. In FedProc they are drawn to it by a contrastive
loss, less and less over the rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from fairflare.core.registry import method
from fairflare.core.types import (
    Batch,
    Cost,
    Info,
    LocalWork,
    Objective,
    Offer,
    Reply,
    Round,
    StateDict,
    TensorSpec,
)
from fairflare.core.validation import Range
from fairflare.functional.features import features_of, lacks_features
from fairflare.privacy.counts import released
from fairflare.trainers.base import Optimizer, PlainTrainer, ServerState
from fairflare_lab.functional.terms import class_distance, class_means, prototype_contrast

MEANS = TensorSpec(
    "prototypes", lambda o: {str(c): (o.features,) for c in range(o.classes)}, "mean features of a class"
)

LONGEST = 10.0
"""A prototype counts with at most so many times the median over the sites, from three on, of their mean length."""


@method(
    "fedproto",
    title="FedProto",
    summary="Own models, joined by the mean features of each class; with share=both the models are averaged too.",
    paper="Tan et al.: FedProto: Federated Prototype Learning across Heterogeneous Clients. AAAI 2022. "
    "https://arxiv.org/abs/2105.00243",
)
@dataclass(frozen=True)
class FedProto(PlainTrainer):
    """Each step minimises f(w) + lam times the mean squared distance of features to their classes' global prototypes.

    A prototype is the mean over a class of what enters the last linear layer; the global one is the plain mean over
    the sites that have sent it. Tan et al., AAAI 2022, https://arxiv.org/abs/2105.00243, Eq. 3, 6 and 7.

    Args:
        lam: weight of the distance, >= 0; 0 trains without it.
        share: "prototypes": nothing else travels, and every site trains a model of its own, as published; "both": the
            rule combines the models too, as in FedHEAL's tables.
    """

    cost: ClassVar[Cost] = Cost(forward=2, backward=1)
    sends: ClassVar[tuple[TensorSpec, ...]] = (MEANS,)
    receives: ClassVar[tuple[TensorSpec, ...]] = (MEANS,)
    lam: Annotated[float, Range(0, 1e6)] = 1.0
    share: Literal["prototypes", "both"] = "prototypes"

    @property
    def keeps_personal_model(self) -> bool:  # type: ignore[override]  # here a parameter says so
        """Unless the models are shared."""
        return self.share == "prototypes"

    @property
    def shares_model(self) -> bool:  # type: ignore[override]  # here a parameter says so
        """Whether the models are shared too."""
        return self.share == "both"

    def missing(self, offer: Offer) -> str:
        return "" if offer.has_classes else "FedProto needs one class label per example"

    def unsuited(self, network: torch.nn.Module) -> str:
        return lacks_features(network)

    def collect(self, model: StateDict, replies: Sequence[Reply], state: ServerState, info: Info) -> ServerState:
        """The next prototypes, of bounded ones; those of classes that no reply tells of stay."""
        sent = _bounded([reply.tensors.get(MEANS.name, {}) for reply in replies])
        labels = sorted({label for one in sent for label in one})
        fresh = {label: torch.stack([one[label] for one in sent if label in one]).mean(0) for label in labels}
        return {MEANS.name: {**state.get(MEANS.name, {}), **fresh}}

    def setup(self, work: LocalWork) -> None:
        """The prototypes on the device; a model of the site's own goes on from where it was."""
        found = work.tensors.get(MEANS.name, {})
        work.scratch["means"] = {int(label): mean.to(work.device) for label, mean in found.items()}
        if self.keeps_personal_model:
            work.network.load_state_dict(work.personal or work.received)

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        means = work.scratch["means"]
        if not means or not self.lam:
            return super().step(work, optimizer, objective, batch)
        with features_of(work.network) as found:

            def both(logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean") -> torch.Tensor:
                distance = class_distance(found.pop().flatten(1), targets, means)
                return objective(logits, targets, reduction=reduction) + self.lam * distance

            return super().step(work, optimizer, both, batch)

    def finish(self, work: LocalWork) -> None:
        """Send the means of classes that may leave the site; where the model is the site's own, its update is zero."""
        counts = work.data.class_counts.tolist()
        batches, free = work.data.fixed("train", work.training.batch_size), released(counts, work.min_count)
        means = class_means(work.network, batches, counts, work.device)
        work.send_tensors[MEANS.name] = {str(c): mean for c, mean in means.items() if free[c]}
        if self.keeps_personal_model:
            work.personal = {key: value.clone() for key, value in work.network.state_dict().items()}
            work.network.load_state_dict(work.received)


def _bounded(sent: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Every site's prototypes, those above ``LONGEST`` times the median over the sites scaled down to it."""
    lengths = [{label: float(torch.linalg.vector_norm(mean)) for label, mean in one.items()} for one in sent]
    typical = [math.fsum(own.values()) / len(own) for own in lengths if own]
    if len(typical) < 3:
        return [dict(one) for one in sent]
    most = LONGEST * statistics.median(typical)
    return [
        {label: mean * (most / own[label]) if own[label] > most else mean for label, mean in one.items()}
        for one, own in zip(sent, lengths, strict=True)
    ]


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
    paper="Mu et al.: FedProc: Prototypical Contrastive Federated Learning on Non-IID Data. Future Generation Computer "
    "Systems 2023. https://arxiv.org/abs/2109.12273",
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

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
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

    def _weight(self, reply: Reply, label: str) -> float:
        """How many examples a site's prototype stands for, never more than it has; 1 for MarsFL's plain mean."""
        if self.variant == "marsfl":
            return 1.0
        stated = float(reply.tensors.get(COUNTS, {}).get(label, torch.zeros(())))
        return min(max(stated, 0.0), float(reply.n_examples))
