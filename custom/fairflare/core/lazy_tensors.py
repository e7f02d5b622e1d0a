# SPDX-License-Identifier: Apache-2.0
"""Tensors that lie in a file of this process's own until somebody asks for them, and updates that hold such ones."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

MAPPED = 1 << 18
"""Bytes from which on mapping a file costs less than reading it."""


class InFile:
    """A flat tensor in a file that is read when asked for.

    Attributes:
        size: its number of entries.
        dtype: of all entries.
    """

    size: int
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        """(size,): a copy in memory."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Stored:
    """A dense tensor as plain bytes in a file, which nothing else writes to.

    Attributes:
        file: its path, or the open file where it has no name.
        offset: bytes before the tensor's first one.
        dtype: of its entries, in this machine's byte order.
        shape: its shape.
        owner: what deletes the file once nobody holds it.
    """

    file: Path | BinaryIO
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    owner: Any = None

    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel() * self.dtype.itemsize

    def materialize(self) -> torch.Tensor:
        """The tensor; a large one mapped: its pages are read when they are looked at, and given back with the tensor.

        Raises:
            OSError, ValueError: the file is gone, or shorter than the tensor.
        """
        if self.nbytes < MAPPED:
            return self.part(slice(None)).view(self.shape)
        mapped = np.memmap(self.file, np.uint8, "c", self.offset, (self.nbytes,))
        return torch.from_numpy(mapped).view(self.dtype).view(self.shape)

    def part(self, block: slice) -> torch.Tensor:
        """(B,): the entries of a block of positions, read from the file.

        Raises:
            OSError, ValueError: as ``materialize``.
        """
        start, stop, _ = block.indices(self.numel())
        size = max(stop - start, 0) * self.dtype.itemsize
        found = bytearray(size)
        place = self.offset + start * self.dtype.itemsize
        if isinstance(self.file, Path):
            with self.file.open("rb", buffering=0) as file:
                read = os.preadv(file.fileno(), [found], place)
        else:
            read = os.preadv(self.file.fileno(), [found], place)
        if read != size:
            raise ValueError(f"a tensor in a file: expected {size} bytes, found {read}")
        return torch.frombuffer(found, dtype=self.dtype) if size else torch.empty(0, dtype=self.dtype)


class Entries(Mapping[str, "torch.Tensor"]):
    """An update some of whose entries lie in files: each is read when it is asked for, and kept by nobody here."""

    def __init__(self, held: Mapping[str, torch.Tensor | Stored], dtypes: Mapping[str, torch.dtype]) -> None:
        """
        Args:
            held: key -> entry, wherever it lies; not copied: hundreds of sites have hundreds of entries each.
            dtypes: key -> the type that it is given.
        """
        self._held, self._dtypes = held, dtypes

    def __getitem__(self, key: str) -> torch.Tensor:
        held = self._held[key]
        return (held.materialize() if isinstance(held, Stored) else held).to(self._dtypes[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def part(self, key: str, block: slice) -> torch.Tensor:
        """(B,): the entry's values at a block of its positions."""
        held = self._held[key]
        return (held.part(block) if isinstance(held, Stored) else held.reshape(-1)[block]).to(self._dtypes[key])

    @property
    def held(self) -> dict[str, torch.Tensor | Stored]:
        """Key -> entry, wherever it lies."""
        return dict(self._held)


def held(update: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | Stored]:
    """The entries of an update where they lie: none is read."""
    return update.held if isinstance(update, Entries) else dict(update)


def gathered(
    held: Mapping[str, torch.Tensor | Stored], dtypes: Mapping[str, torch.dtype]
) -> Mapping[str, torch.Tensor]:
    """The entries that ``dtypes`` names, in its order: a plain dictionary unless one lies in a file.

    Args:
        held: key -> entry, one in memory of its type already.
        dtypes: key -> the type that the entry has where it is used.
    """
    found: dict[str, Any] = {key: held[key] for key in dtypes}
    return Entries(found, dtypes) if Stored in set(map(type, found.values())) else found
