# SPDX-License-Identifier: Apache-2.0
"""What the rules share that give each site a model of its own: where a site's update starts, and where it leads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from fairflare.core.types import Info, Reply, StateDict


class View(Mapping[str, "torch.Tensor"]):
    """An update seen through a function: an entry is read and changed when it is asked for, and kept by nobody here."""

    def __init__(self, update: Mapping[str, torch.Tensor], change: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        self._update, self._change = update, change

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._change(key, self._update[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._update)

    def __len__(self) -> int:
        return len(self._update)

    def __contains__(self, key: object) -> bool:
        return key in self._update


class Shortened(View):
    """An update that a bound made shorter."""


def as_sent(reply: Reply) -> Reply:
    """The reply as the site sent it: to a rule that chooses by distance, what was made shorter looks near."""
    return replace(reply, update=reply.update._update) if isinstance(reply.update, Shortened) else reply


def from_shared(reply: Reply, model: StateDict, info: Info) -> Reply:
    """The reply with the difference of the site's trained model to ``model``, wherever the site started."""
    if reply.site not in info.models:
        return reply
    start = info.models[reply.site]
    return replace(reply, update=View(reply.update, lambda key, change: start[key] - model[key] + change))


def moved(reply: Reply, model: StateDict, info: Info, step: Callable[[str], torch.Tensor]) -> StateDict:
    """The site's next model: trainable entries are those it was sent plus ``step`` of them, running statistics its own.

    It was sent ``model``, w^t, unless it has a model of its own.
    """
    made = {}
    for key, value in info.models.get(reply.site, model).items():
        change = step(key) if key in reply.trainable else reply.update.get(key)
        made[key] = value.clone() if change is None else (value + change).to(value.dtype)
    return made
