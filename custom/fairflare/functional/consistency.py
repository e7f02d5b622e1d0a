# SPDX-License-Identifier: Apache-2.0
"""How steadily each site has moved each parameter in one direction: a byte per site and parameter, two from 256 rounds.

Work goes in blocks that stay in cache. NumPy does it because its comparisons, unlike torch's on a CPU, use vector
instructions: deciding a block costs about as much as reading it. Counters lie where the updates lie: beside those that
are in files they are in a file too, and a block of them is read and written back.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from fairflare.core.tensor_files import Entries, InFile
from fairflare.core.types import Reply
from fairflare.functional.blocks import BLOCK

NARROWEST = 2**8 - 1
"""The most that a counter of one byte holds; from then on they have two."""
MOST_ROUNDS = 2**15 - 1
LARGE = 1 << 22
"""Bytes of a round's counters from which on they do not stay in memory beside updates that are in files."""


@dataclass(frozen=True)
class Consistency:
    """The counters of all sites, and with them this round's masks.

    Attributes:
        history: site -> uint8 or int16 (entries,), the rounds in which the update went the counted way, of all masked
            entries one after the other.
        sizes: key -> number of entries, in their order.
        rounds: site -> rounds counted before this one.
        tau: least share of rounds in an update's direction for it to be kept.
        reference: False: a non-negative update is counted, this round included, and kept from tau on (the paper).
            True: an update that is negative or zero is counted, this round not included, and kept above tau; whatever
            a site sends first is kept (the authors' code).
    """

    history: Mapping[str, torch.Tensor | Filed]
    sizes: Mapping[str, int]
    rounds: Mapping[str, int]
    tau: float
    reference: bool

    @classmethod
    def of(cls, replies: Sequence[Reply], state: Mapping[str, Any], tau: float, reference: bool) -> Consistency:
        """The counters of ``state``, zeros for sites that are here for the first time."""
        keys = [key for key in replies[0].update if reference or key in replies[0].trainable]
        sizes = {key: replies[0].update[key].numel() for key in keys}
        history, rounds = dict(state.get("history", {})), dict(state.get("rounds", {}))
        in_files = any(isinstance(reply.update, Entries) for reply in replies)
        # The file for new counters, where they do not stay in memory.
        places = [Room()] if in_files and sum(sizes.values()) * len(replies) >= LARGE else []
        for reply in replies:
            if rounds.setdefault(reply.site, 0) >= MOST_ROUNDS:
                raise OverflowError(f"site {reply.site}: {MOST_ROUNDS} rounds, more than the counters hold")
            history[reply.site] = _counters(history.get(reply.site), sizes, rounds[reply.site] + 1, places)
        return cls(history, sizes, rounds, tau, reference)

    def after(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """What the next round needs."""
        here = {reply.site for reply in replies}
        rounds = {site: n + (site in here) for site, n in self.rounds.items()}
        return {"history": dict(self.history), "sizes": dict(self.sizes), "rounds": rounds}

    def masks(self, key: str) -> bool:
        """Whether this entry is masked at all: the paper leaves buffers alone."""
        return key in self.sizes

    @cached_property
    def _starts(self) -> dict[str, int]:
        return dict(zip(self.sizes, accumulate(self.sizes.values(), initial=0)))

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        return {site: one.numpy() for site, one in self.history.items() if not isinstance(one, Filed)}

    @cached_property
    def _room(self) -> np.ndarray:
        """Where a block of counters from a file is looked at."""
        return np.empty(BLOCK * torch.int16.itemsize, np.uint8)

    def _counter(self, site: str, start: int, size: int) -> np.ndarray:
        """(B,): a site's counters at ``size`` positions from ``start`` on."""
        found = self.history[site]
        if isinstance(found, Filed):
            room = self._room if found.dtype is torch.uint8 else self._room.view(np.int16)
            return found.read(start, room[:size])
        return self._arrays[site][start : start + size]

    def _count(self, site: str, start: int, counter: np.ndarray, counted: np.ndarray) -> None:
        """Add a round to ``counter``, and put it where it came from."""
        np.add(counter, counted, out=counter, casting="unsafe")
        found = self.history[site]
        if isinstance(found, Filed):
            found.write(start, counter)

    def keep(self, site: str, key: str, block: slice, update: np.ndarray, *, count: bool) -> np.ndarray:
        """bool (B,): where ``update`` is consistent.

        Args:
            update: the update at the positions ``block`` of the entry ``key``.
            count: adds this round to the counters; the paper's form counts before it decides, the authors' after.
        """
        start = self._starts[key] + block.start
        counter = self._counter(site, start, len(update))
        counted = update <= 0 if self.reference else update >= 0
        if count and not self.reference:
            self._count(site, start, counter, counted)
        seen = self.rounds[site] + (0 if self.reference else 1)
        least = least_count(seen, self.tau, strict=self.reference) if seen else 0
        # l >= tau where the update goes the counted way, 1 - l >= tau where it does not.
        kept, steady = counter <= seen - least, counter >= least
        steady ^= kept
        steady &= counted
        kept ^= steady
        if count and self.reference:
            self._count(site, start, counter, counted)
        return kept


def _counters(
    found: torch.Tensor | Filed | Mapping[str, torch.Tensor] | None,
    sizes: Mapping[str, int],
    most: int,
    places: list[Room],
) -> torch.Tensor | Filed:
    """The counters, of the type that ``most`` fits; zeros where there are none."""
    dtype = torch.uint8 if most <= NARROWEST else torch.int16
    if isinstance(found, Mapping):  # a checkpoint of an earlier version has them entry by entry
        found = torch.cat([found[key].reshape(-1) for key in sizes])
    if isinstance(found, Filed):
        if found.dtype is dtype:
            return found
        found = found.tensor()
    if places:
        try:
            return Filed(places[0], sum(sizes.values()), dtype) if found is None else Filed.of(places[0], found, dtype)
        except OSError:  # a full disk leaves them in memory
            places.clear()
    return torch.zeros(sum(sizes.values()), dtype=dtype) if found is None else found.to(dtype)


@cache
def least_count(seen: int, tau: float, *, strict: bool) -> int:
    """The smallest count c with c / seen >= tau (> tau when ``strict``)."""
    least = max(math.floor(tau * seen) - 1, 0)
    while least / seen < tau or (strict and least / seen <= tau):
        least += 1
    return least


class Room:
    """A file that nobody else can open, gone with the last object that lies in it, after a kill too.

    It is made when something is first put there.
    """

    @cached_property
    def number(self) -> int:
        with tempfile.TemporaryFile(prefix="fairflare_counters_") as file:
            number = os.dup(file.fileno())
        weakref.finalize(self, os.close, number)
        return number

    def take(self, size: int) -> int:
        """Where ``size`` bytes of zeros begin, on a page; raises OSError where the disk has no room for them."""
        begin = -(-os.fstat(self.number).st_size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.number, begin, size)
        else:
            os.ftruncate(self.number, begin + size)
        return begin


class Filed(InFile):
    """A flat tensor in a file that is changed in place."""

    def __init__(self, room: Room, size: int, dtype: torch.dtype) -> None:
        """Zeros in ``room``, where several may lie; raises OSError where the disk has no room for them."""
        self.size, self.dtype, self._room = size, dtype, room
        self._begin = room.take(max(size, 1) * dtype.itemsize)

    @classmethod
    def of(cls, room: Room, found: torch.Tensor, dtype: torch.dtype) -> Filed:
        """The entries of ``found`` in ``room``, as ``dtype``; raises OSError where they do not fit."""
        filed = cls(room, len(found), dtype)
        filed.write(0, found.to(dtype).numpy())
        return filed

    def tensor(self) -> torch.Tensor:
        found = torch.empty(self.size, dtype=self.dtype)
        self.read(0, found.numpy())
        return found

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.tensor()

    def read(self, start: int, room: np.ndarray) -> np.ndarray:
        """(B,): the B values from ``start`` on, in ``room``, which is of their type."""
        if os.preadv(self._room.number, [room.data], self._begin + start * self.dtype.itemsize) != room.nbytes:
            raise OSError(errno.EIO, "the counters' file is shorter than it was")
        return room

    def write(self, start: int, values: np.ndarray) -> None:
        """Replace the values from ``start`` on; raises OSError where the file does not take them."""
        data = np.ascontiguousarray(values)
        if os.pwrite(self._room.number, data.data, self._begin + start * self.dtype.itemsize) != data.nbytes:
            raise OSError(errno.ENOSPC, "the counters' file took only a part")
