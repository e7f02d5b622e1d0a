# SPDX-License-Identifier: Apache-2.0
"""The values that the rooms hand to each other: what parts, methods and tasks declare before a run, then a round's.

Rules, trainers and probes know these types and nothing of each other; nothing here touches a file, a socket or FLARE.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeAlias

import torch

from fairflare.core.execution import Execution, Precision, moved
from fairflare.core.metric import LARGEST_LOSS as LARGEST_LOSS
from fairflare.core.validation import Range, within

StateDict: TypeAlias = "dict[str, torch.Tensor]"
SplitName = Literal["train", "val", "test"]
Weights = dict[str, float]


@dataclass(frozen=True)
class Number:
    """A number that a probe or trainer sends beside the update: the gate enforces its range.

    Attributes:
        name: its name; numbers of a family are "family/member".
        required: whether an answer without it is refused.
        of_examples: it counts examples: the gate takes whole numbers of at most this many times the site's training
            examples; None: no such count.
    """

    name: str
    low: float
    high: float
    meaning: str
    required: bool = False
    of_examples: float | None = None

    def in_group(self, group: str) -> Number:
        """The same of a group of patients."""
        return replace(self, name=f"{self.name}/{group}", meaning=f"{self.meaning}, in the group")


@dataclass(frozen=True)
class TensorSpec:
    """Tensors (float32) that a part sends or receives beside the model: "name/entry" on the way.

    Attributes:
        name: what the tensors are called; a rule reads them under it.
        shapes: from what server and sites know alike to {entry: shape}.
        required: whether all entries must be there; otherwise any of them may be missing.
        bound: the largest absolute value that is accepted.
        compared: whether the gate holds its size against that of the other sites'; not for what honestly differs by
            orders of magnitude, such as counts.
    """

    name: str
    shapes: Callable[[Outline], Mapping[str, tuple[int, ...]]]
    meaning: str
    required: bool = False
    bound: float = 1e6
    compared: bool = True


MOST_EXAMPLES = 10**8
"""The most examples that a site may say it has."""

MOST_STEPS = 10**9
"""The most local optimizer steps of one round that a site may report."""


@dataclass(frozen=True)
class Outline:
    """What the server and every site know alike before the first round; it fixes the numbers that may travel.

    Attributes:
        model: the initial model: names, shapes and order of its entries.
        groups: names of the groups that examples belong to, e.g. ("female", "male") or the classes.
        classes: number of classes of the task; 0: not known.
    """

    model: StateDict
    groups: tuple[str, ...] = ()
    classes: int = 0

    @property
    def features(self) -> int:
        """Width of the features before the last layer: the inputs of the model's last matrix; 0 without one."""
        widths = [value.shape[1] for value in self.model.values() if value.dim() > 1]
        return int(widths[-1]) if widths else 0


@dataclass(frozen=True)
class Offer:
    """What a task has for methods to ask for.

    Attributes:
        has_classes: whether every example has one class, as logit adjustment needs.
        family: what an exact regression takes its targets for, see ``tasks.kind.TaskKind``.
    """

    task: str
    metrics: tuple[str, ...]
    headline: str
    groups: tuple[str, ...]
    has_classes: bool
    family: str = ""


@dataclass(frozen=True)
class Need:
    """What a rule, trainer or probe cannot do without in a split of a site's data; preflight refuses less.

    Attributes:
        reason: what it needs them for, in words that end a sentence.
        both_classes: whether examples of one class alone will not do.
    """

    split: SplitName
    least: int
    reason: str
    both_classes: bool = False


GROUP_LOSS, GROUP_COUNT = "group_loss", "group_count"
"""Families of the scalars "group_loss/GROUP" and "group_count/GROUP": mean loss and size of a group at a site."""


def of_family(scalars: Mapping[str, float], family: str) -> dict[str, float]:
    """NAME -> the number that is called "family/NAME"."""
    parts = ((name.partition("/"), value) for name, value in scalars.items())
    return {name: value for (one, sign, name), value in parts if sign and one == family}


HELD = "holds_class"
"""Family of the scalars "holds_class/INDEX": whether a site holds training examples of a class."""


@dataclass(frozen=True)
class Cost:
    """Forward and backward passes over a site's training data (a trainer's per epoch, a probe's per round)."""

    forward: int = 0
    backward: int = 0

    @property
    def in_forwards(self) -> int:
        """Cost in forward passes, a backward pass counted as two."""
        return self.forward + 2 * self.backward


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

    @classmethod
    def cited(cls, text: str) -> Paper:
        """Of "AUTHORS: TITLE. VENUE YEAR. URL"; raises ValueError for another text."""
        found = re.fullmatch(r"(.+?): (.+)\. (.+?) (\d{4})\. (\S+)", text)
        if not found:
            raise ValueError(f"expected AUTHORS: TITLE. VENUE YEAR. URL, got {text!r}")
        return cls(found[1], found[2], found[3], int(found[4]), found[5])


def numbers_of(part: Any) -> list[Number]:
    """The numbers among what a trainer or probe ``sends``."""
    return [spec for spec in part.sends if isinstance(spec, Number)]


def tensors_of(part: Any) -> list[TensorSpec]:
    """The tensors among what a trainer or probe ``sends``."""
    return [spec for spec in part.sends if isinstance(spec, TensorSpec)]


class Objective(Protocol):
    """Logits (N, C) and targets (N,) -> the mean loss, or the (N,) losses with ``reduction="none"``."""

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean") -> torch.Tensor:
        """The loss."""


def local_objective(class_counts: torch.Tensor, tau: float) -> Objective:
    """Cross-entropy of z + tau log(n_c / n), logit adjustment (Menon et al., ICLR 2021, arXiv:2007.07314, Eq. 10).

    Args:
        class_counts: (C,) the site's own training examples per class. An absent class gets a logit of -inf, which is
            harmless on data without that class: never use this objective on other data.
        tau: temperature >= 0; 0 is plain cross-entropy.
    """
    shift = tau * torch.log(class_counts / class_counts.sum()) if tau else None

    def objective(logits: torch.Tensor, targets: torch.Tensor, *, reduction: str = "mean") -> torch.Tensor:
        if shift is not None:
            logits = logits + shift.to(logits.dtype)
        return torch.nn.functional.cross_entropy(logits, targets, reduction=reduction)

    return objective


@dataclass(frozen=True)
class Training:
    """How a site trains in one round, whatever the method; a task preset holds the papers' values.

    Attributes:
        rounds: T, communication rounds.
        epochs: local epochs per round, unless ``local_steps`` are given.
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
        local_steps: local steps per round in place of ``epochs``: a site goes through its data again and again, and
            each round goes on where the site's last one stopped. None: as ``epochs`` say.
        fewest_steps: with ``most_steps`` the bounds within which ``epochs`` passes over a site's own data are cut or
            drawn out to a number of steps, which go on from round to round as ``local_steps`` do. ``local_steps`` win.
            None beside None: whole epochs; None alone: no such bound.
        most_steps: see ``fewest_steps``.
        horizon: rounds over which what grows with t / T does, where more of them are planned than this run's; None:
            T. Segments of a federation that share it make the model of one run.
    """

    rounds: Annotated[int, Range(1, 1_000_000)] = 10
    epochs: Annotated[int, Range(1, 10_000)] = 1
    batch_size: Annotated[int, Range(2, 65_536)] = 32
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Range(0, 1e6)] = 3e-4
    momentum: Annotated[float, Range(0, 1)] = 0.9
    weight_decay: Annotated[float, Range(0, 1e6)] = 5e-4
    logit_tau: Annotated[float, Range(0, 1e3)] = 0.0
    adam_beta2: Annotated[float, Range(0, 1)] = 0.999
    keep_optimizer: bool = False
    precision: Precision = "auto"
    local_steps: Annotated[int, Range(1, 1_000_000)] | None = None
    fewest_steps: Annotated[int, Range(1, 1_000_000)] | None = None
    most_steps: Annotated[int, Range(1, 1_000_000)] | None = None
    horizon: Annotated[int, Range(1, 1_000_000)] | None = None

    def __post_init__(self) -> None:
        within(self, adam_beta2="[0, 1)", lr="(0, inf)")  # an end that ``Range`` would allow; configurations keep to it
        if self.fewest_steps and self.most_steps and self.fewest_steps > self.most_steps:
            raise ValueError(f"fewest_steps must be at most most_steps, {self.most_steps}, got {self.fewest_steps}")

    def steps(self, n_examples: int) -> int | None:
        """Optimizer steps of a round at a site with so many training examples; None: its whole epochs, however many."""
        if self.local_steps is not None:
            return self.local_steps
        if self.fewest_steps is None and self.most_steps is None:
            return None
        passes = self.epochs * -(-n_examples // self.batch_size)
        return min(max(passes, self.fewest_steps or 1), self.most_steps or passes + (self.fewest_steps or 1))


def refuse_training(settings: Mapping[str, Any]) -> None:
    """Raise ValueError where ``settings`` of a method hold a field of ``Training``, which is the task's to say."""
    named = {key.removeprefix("train.") for key in settings}
    fields = sorted(named & set(Training.__dataclass_fields__))
    if fields:
        raise ValueError(f"{fields[0]}: is the task's training, equal for all methods, and no setting of one")


class Batch(NamedTuple):
    """Examples of one site.

    Attributes:
        inputs: (N, ...) as the network takes them.
        targets: (N,) class indices, or (N, ...) masks.
        groups: int64 (N,), the index of each example's group in the run's grouping, -1 where it is in none.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    groups: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The same examples on ``device``; groups stay where they are until something weighs by them."""
        return Batch(moved(self.inputs, device), moved(self.targets, device), self.groups)


@dataclass(frozen=True)
class Round:
    """Where a federation stands: round ``t`` = ``number`` (1-based, absolute) of ``T`` = ``total``."""

    number: int
    total: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.total:
            raise ValueError(f"round number must be in 1..{self.total}, got {self.number}")


@dataclass(frozen=True)
class Info:
    """What a rule knows of a round beside model, replies and its own state.

    Attributes:
        lr: local learning rate eta of the sites, >= 0; 0 where the server does not know it.
        steps: site -> optimizer steps that it took in this round, as its accepted answer says; lacks the sites whose
            answer does not say, and is empty before the answers.
        known_sites: sites that have passed preflight so far and may be selected in some round, absent ones included; 0
            where the server does not know.
        models: site -> the model of its own that it was sent in this round, to which its update is the difference; all
            other sites were sent the shared one.
        examples: those sites -> n_k as stated in preflight; empty where the server does not know.
        cap: the largest weight of a site in this round, in (0, 1], or site -> its own; 1 caps none.
    """

    round: Round
    lr: float = 0.0
    steps: Mapping[str, int] = field(default_factory=dict)
    known_sites: int = 0
    models: Mapping[str, StateDict] = field(default_factory=dict)
    examples: Mapping[str, int] = field(default_factory=dict)
    cap: float | Mapping[str, float] = 1.0

    def __post_init__(self) -> None:
        within(self, lr="[0, inf)")


@dataclass(frozen=True)
class Reply:
    """What a rule sees of one site's accepted answer; only the update gate makes these.

    Attributes:
        site: the site's name; replies reach a rule sorted by it.
        update: D_k = w_k - w^t for every floating-point entry of the model (parameters and buffers). An entry may lie
            in a file, and is read every time it is asked for: ask once, and keep one at a time.
        n_examples: n_k > 0, the size of the site's training split.
        scalars: the numbers of the method's probes, finite and within the probes' ranges.
        metrics: the received model's validation metrics at the site.
        trainable: names of the trainable parameters among the update's keys (the rest are buffers).
        measured: the other numbers that the schema asks of every site, whatever the method; see ``core.schema``.
        tensors: name -> {entry: tensor} that the method's parts sent, float32 on the CPU, as they declared them.
    """

    site: str
    update: Mapping[str, torch.Tensor]
    n_examples: int
    scalars: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    trainable: frozenset[str] = frozenset()
    measured: Mapping[str, float] = field(default_factory=dict)
    tensors: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)


class SiteData(Protocol):
    """One site's data as trainers, probes and evaluation see it; the clinic provides it."""

    class_counts: torch.Tensor
    """int64 (C,): the training split's examples per class."""

    group_counts: torch.Tensor
    """int64 (M,): the training split's examples per group of the run's grouping; empty without one."""

    def size(self, split: SplitName) -> int:
        """Number of examples in ``split``."""

    def training(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """One shuffled epoch of the training split with train transforms; the seed fixes order and transforms.

        No batch holds a single example (BatchNorm cannot train on one): it joins the batch before it.
        """

    def fixed(self, split: SplitName, batch_size: int, at_most: int | None = None) -> Iterator[Batch]:
        """``split`` in its stored order with eval transforms only; ``at_most`` takes that many, evenly spaced."""


class Ledger(Protocol):
    """What a site has spent in a run, on its own disk; no round that is asked for again takes anything back."""

    def read(self) -> dict[str, Any]:
        """What was written last; empty at first."""

    def write(self, content: dict[str, Any]) -> None:
        """Keep ``content``, JSON values, before what it is about is done."""

    def held(self) -> AbstractContextManager[None]:
        """Within: nobody else writes, so that what was read there still holds."""


PERSONAL = "personal"
"""Key of a site's memory under which its personal model, or its personal entries, lie."""
TRIVIAL = "trivial"
"""Key of a final evaluation under which the results of an answer that needs no network lie, split by split."""
FROZEN = "frozen_entries"
"""Attribute of a module that does not train: its entries, and which were parameters (``engine.setup.tuning``)."""
CLINICAL = "clinical"
"""Key under which a site's numbers of calibration and decisions lie."""
LABEL = "label"
"""The grouping of cases by their class."""
INTERVALS = "intervals"
"""Key of a final evaluation under which metric -> {"low", "high"} lies: its interval over the site's test patients."""


@dataclass
class LocalWork:
    """Everything a trainer or a probe may use at a site during one round.

    Attributes:
        network: holds the received model when a trainer or a received-model probe starts.
        seed: this site's seed for this round; order and transforms derive from it alone.
        orders: the numbers the rule sent to this site and to no other.
        execution: where and how the network computes.
        stop_if_aborted: call it once per batch; raises when the federation ends early.
        memory: tensors, numbers and nested dicts of them that this site has kept from the rounds before; what is put
            there is kept for the rounds to come and never leaves the site.
        received: the site's model of the round: what the server sent in this exchange (w^t, or the anchor of a second
            one) with the site's personal entries in their places.
        objective: (class counts, temperature of the logit adjustment) -> what the site minimises.
        received_metrics: the task's metrics of the received model on the validation split.
        evaluate: split -> the task's metrics of ``network`` as it stands; empty where the split is.
        headline: name of the metric among them that fairness is reported in, a share of 1.
        min_count: the fewest training examples of a group whose numbers may leave the site; None: none leave.
        family: what an exact regression takes the targets for, see ``tasks.kind.TaskKind``.
        scratch: whatever a trainer needs during one round, on the device; emptied when its training ends.
        steps: optimizer steps that the trainer has made in this round.
        measured: field of the train answer -> number, for fields of the schema that parts of a method fill.
        send_numbers: name -> number that leaves with the update; a trainer declares them in ``sends``.
        send_tensors: name -> {entry: tensor} that leaves with the update; trainers and probes declare it in ``sends``.
        tensors: name -> {entry: tensor} that the rule sent beside the model, float32 on the CPU; the parts that
            receive it declare it in ``receives``.
        support: kind of sum -> the weight of each training patient in what leaves (N,), see ``privacy.referee``.
        ledger: what a private trainer has spent; None: nobody keeps it.
    """

    network: torch.nn.Module
    data: SiteData
    training: Training
    round: Round
    seed: int
    orders: Mapping[str, float] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)
    stop_if_aborted: Callable[[], None] = lambda: None
    memory: MutableMapping[str, Any] = field(default_factory=dict)
    received: StateDict = field(default_factory=dict)
    objective: Callable[[torch.Tensor, float], Objective] = local_objective
    received_metrics: Mapping[str, float] = field(default_factory=dict)
    evaluate: Callable[[SplitName], dict[str, float]] = lambda split: {}
    headline: str = ""
    groups: tuple[str, ...] = ()
    min_count: int | None = 10
    family: str = "bernoulli"
    scratch: dict[str, Any] = field(default_factory=dict)
    steps: int = 0
    measured: dict[str, Any] = field(default_factory=dict)
    send_numbers: dict[str, float] = field(default_factory=dict)
    send_tensors: dict[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    tensors: Mapping[str, StateDict] = field(default_factory=dict)
    support: dict[str, torch.Tensor] = field(default_factory=dict)
    ledger: Ledger | None = None

    @property
    def device(self) -> torch.device:
        return self.execution.device

    @property
    def personal(self) -> StateDict:
        """The site's personal model as its last round left it; empty before its first round. A trainer replaces it."""
        kept: StateDict = self.memory.get(PERSONAL, {})
        return kept

    @personal.setter
    def personal(self, model: StateDict) -> None:
        self.memory[PERSONAL] = model

    def loss(self, tau: float = 0.0) -> Objective:
        """The task's objective on this site's data, where it computes; ``tau`` > 0 adjusts logits."""
        return self.objective(self.data.class_counts.to(self.device), tau)
