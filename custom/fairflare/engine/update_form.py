# SPDX-License-Identifier: Apache-2.0
"""One look at an update: form, finiteness and norms of all its entries, in one pass over them.

Small entries are looked at together, since a network has a hundred of them: a call costs more than their contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairflare.core.lazy_tensors import Stored, gathered
from fairflare.core.types import StateDict
from fairflare.engine.norms import Norms, hypots, kind_of, norm_of

SMALL = 1 << 14
"""Entries below this size are looked at together."""
VARIANCE = "running_var"
"""How the name of a variance ends."""
ROUNDING = -1e-6
"""How far below zero a variance may end."""


@dataclass(frozen=True)
class Measured:
    """An accepted update, and kind -> size, see ``norms.norms_of``: both come of one look."""

    update: Mapping[str, Tensor]
    sizes: Norms


@dataclass(frozen=True)
class Group:
    """Entries that are looked at together: one large one, or the small ones of one kind and type.

    Attributes:
        kind: of ``norms.kind_of``.
        room: how large the update's norm may be there for its sum with the model to be finite for sure.
        variances: (N,) the model's values, where these are variances.
    """

    keys: tuple[str, ...]
    kind: str
    room: float
    variances: Tensor | None


@dataclass(frozen=True)
class Form:
    """What an update to a model must look like, worked out once for all sites that were sent it.

    Attributes:
        sizes: kind -> size of the model.
    """

    entries: StateDict
    dtypes: Mapping[str, torch.dtype]
    sizes: Norms
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, model: StateDict, trainable: frozenset[str]) -> Form:
        """The form of updates to ``model``."""
        entries = {key: value for key, value in model.items() if value.is_floating_point()}
        together: dict[tuple[str, torch.dtype, bool, str], list[str]] = {}
        for key, value in entries.items():
            variance = key.endswith(VARIANCE)
            alone = "" if value.numel() < SMALL or variance else key
            together.setdefault((kind_of(key, trainable), value.dtype, variance, alone), []).append(key)
        groups, norms = [], []
        for (kind, dtype, variance, _), keys in together.items():
            flat = _flat([entries[key] for key in keys])
            norms.append((kind, norm_of(flat)))
            room = torch.finfo(dtype).max / 2 - norms[-1][1]
            groups.append(Group(tuple(keys), kind, room, flat if variance and flat.numel() else None))
        return cls(entries, {key: value.dtype for key, value in entries.items()}, hypots(norms), tuple(groups))

    def look(self, update: Mapping[str, Any]) -> Measured | None:
        """The update with its sizes; None where an entry needs a closer look, whether or not it is good.

        Entries that lie in files stay there: those of one group at a time are read.

        Args:
            update: has the names of ``entries``.
        """
        held: dict[str, Tensor | Stored] = {}
        for key, like in self.entries.items():
            value = update[key]
            kind = type(value)
            if kind is Tensor:
                if value.layout is not torch.strided or value.device.type != "cpu":
                    return None
                value = value.detach() if value.requires_grad else value
            elif kind is not Stored:
                return None
            if value.shape != like.shape or value.dtype is not like.dtype:
                return None
            held[key] = value
        norms = []
        for group in self.groups:
            flat = _flat([_read(held[key]) for key in group.keys])
            norms.append((group.kind, norm_of(flat)))
            # A norm is no less than any entry: below this none of the sum with the model leaves the type's range.
            if not norms[-1][1] < group.room:
                return None
            if group.variances is not None and not float((group.variances + flat).min()) >= ROUNDING:
                return None
        return Measured(gathered(held, self.dtypes), hypots(norms))


def _read(value: Tensor | Stored) -> Tensor:
    return value.materialize() if isinstance(value, Stored) else value


def _flat(values: Sequence[Tensor]) -> Tensor:
    """(N,): all entries of ``values``, of one without a copy."""
    flat = [value.reshape(-1) for value in values]
    return flat[0] if len(flat) == 1 else torch.cat(flat)
