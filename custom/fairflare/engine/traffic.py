# SPDX-License-Identifier: Apache-2.0
"""What goes to the sites and comes back: its bytes are counted, and what would not fit into memory waits in a file."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import psutil
import torch
from torch import Tensor

from fairflare.core.schema import Answer, Instruction, Transport, answer_fields, instruction_fields
from fairflare.core.tensor_files import Stored

NUMBER = 8
"""Bytes of a number."""
ARRAYS = (torch.Tensor, np.ndarray, Stored)
DEEPEST = 4
"""Mappings inside each other that an answer's fields have at most."""
SHARE = 0.25
"""Of the memory that is free when an exchange begins: so much of it updates may take."""
WIDEST = 16
"""Bytes: twice an entry of the widest type, or four of the usual one; tensors may come beside the update."""
LARGE = ("update", "tensors")
"""The fields of an answer that hold tensors."""


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
            self._down[site] = self._down.get(site, 0) + _size(instructions[site], instruction_fields(), known)
        for answer in self._transport.exchange(instructions):
            if answer.site in counted:
                self._up[answer.site] = self._up.get(answer.site, 0) + _size(answer, answer_fields(), {})
            yield answer

    def taken(self) -> dict[str, dict[str, int]]:
        """Site -> bytes "down" to it and "up" from it since the last call."""
        found = {site: {"down": self._down[site], "up": self._up.get(site, 0)} for site in sorted(self._down)}
        self._down, self._up = {}, {}
        return found


def _size(message: Instruction | Answer, fields: Iterable[str], known: dict[int, int]) -> int:
    """Bytes of a message's fields; ``known``: those of objects that live on, by identity."""
    total = 0
    for name in fields:
        value = getattr(message, name)
        if id(value) not in known:
            known[id(value)] = _bytes_of(value)
        total += known[id(value)]
    return total


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


def a_share_of_memory() -> int:
    return int(SHARE * psutil.virtual_memory().available)


class Spooled:
    """A transport that puts what comes back into a file as soon as it would take more memory than there is room.

    The gate needs the norms of all updates before it decides. The file has no name: nobody else can open it, and it is
    gone with the last entry that lies there, after a kill too.
    """

    def __init__(self, transport: Transport, room: Callable[[], int] = a_share_of_memory) -> None:
        self._transport, self._room = transport, room
        self._entries = 1  # of the largest model so far

    def sites(self) -> list[str]:
        return self._transport.sites()

    def exchange(self, instructions: Mapping[str, Instruction]) -> Iterator[Answer]:
        """As the transport does it; what does not fit is in a file when the next site is asked."""
        room, taken, file = self._room(), 0, None
        models = {id(one.model): one.model for one in instructions.values()}.values()
        self._entries = max(self._entries, *(sum(value.numel() for value in model.values()) for model in models))
        if WIDEST * self._entries * len(instructions) < room:
            yield from self._transport.exchange(instructions)
            return
        for answer in self._transport.exchange(instructions):
            size = sum(value.nbytes for name in LARGE for value in _plain(getattr(answer, name)).values())
            if size and taken + size > room:
                file = file or _opened()
                answer = _written(answer, file)
            else:
                taken += size
            yield answer


def _opened() -> BinaryIO:
    return tempfile.TemporaryFile(prefix="fairflare_updates_")


def _plain(content: Any) -> dict[str, Tensor]:
    """The entries of a field that are plain tensors in memory; an answer may hold anything."""
    found = {k: v for k, v in content.items() if type(v) is Tensor} if type(content) is dict else {}
    dense = {k: v for k, v in found.items() if v.layout is torch.strided and v.device.type == "cpu"}
    return {key: value for key, value in dense.items() if value.is_contiguous()}


def _written(answer: Answer, file: BinaryIO) -> Answer:
    """The answer with the entries of its update and its tensors in ``file``; on a full disk as it was."""
    try:
        found = {name: _stored(_plain(getattr(answer, name)), file) for name in LARGE}
        file.flush()
    except OSError:
        return answer
    whole: dict[str, Any] = {name: {**getattr(answer, name), **entries} for name, entries in found.items() if entries}
    return dataclasses.replace(answer, **whole)


def _stored(entries: Mapping[str, Tensor], file: BinaryIO) -> dict[str, Stored]:
    """The entries at the end of ``file``."""
    stored: dict[str, Stored] = {}
    for key, value in entries.items():
        start = -(-file.seek(0, 2) // 64) * 64  # where any type may begin
        file.seek(start)
        file.write(value.detach().reshape(-1).view(torch.uint8).numpy().data)
        stored[key] = Stored(file, start, value.dtype, tuple(value.shape))
    return stored
