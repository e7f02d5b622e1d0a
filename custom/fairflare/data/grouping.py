# SPDX-License-Identifier: Apache-2.0
"""Which group an example belongs to: its class, the value of a sensitive attribute, or both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from fairflare.core.errors import UserError
from fairflare.core.validation import shown

LABEL = "label"
NONE = "none"
MOST_GROUPS = 10_000
LONGEST_NAME = 200
"""Characters of a class's or an attribute value's name: groups multiply them."""


@dataclass(frozen=True)
class Grouping:
    """A partition of examples into groups.

    Attributes:
        keys: what it goes by, e.g. ("label", "sex").
        values: for each key its values in order, as the data spell them; the classes' names for "label".
    """

    keys: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """One name per group, e.g. "died, female"."""
        return tuple(", ".join(cell) for cell in product(*self.values)) if self.keys else ()

    def index(self, n: int, labels: Tensor, attributes: Mapping[str, Sequence[str]]) -> Tensor:
        """int64 (N,): each example's place in ``names``; -1 where an attribute is unknown."""
        index = torch.full((n,), 0 if self.keys else -1)
        for key, values in zip(self.keys, self.values):
            if key == LABEL:
                place = labels.long()
            else:
                known = {value: k for k, value in enumerate(values)}
                place = torch.tensor([known.get(value, -1) for value in attributes[key]], dtype=torch.int64)
            index = torch.where((index < 0) | (place < 0), -1, index * len(values) + place)
        return index


def make_grouping(by: str, task: str, classes: Sequence[str], attributes: Mapping[str, Sequence[str]]) -> Grouping:
    """The grouping that ``by`` names: "none", "label", an attribute, or several joined with "+" as in "label+sex".

    Args:
        by: what to group by.
        classes: the classes' names; empty where examples have no single class.
        attributes: name -> values of the task's sensitive attributes.

    Raises:
        UserError: the task has no such attribute.
    """
    if by == NONE:
        return Grouping()
    known = ({LABEL: tuple(classes)} if classes else {}) | {name: tuple(v) for name, v in attributes.items()}
    keys = tuple(key.strip() for key in by.split("+"))
    for key in keys:
        if key not in known:
            raise UserError(f"group_by: task {task} has no attribute {key!r}; it has: {', '.join(known) or NONE}")
    if len(set(keys)) < len(keys):
        raise UserError(f"group_by: expected different attributes, got {by!r}")
    for key in keys:
        for value in known[key]:
            if len(value) > LONGEST_NAME:
                raise UserError(f"group_by: expected names of at most {LONGEST_NAME} characters, got {shown(value)}")
    if math.prod(len(known[key]) for key in keys) > MOST_GROUPS:
        raise UserError(f"group_by: expected at most {MOST_GROUPS} groups, got more by {by!r}")
    return Grouping(keys, tuple(known[key] for key in keys))
