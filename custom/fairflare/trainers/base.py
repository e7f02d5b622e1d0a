# SPDX-License-Identifier: Apache-2.0
"""What every trainer is: an epoch loop around one step, the local optimizer and the local objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, ClassVar, TypeAlias

import torch

from fairflare.core.execution import ahead, eager, no_grad
from fairflare.core.registry import trainer
from fairflare.core.seeds import derive
from fairflare.core.types import (
    PERSONAL,
    Batch,
    Cost,
    Info,
    LocalWork,
    Need,
    Number,
    Objective,
    Offer,
    Reply,
    SiteData,
    StateDict,
    TensorSpec,
    Training,
)

Optimizer: TypeAlias = "torch.optim.Optimizer"  # as text: whoever lists methods does without torch
ServerState = Mapping[str, Any]
"""What the server keeps for a trainer from round to round: nested dicts of numbers, strings and tensors."""


class Trainer(ABC):
    """A way of local training: a frozen dataclass of parameters; a concrete trainer implements ``step``.

    In each round ``setup`` is called once, then ``step`` for every batch, then ``finish``. What one of them needs from
    another lies in ``work.scratch`` (this round only) or ``work.memory`` (the rounds to come).

    A trainer may have a server half, whatever rule combines the models: ``collect`` makes its next state of the
    accepted replies, ``tensors_for`` and ``orders`` say what of it a site is sent, ``correct`` changes the combined
    model. All four are pure.
    """

    cost: ClassVar[Cost] = Cost(forward=1, backward=1)
    sends: ClassVar[tuple[Number | TensorSpec, ...]] = ()
    """What ``work.send_numbers`` and ``work.send_tensors`` may hold after ``finish``; nothing else leaves a site."""
    receives: ClassVar[tuple[TensorSpec, ...]] = ()
    """What the rule may send in ``work.tensors`` beside the model."""
    keeps_personal_model: ClassVar[bool] = False
    """Whether every site has a whole model of its own, which ``finish`` leaves in ``work.personal``."""
    shares_model: ClassVar[bool] = True
    """Whether sites send updates of the shared model; False where these are always zero, since models stay there."""
    as_published: ClassVar[Mapping[str, Any]] = {}
    """Settings that ``robust=off`` stands for, unless the user names them."""
    probes: ClassVar[tuple[str, ...]] = ()
    """Ids of the probes whose numbers the server half reads; they run whatever the rule wants."""
    heeds: ClassVar[tuple[str, ...]] = ()
    """Families of the orders of a rule ("weight" stands for "weight/...") that the steps follow."""

    model: ClassVar[str] = ""
    """The task's option ``model`` that it needs, taken where the user names none; "": any."""
    alone: ClassVar[str] = ""
    """Id of the trainer of a site alone; "": itself where it exchanges the model alone, else sgd."""
    for_one_site: ClassVar[bool] = False
    """Whether it only makes sense for a site by itself, whose model is weighed with no other."""
    sums_only: ClassVar[bool] = False
    """Whether updates hold sums over patients: a rule may weigh them by numbers of the site, and do nothing else."""

    private: ClassVar[bool] = False
    """Whether its updates keep to a privacy budget: then no part may send numbers beside them but its own."""
    few: ClassVar[str] = ""
    """Why ``fewest`` is more than any example, in words."""

    def fewest(self, model: StateDict, min_count: int | None) -> int:
        """The fewest training examples of a site whose update may leave it, masked too; of ``model`` only shapes count.

        ``min_count`` is the fewest patients of a group whose numbers may leave the site; None: none leave.
        """
        return 0

    def train(self, work: LocalWork) -> float:
        """Train ``work.network`` in place; the mean training loss, each batch measured before its step.

        ``work.steps`` counts the optimizer steps.
        """
        try:
            return float(self._train(work))
        finally:
            work.scratch.clear()

    def _train(self, work: LocalWork) -> torch.Tensor:
        """See ``train``; nothing in here reads a number from the device, so that a GPU always has work ahead."""
        work.network.train()
        optimizer = make_optimizer(work.network, work.training)
        if work.training.keep_optimizer and "optimizer" in work.memory:
            go_on(optimizer, work.memory["optimizer"])
        work.steps = 0
        self.setup(work)
        objective = self.objective(work)
        losses, sizes = list[torch.Tensor](), list[int]()
        for batch in ahead(local_batches(work), work.device):
            work.stop_if_aborted()
            losses.append(self.step(work, optimizer, objective, batch.to(work.device)).detach())
            sizes.append(batch.targets.shape[0])
            work.steps += 1
        self.finish(work)
        if work.training.keep_optimizer:
            work.memory["optimizer"] = optimizer.state_dict()
        if not losses:
            return torch.zeros(())
        weighed = torch.stack(losses).flatten() * torch.tensor(sizes, device=work.device)
        return weighed.double().cumsum(0)[-1] / sum(sizes)  # on a CPU one after the other

    def setup(self, work: LocalWork) -> None:  # noqa: B027  (most trainers prepare nothing)
        """Called before the first step of a round: put what the steps need into ``work.scratch``."""

    def finish(self, work: LocalWork) -> None:  # noqa: B027  (most trainers keep and send nothing)
        """Called after the last step of a round: fill ``work.memory``, ``work.send_numbers``, ``work.send_tensors``."""

    @property
    def has_server_half(self) -> bool:
        """Whether the server keeps or sends anything for this trainer."""
        return any(getattr(type(self), name) is not getattr(Trainer, name) for name in SERVER_HALF)

    @property
    def reads_answers(self) -> bool:
        """Whether the server's half needs more of a round than the combined model."""
        return any(getattr(type(self), name) is not getattr(Trainer, name) for name in SERVER_HALF if name != "correct")

    @property
    def is_alone(self) -> bool:
        """Whether a site can train so by itself: it exchanges the model alone, and has no other of its own."""
        entries = type(self).personal_entries is not Trainer.personal_entries
        return not (self.has_server_half or self.receives or self.heeds or self.keeps_personal_model or entries)

    @property
    def is_shared(self) -> bool:
        """Whether sites use the round's model as it is: none has a model or layers of its own."""
        return not self.keeps_personal_model and type(self).personal_entries is Trainer.personal_entries

    @property
    def collects(self) -> bool:
        """Whether the server's half takes up single sites' answers, beside the rule that weighs them."""
        return type(self).collect is not Trainer.collect

    @property
    def corrects(self) -> bool:
        """Whether the server changes the combined model for this trainer."""
        return type(self).correct is not Trainer.correct

    def tensors_for(self, state: ServerState, site: str, info: Info) -> dict[str, StateDict]:
        """Name -> {entry: tensor}, sent to ``site`` beside the model before it trains; declared in ``receives``.

        ``state`` is what ``collect`` made of the last round, empty before the first one; by default what is sent is
        what it holds under the declared names.
        """
        return {spec.name: state[spec.name] for spec in self.receives if spec.name in state}

    def orders(self, state: ServerState, site: str, info: Info) -> dict[str, float]:
        """Numbers that are sent to ``site`` alone before it trains, under other names than the rule's."""
        return {}

    def collect(self, model: StateDict, replies: Sequence[Reply], state: ServerState, info: Info) -> ServerState:
        """The server half's next state, of w^t, the accepted replies by site and the last state, {} in round 1."""
        return state

    def correct(self, model: StateDict, combined: StateDict, state: ServerState, info: Info) -> StateDict:
        """w^{t+1} before the server optimizer's step, of w^t, the rule's ``combined`` model and ``collect``'s state."""
        return combined

    def personal_entries(self, model: StateDict) -> frozenset[str]:
        """Names of the model's entries that stay at each site, by names and shapes alone; none by default.

        No update of them leaves a site, and the server's model keeps their initial values.

        Raises:
            UserError: the model has nothing that this trainer could keep at the sites.
        """
        return frozenset()

    def site_model(self, received: StateDict, memory: Mapping[str, Any]) -> StateDict:
        """The model that a site measures and trains in a round, of w^t and what it has kept from the rounds before.

        By default the received one, with the site's personal entries, once it has some, in place of the server's.
        """
        own = memory.get(PERSONAL, {})
        return received | {key: own[key] for key in self.personal_entries(received) if key in own}

    def personal_model(self, received: StateDict, memory: Mapping[str, Any]) -> StateDict | None:
        """The model that is the site's own, evaluated beside the received one; None where it has none (yet)."""
        if PERSONAL not in memory:
            return None
        if self.keeps_personal_model:
            return dict(memory[PERSONAL])
        return self.site_model(received, memory) if self.personal_entries(received) else None

    def objective(self, work: LocalWork) -> Objective:
        """What the steps minimise: the task's objective with the site's own logit adjustment."""
        return work.loss(work.training.logit_tau)

    def site_data(self, data: SiteData) -> SiteData:
        """A site's data as this trainer's networks take them, everywhere; as they are by default."""
        return data

    def shared_batches(self, batches: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
        """A shared test set, no site's, as this trainer's networks take it; ``batches`` makes it anew at every call."""
        return batches()

    @property
    def needs(self) -> tuple[Need, ...]:
        """What it needs of every site's data beyond an example to train on; nothing by default."""
        return ()

    def missing(self, offer: Offer) -> str:
        """What the task lacks for this trainer, in words that end a sentence; empty when nothing is missing."""
        return ""

    def unsuited(self, network: torch.nn.Module) -> str:
        """Why this trainer cannot train ``network``, in words that end a sentence; empty where it can."""
        return ""

    def unsuited_to(self, training: Training) -> str:
        """Why this trainer cannot train as ``training`` says, in words that end a sentence; empty where it can."""
        return ""

    def halted(self, work: LocalWork) -> str:
        """Called before a round at the site: why it takes no part, in words that leave the site; "" where it does."""
        return ""

    def backward(
        self, work: LocalWork, objective: Objective, batch: Batch, network: torch.nn.Module | None = None
    ) -> torch.Tensor:
        """Add the gradient of the batch's mean loss to those of ``network`` (``work.network``); returns that loss."""

        def part(outputs: torch.Tensor, rows: slice) -> torch.Tensor:
            if outputs.shape[0] == (n := batch.targets.shape[0]):
                return objective(outputs, batch.targets)
            return objective(outputs, batch.targets[rows]) * (outputs.shape[0] / n)

        return work.execution.backward(network or work.network, batch.inputs, part)

    @abstractmethod
    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        """One optimizer step on one batch; returns the batch's mean loss at the weights before it."""


@trainer("sgd")
@dataclass(frozen=True)
class PlainTrainer(Trainer):
    """One gradient per batch, one optimizer step (SGD or Adam, as the task's training settings say).

    A trainer that only adds terms to the gradient derives from it and implements ``correct_gradients``.
    """

    def step(self, work: LocalWork, optimizer: Optimizer, objective: Objective, batch: Batch) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = self.backward(work, objective, batch)
        self.correct_gradients(work)
        optimizer.step()
        return loss

    def correct_gradients(self, work: LocalWork) -> None:
        """Called between the backward pass and the optimizer's step: change the gradients of ``work.network``."""


SERVER_HALF = ("tensors_for", "orders", "collect", "correct")
"""The methods that make up a trainer's server half."""


def make_optimizer(network: torch.nn.Module, training: Training) -> Optimizer:
    """Adam with betas (.9, adam_beta2) or SGD over the trainable parameters, fused: one pass over memory."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    shared: dict[str, Any] = {"lr": training.lr, "weight_decay": training.weight_decay, "fused": True}
    if training.optimizer == "sgd":
        return eager(torch.optim.SGD)(parameters, momentum=training.momentum, **shared)
    return eager(torch.optim.Adam)(parameters, betas=(0.9, training.adam_beta2), **shared)


def go_on(optimizer: Optimizer, kept: dict[str, Any]) -> None:
    """Load what ``optimizer`` was when ``kept`` was its state dict.

    Fused steps take memory as it comes, so that a moment has to lie as its parameter does.
    """
    optimizer.load_state_dict(kept)
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                values[name] = torch.empty_like(parameter).copy_(value)


BESIDE = "personal optimizer"
"""Key of a site's memory: the state of a second optimizer, in runs that keep optimizers."""


def optimizer_beside(work: LocalWork, network: torch.nn.Module) -> Optimizer:
    """A second optimizer of the round, for ``network``; it lies in ``work.scratch["beside"]``, too."""
    work.scratch["beside"] = optimizer = make_optimizer(network, work.training)
    if work.training.keep_optimizer and BESIDE in work.memory:
        go_on(optimizer, work.memory[BESIDE])
    return optimizer


def keep_optimizer_beside(work: LocalWork) -> None:
    """Keep the state of the round's second optimizer, if it has one and the run keeps optimizers."""
    if work.training.keep_optimizer and "beside" in work.scratch:
        work.memory[BESIDE] = work.scratch["beside"].state_dict()


PLACE = "place in the data"
"""Key of a site's memory: the seed of its order, the epoch it is in, and the batches of it that are done."""


def local_batches(work: LocalWork, epoch: Callable[[int, int], Iterable[Any]] | None = None) -> Iterator[Any]:
    """The round's batches in order, not yet on the device, or what ``epoch`` has in their places.

    Where ``training.steps`` gives a number they are so many steps of one endless sequence of epochs per site, whose
    order follows from the seed of the site's first round; where it stands is kept in ``work.memory``.

    Args:
        epoch: (batch size, seed) -> what there is for each batch of an epoch; ``work.data.training`` by default.
    """
    training, epoch = work.training, epoch or work.data.training
    bounded = training.fewest_steps is not None or training.most_steps is not None
    steps = training.steps(work.data.size("train")) if bounded else training.local_steps
    if steps is None:
        for number in range(training.epochs):
            yield from epoch(training.batch_size, derive(work.seed, "epoch", number))
        return
    start = work.memory.get(PLACE, {"seed": work.seed, "epoch": 0, "done": 0})
    for place, batch in islice(_endless(training.batch_size, epoch, **start), steps):
        work.memory[PLACE] = place
        yield batch


def _endless(
    batch_size: int, one: Callable[[int, int], Iterable[Any]], seed: int, epoch: int, done: int
) -> Iterator[tuple[dict[str, int], Any]]:
    """Epoch after epoch from the batch after ``done`` ones of ``epoch``; each batch with the place behind it."""
    for number in count(epoch):
        for taken, batch in enumerate(one(batch_size, derive(seed, "epoch", number)), start=1):
            if number > epoch or taken > done:
                yield {"seed": seed, "epoch": number, "done": taken}, batch


@no_grad
def add_proximal(parameters: Sequence[torch.Tensor], anchor: Sequence[torch.Tensor], mu: float) -> torch.Tensor:
    """Add the gradient mu (w - w^t) of the proximal term mu/2 ||w - w^t||^2 to the parameters' gradients.

    Returns the term's value, over the parameters that have gradients; ``anchor`` is w^t. Li et al. (FedProx), MLSys
    2020, https://arxiv.org/abs/1812.06127, Eq. 2; with a personal model in place of w it is the regulariser of Ditto,
    https://arxiv.org/abs/2012.04221, Eq. 1.
    """
    pairs = [(w, w.grad, a) for w, a in zip(parameters, anchor, strict=True) if w.grad is not None]
    total = torch.zeros((), dtype=torch.float64, device=parameters[0].device if parameters else None)
    for w, gradient, a in pairs:
        away = w - a
        gradient.add_(away, alpha=mu)
        total += away.double().square().sum()
    return mu / 2 * total
