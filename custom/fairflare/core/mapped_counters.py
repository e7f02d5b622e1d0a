# SPDX-License-Identifier: Apache-2.0
"""Counters that lie in a file without a name and are changed there: memory holds the block that is looked at."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fairflare.core.lazy_tensors import InFile


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
