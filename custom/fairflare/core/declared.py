# SPDX-License-Identifier: Apache-2.0
"""What parts, methods and tasks declare of themselves, before a run: what they send, need, cost and come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

StateDict: TypeAlias = "dict[str, torch.Tensor]"
SplitName = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Number:
    """A number that a probe or trainer sends beside the update: the gate enforces its range.

    Attributes:
        name: its name; numbers of a family are "family/member".
        low: the least value that is accepted.
        high: the largest.
        meaning: what it is, for people.
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


@dataclass(frozen=True)
class TensorSpec:
    """Tensors (float32) that a part sends or receives beside the model: "name/entry" on the way.

    Attributes:
        name: what the tensors are called; a rule reads them under it.
        shapes: from what server and sites know alike to {entry: shape}.
        meaning: what they are, for people.
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
        task: its name, for messages.
        metrics: names of its metrics.
        headline: the metric that fairness is reported in.
        groups: names of the groups of the run's grouping.
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
        split: "train", "val" or "test".
        least: the fewest examples.
        reason: what it needs them for, in words that end a sentence.
        both_classes: whether examples of one class alone will not do.
    """

    split: SplitName
    least: int
    reason: str
    both_classes: bool = False


GROUP_LOSS, GROUP_COUNT = "group_loss", "group_count"
"""Families of the scalars "group_loss/GROUP" and "group_count/GROUP": mean loss and size of a group at a site."""
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


def numbers_of(part: Any) -> list[Number]:
    """The numbers among what a trainer or probe ``sends``."""
    return [spec for spec in part.sends if isinstance(spec, Number)]


def tensors_of(part: Any) -> list[TensorSpec]:
    """The tensors among what a trainer or probe ``sends``."""
    return [spec for spec in part.sends if isinstance(spec, TensorSpec)]
