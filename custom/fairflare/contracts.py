# SPDX-License-Identifier: Apache-2.0
"""The values that the rooms hand to each other.

Rules, trainers and probes know these types and nothing of each other; nothing here touches a file, a socket or FLARE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fairflare.execution import Execution, Precision
from fairflare.objectives import Objective, local_objective

StateDict = dict[str, Tensor]
Weights = dict[str, float]
SplitName = Literal["train", "val", "test"]


class Batch(NamedTuple):
    """Examples of one site.

    Attributes:
        inputs: (N, ...) as the network takes them.
        targets: (N,) class indices, or (N, ...) masks.
        groups: int64 (N,), the index of each example's group in the run's grouping, -1 where it is in none.
    """

    inputs: Tensor
    targets: Tensor
    groups: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same examples on ``device``; groups stay where they are until something weighs by them."""
        return Batch(self.inputs.to(device), self.targets.to(device), self.groups)


@dataclass(frozen=True)
class Round:
    """Where a federation stands: round ``t`` = ``number`` (1-based, absolute) of ``T`` = ``total``."""

    number: int
    total: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.total:
            raise ValueError(f"round number must be in 1..{self.total}, got {self.number}")


@dataclass(frozen=True)
class Reply:
    """What a rule sees of one site's accepted answer; only the update gate makes these.

    Attributes:
        site: the site's name; replies reach a rule sorted by it.
        update: D_k = w_k - w^t for every floating-point entry of the model (parameters and buffers).
        n_examples: n_k > 0, the size of the site's training split.
        scalars: the numbers of the method's probes, finite and within the probes' ranges.
        metrics: the received model's validation metrics at the site.
        trainable: names of the trainable parameters among the update's keys (the rest are buffers).
    """

    site: str
    update: StateDict
    n_examples: int
    scalars: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    trainable: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scalar:
    """A number that a probe reports: its name, unit-less range and meaning; the gate enforces the range."""

    name: str
    low: float
    high: float
    meaning: str


@dataclass(frozen=True)
class Outline:
    """What the server and every site know alike before the first round; it fixes the numbers that may travel.

    Attributes:
        model: the initial model: names, shapes and order of its entries.
        groups: names of the groups that examples belong to, e.g. ("female", "male") or the classes.
    """

    model: StateDict
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offer:
    """What a task has for methods to ask for.

    Attributes:
        task: its name, for messages.
        metrics: names of its metrics.
        headline: the metric that fairness is reported in.
        groups: names of the groups of the run's grouping.
        class_labels: whether every example has one class label, as logit adjustment needs.
    """

    task: str
    metrics: tuple[str, ...]
    headline: str
    groups: tuple[str, ...]
    class_labels: bool


GROUP_LOSS, GROUP_COUNT = "group_loss", "group_count"
"""Families of the scalars "group_loss/GROUP" and "group_count/GROUP": mean loss and size of a group at a site."""


@dataclass(frozen=True)
class Cost:
    """Forward and backward passes over a site's training data (a trainer's per epoch, a probe's per round)."""

    forward: int = 0
    backward: int = 0

    @property
    def in_forwards(self) -> int:
        """Cost in forward passes, a backward pass counted as two."""
        return self.forward + 2 * self.backward


class SiteData(Protocol):
    """One site's data as trainers, probes and evaluation see it; the clinic provides it."""

    class_counts: Tensor
    """int64 (C,): the training split's examples per class."""

    group_counts: Tensor
    """int64 (M,): the training split's examples per group of the run's grouping; empty without one."""

    def size(self, split: SplitName) -> int:
        """Number of examples in ``split``."""

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One shuffled epoch of the training split with train transforms; the seed fixes order and transforms.

        No batch holds a single example (BatchNorm cannot train on one): it joins the batch before it.
        """

    def fixed(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        """``split`` in its stored order with eval transforms only; ``at_most`` takes that many, evenly spaced."""


@dataclass(frozen=True)
class Training:
    """How a site trains in one round, whatever the method; a task preset holds the papers' values.

    Attributes:
        rounds: T, communication rounds.
        epochs: local epochs per round.
        batch_size: examples per local step.
        optimizer: "adam" (L2 in the gradient, not AdamW) or "sgd".
        lr: local learning rate eta.
        momentum: momentum of "sgd"; ignored by "adam".
        weight_decay: L2 coefficient added to the gradient.
        logit_tau: temperature of the logit adjustment (Menon et al., ICLR 2021) of the local loss with the site's own
            class counts; 0 is plain cross-entropy.
        adam_beta2: decay of Adam's second moment, in [0, 1).
        precision: of training passes, see ``execution.Execution``.
        keep_optimizer: True carries a site's optimizer state from round to round (Fed-LWR's, FedUFO's and FLARE's own
            FedCE clients do); False starts anew in each round (FedISM's and FedHEAL's do).
    """

    rounds: int = 10
    epochs: int = 1
    batch_size: int = 32
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 3e-4
    momentum: float = 0.9
    weight_decay: float = 5e-4
    logit_tau: float = 0.0
    adam_beta2: float = 0.999
    keep_optimizer: bool = False
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("epochs", 1), ("batch_size", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("momentum", "weight_decay", "logit_tau"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and >= 0, got {getattr(self, name)}")
        if not 0 <= self.adam_beta2 < 1:
            raise ValueError(f"adam_beta2 must be in [0, 1), got {self.adam_beta2}")
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be finite and > 0, got {self.lr}")


@dataclass
class LocalWork:
    """Everything a trainer or a probe may use at a site during one round.

    Attributes:
        network: holds the received model when a trainer or a received-model probe starts.
        data: the site's data.
        training: local training settings.
        round: t and T.
        seed: this site's seed for this round; order and transforms derive from it alone.
        orders: the numbers the rule sent to this site and to no other.
        execution: where and how the network computes.
        stop_if_aborted: call it once per batch; raises when the federation ends early.
        memory: tensors, numbers and nested dicts of them that this site has kept from the rounds before; what is put
            there is kept for the rounds to come and never leaves the site.
        received: the state dict that the server sent in this exchange: w^t, or the anchor of a second exchange.
        objective: (class counts, temperature of the logit adjustment) -> what the site minimises.
        received_metrics: the task's metrics of the received model on the validation split.
        evaluate: split -> the task's metrics of ``network`` as it stands; empty where the split is.
        headline: name of the metric among them that fairness is reported in, a share of 1.
        groups: names of the groups that ``data`` tells apart.
        min_count: the fewest training examples of a group whose numbers may leave the site; None: none leave.
    """

    network: nn.Module
    data: SiteData
    training: Training
    round: Round
    seed: int
    orders: Mapping[str, float] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)
    stop_if_aborted: Callable[[], None] = lambda: None
    memory: MutableMapping[str, Any] = field(default_factory=dict)
    received: StateDict = field(default_factory=dict)
    objective: Callable[[Tensor, float], Objective] = local_objective
    received_metrics: Mapping[str, float] = field(default_factory=dict)
    evaluate: Callable[[SplitName], dict[str, float]] = lambda split: {}
    headline: str = ""
    groups: tuple[str, ...] = ()
    min_count: int | None = 10

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return self.execution.device

    def loss(self, tau: float = 0.0) -> Objective:
        """The task's objective on this site's data, where it computes; ``tau`` > 0 adjusts logits."""
        return self.objective(self.data.class_counts.to(self.device), tau)


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    authors: str
    title: str
    venue: str
    year: int
    url: str

    def __str__(self) -> str:
        return f"{self.authors}, {self.venue} {self.year}"
