# SPDX-License-Identifier: Apache-2.0
"""FedProto: sites share the mean features of their classes instead of models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fairflare.core.objectives import Objective
from fairflare.core.registry import method, trainer
from fairflare.core.types import Batch, Info, LocalWork, Offer, Paper, Reply, StateDict, TensorSpec, Weights
from fairflare.core.validation import Range
from fairflare.functional.features import class_distance, class_means, features_of
from fairflare.privacy.counts import released
from fairflare.rules.base import State, WeighingRule, example_shares
from fairflare.trainers.sgd import PlainTrainer

TITLE = "FedProto: Federated Prototype Learning across Heterogeneous Clients"
PAPER = Paper("Tan et al.", TITLE, "AAAI", 2022, "https://arxiv.org/abs/2105.00243")
MEANS = TensorSpec("prototypes", lambda o: {str(c): (o.features,) for c in range(o.classes)}, "mean class features")


@trainer("fedproto")
@dataclass(frozen=True)
class ProtoTrainer(PlainTrainer):
    """Each site trains a model of its own on CE + ``lam`` times the distance to the global prototypes (Eq. 7)."""

    sends = receives = (MEANS,)
    keeps_personal_model = True
    lam: Annotated[float, Range(0, 1e6)] = 1.0

    def missing(self, offer: Offer) -> str:
        return "" if offer.class_labels else "FedProto needs one class label per example"

    def setup(self, work: LocalWork) -> None:
        """The site's own model goes on from where it was."""
        work.network.load_state_dict(work.personal or work.received)

    def step(self, work: LocalWork, optimizer: torch.optim.Optimizer, objective: Objective, batch: Batch) -> Tensor:
        """One step on both terms; returns their sum."""
        means = {int(label): mean for label, mean in work.tensors.get("prototypes", {}).items()}
        with features_of(work.network) as found:

            def both(outputs: Tensor, targets: Tensor) -> Tensor:
                return objective(outputs, targets) + self.lam * class_distance(found[-1], targets, means)

            return super().step(work, optimizer, both, batch)

    def finish(self, work: LocalWork) -> None:
        """Send the class means under the trained model (Eq. 3) that may leave the site; its update is zero."""
        targets, free = [], released(work.data.class_counts.tolist(), work.min_count)
        with torch.no_grad(), features_of(work.network.eval()) as found:
            for batch in work.data.fixed("train", work.training.batch_size):
                work.network(batch.inputs.to(work.device))
                targets.append(batch.targets)
        means = class_means(torch.cat(found).cpu(), torch.cat(targets))
        work.send_tensors["prototypes"] = {str(label): mean for label, mean in means.items() if free[label]}
        work.personal = {key: value.clone() for key, value in work.network.state_dict().items()}
        work.network.load_state_dict(work.received)


@method("fedproto", title="FedProto", summary="Own models, joined by class means.", paper=PAPER, trainer="fedproto")
@dataclass(frozen=True)
class FedProto(WeighingRule):
    """The models' updates are zero; the state holds the global prototypes."""

    useful = ("prototypes",)

    def weigh(self, replies: Sequence[Reply], state: State, info: Info) -> tuple[Weights, State]:
        """A prototype is the mean over the sites that sent it (Eq. 6, unweighted as in the authors' code)."""
        sent = [reply.tensors.get("prototypes", {}) for reply in replies]
        labels = sorted({label for one in sent for label in one})
        fresh = {label: torch.stack([one[label] for one in sent if label in one]).mean(0) for label in labels}
        return example_shares(replies), {"prototypes": {**state.get("prototypes", {}), **fresh}}

    def tensors_for(self, state: State, site: str, info: Info) -> dict[str, StateDict]:
        """The global prototypes, the same for every site; nothing before the first round."""
        return dict(state)
