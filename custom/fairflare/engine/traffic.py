# SPDX-License-Identifier: Apache-2.0
"""What goes to the sites and comes back, in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fairflare.core.schema import Answer, Instruction, Transport
from fairflare.core.tensor_files import Stored

NUMBER = 8
"""Bytes of a number."""
ARRAYS = (torch.Tensor, np.ndarray, Stored)
DEEPEST = 4
"""Mappings inside each other that an answer's fields have at most."""


class Traffic:
    """A transport that counts what another one carries, without its framing and compression.

    Of an answer the tensors, the numbers and the sealed bytes are counted, whatever becomes of it at the gate.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._down: dict[str, int] = {}
        self._up: dict[str, int] = {}

    def sites(self) -> list[str]:
        return self._transport.sites()

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """As the transport does it; a preflight, which may be answered late or not at all, is not counted."""
        counted = {site for site, one in instructions.items() if one.task != "preflight"}
        known: dict[int, int] = {}  # most sites are sent the same objects
        for site in sorted(counted):
            for value in _values(instructions[site]):
                if id(value) not in known:
                    known[id(value)] = _bytes_of(value)
                self._down[site] = self._down.get(site, 0) + known[id(value)]
        for answer in self._transport.exchange(instructions):
            if answer.site in counted:
                self._up[answer.site] = self._up.get(answer.site, 0) + sum(map(_bytes_of, _values(answer)))
            yield answer

    def taken(self) -> dict[str, dict[str, int]]:
        """Site -> bytes "down" to it and "up" from it since the last call."""
        found = {site: {"down": self._down[site], "up": self._up.get(site, 0)} for site in sorted(self._down)}
        self._down, self._up = {}, {}
        return found


def _values(message: Instruction | Answer) -> list[Any]:
    """What a message's fields hold, which may be anything; without texts, which are not counted."""
    return [value for value in vars(message).values() if value is not None and type(value) is not str]


def _bytes_of(value: Any, depth: int = 0) -> int:
    """Bytes of tensors, numbers and bytes in ``value``, which may be anything; text is not counted."""
    try:
        kind = type(value)
        if kind in ARRAYS:
            return int(value.nbytes)
        if kind is dict and depth < DEEPEST:
            return sum([_bytes_of(item, depth + 1) for item in value.values()])
        if kind in (bool, int, float):
            return NUMBER
        return len(value) if kind is bytes else 0
    except Exception:  # an answer may hold anything, and the gate has yet to look at it
        return 0
