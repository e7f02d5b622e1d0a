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
        """
        Args:
            change: key, entry -> another tensor of the same form.
        """
        self._update, self._change = update, change

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._change(key, self._update[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._update)

    def __len__(self) -> int:
        return len(self._update)

    def __contains__(self, key: object) -> bool:
        return key in self._update


def from_shared(reply: Reply, model: StateDict, info: Info) -> Reply:
    """The reply with the difference of the site's trained model to ``model``, wherever the site started."""
    sent = info.models.get(reply.site)
    if sent is None:
        return reply
    start = sent
    return replace(reply, update=View(reply.update, lambda key, change: start[key] - model[key] + change))


def moved(reply: Reply, model: StateDict, info: Info, step: Callable[[str], torch.Tensor]) -> StateDict:
    """The site's next model: trainable entries are those it was sent plus ``step``, running statistics its own.

    Args:
        model: w^t, which the site was sent unless it has a model of its own.
        step: key -> what is added to the entry that was sent.
    """
    sent = info.models.get(reply.site, model)
    made = {}
    for key, value in sent.items():
        if key in reply.trainable:
            made[key] = (value + step(key)).to(value.dtype)
        else:
            made[key] = (value + reply.update[key]).to(value.dtype) if key in reply.update else value.clone()
    return made
