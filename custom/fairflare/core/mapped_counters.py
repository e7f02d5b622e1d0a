# SPDX-License-Identifier: Apache-2.0
"""Counters that lie in a file without a name and are changed there: memory holds the block that is looked at."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

ALIGNED = 64
"""Bytes between whose multiples an entry begins."""


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


class Filed(Mapping[str, "torch.Tensor"]):
    """Flat tensors of one type in a file: asking for one reads a copy of it.

    Attributes:
        sizes: key -> number of entries.
        dtype: of all entries.
    """

    def __init__(self, room: Room, sizes: Mapping[str, int], dtype: torch.dtype) -> None:
        """Zeros; raises OSError where the disk has no room for them.

        Args:
            room: where; several of these may lie in one.
            sizes: key -> number of entries.
            dtype: of all entries.
        """
        self.dtype, self._room = dtype, room
        self.sizes, self._places, self._size = _layout(tuple(sizes.items()), dtype.itemsize)
        self._begin = room.take(self._size)

    @classmethod
    def of(cls, room: Room, found: Mapping[str, torch.Tensor], sizes: Mapping[str, int], dtype: torch.dtype) -> Filed:
        """The entries of ``found`` in ``room``, as ``dtype``; those that it lacks are zero."""
        filed = cls(room, sizes, dtype)
        for key in sizes:
            if key in found:
                filed.write(key, slice(None), found[key].to(dtype).numpy())
        return filed

    def __getitem__(self, key: str) -> torch.Tensor:
        found = torch.empty(self.sizes[key], dtype=self.dtype)
        self._read(found.numpy(), self._places[key])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __deepcopy__(self, memo: Any) -> dict[str, torch.Tensor]:
        return dict(self)

    def read(self, key: str, block: slice, room: np.ndarray) -> np.ndarray:
        """(B,): the values at a block of an entry's positions, in ``room``, which is of their type."""
        start, stop, _ = block.indices(self.sizes[key])
        self._read(room[: stop - start], self._places[key] + start * self.dtype.itemsize)
        return room[: stop - start]

    def write(self, key: str, block: slice, values: np.ndarray) -> None:
        """Replace the values at a block of an entry's positions; raises OSError where the file does not take them."""
        start, _, _ = block.indices(self.sizes[key])
        data = np.ascontiguousarray(values)
        place = self._begin + self._places[key] + start * self.dtype.itemsize
        if os.pwrite(self._room.number, data.data, place) != data.nbytes:
            raise OSError(errno.ENOSPC, "the counters' file took only a part")

    def _read(self, room: np.ndarray, place: int) -> None:
        if (read := os.preadv(self._room.number, [room.data], self._begin + place)) != room.nbytes:
            raise OSError(errno.EIO, f"counters in a file: expected {room.nbytes} bytes, found {read}")


@lru_cache(maxsize=4)
def _layout(sizes: tuple[tuple[str, int], ...], width: int) -> tuple[Mapping[str, int], Mapping[str, int], int]:
    """Key -> entries, key -> where its bytes begin, and bytes in all: once for all sites, which may be hundreds."""
    places, end = {}, 0
    for key, size in sizes:
        places[key] = end
        end += -(-size * width // ALIGNED) * ALIGNED
    return MappingProxyType(dict(sizes)), MappingProxyType(places), max(end, ALIGNED)
