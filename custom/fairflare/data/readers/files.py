# SPDX-License-Identifier: Apache-2.0
"""Examples that are read when a batch asks for them, ahead of it, and kept in memory as far as there is room."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fairflare.core.errors import DataError
from fairflare.data.readers.datalist import Frame

AHEAD = 2
"""Batches that are read while one is computed on."""
MOST_KEPT = 1.5e9
"""Bytes of images that a process keeps, unless its site's configuration says otherwise."""
MOST_FILES = 64
"""Files whose headers are read, evenly spaced ones."""
Example = tuple[Tensor, Tensor]


class Room:
    """Bytes of main memory that the splits of a process may keep together; what is over is read again when needed.

    With ``folder`` a split that memory has no room for lies on that folder's disk instead, in a file without a name: it
    goes with the process, and nobody else can open it.
    """

    def __init__(self, size: float, folder: str = "") -> None:
        self._left, self._folder = size, folder

    def take(self, n: int, size: int) -> int:
        """Of how many of ``n`` examples with ``size`` bytes each there is room for, which is taken then."""
        found = min(n, int(self._left // max(size, 1)))
        self._left -= found * size
        return found

    def on_disk(self, like: Example, n: int) -> Example | None:
        """Input and target of ``n`` examples, all zeros; None without a folder, and where the disk has no room."""
        found = []
        for part in like if self._folder else ():
            with tempfile.TemporaryFile(dir=self._folder) as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, n * part.nbytes)  # a page without a block kills
                except OSError:
                    return None
                found.append(torch.from_numpy(np.memmap(file, part.numpy().dtype, "r+", shape=(n, *part.shape))))
        return (found[0], found[1]) if found else None

    def give(self, taken: Sequence[int]) -> None:
        """Take back what a split held that nobody needs any more."""
        self._left += sum(taken)


_KEEPING = Lock()
HERE = Room(MOST_KEPT)
"""For all sites of a process whose configurations name no room of their own."""


class FileSplit:
    """One split whose examples are read by a function; the counterpart of ``tensors.Split``.

    Reading must not depend on chance, so that neither the number of threads nor the cache changes a result. Threads,
    not processes: FLARE's clients run gRPC, which does not survive a fork, and image decoders release Python's lock.
    MONAI's ThreadDataLoader ends an epoch early, without a word, when a file cannot be read; here the error is raised.

    Args:
        items: what ``read`` takes, in stored order.
        read: item -> input and target, e.g. uint8 (C, H, W) and int64 ().
        labels: int64 (N,), or empty where targets are masks.
        attributes: name -> N values of a sensitive attribute.
        cache_rate: share of the examples that stay in memory once read, in [0, 1].
        num_workers: threads that read ahead; 0 reads when asked.
        room: for what stays in memory; the process's by default.
        patients: as of ``tensors.Split``.
    """

    def __init__(
        self,
        items: Sequence[Any],
        read: Callable[[Any], Example],
        labels: Tensor,
        attributes: Mapping[str, Sequence[str]],
        cache_rate: float = 1.0,
        num_workers: int = 0,
        room: Room | None = None,
        patients: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.items, self.reader, self.labels, self.attributes = items, read, labels, attributes
        self.num_workers, self.patients = num_workers, patients
        self._share, self._room = round(cache_rate * len(items)), HERE if room is None else room
        self.seen: dict[int, tuple[bytes, float]] = {}
        """Row -> of an image that ``errors`` has read its digest, b"" where all pixels are alike; the largest share of
        it that a structure of its mask fills, nan without a mask."""
        self._kept: dict[int, tuple[int, int]] = {}
        """Row -> the key of its block, and its place there."""
        self._blocks: dict[int, Example] = {}
        """Inputs and targets that are kept, each in one piece: thousands of pieces, with what is freed between them,
        took several times the memory. Key: of images that are one channel, repeated, how often; else 0."""
        self._used = Counter[int]()
        self._taken: list[int] = []
        self._mapped = False
        weakref.finalize(self, self._room.give, self._taken)

    def __len__(self) -> int:
        return len(self.items)

    def example(self, row: int) -> Example:
        """Example number ``row``; raises DataError where it cannot be read."""
        if (kept := self._kept.get(row)) is not None:
            (times, place), (inputs, targets) = kept, self._blocks[kept[0]]
            one = inputs[place]
            return (one.expand(times, *one.shape[1:]) if times else one), targets[place]
        found = self.reader(self.items[row])
        if row < self._share:
            with _KEEPING:
                self._keep(row, found)
        return found

    def _keep(self, row: int, found: Example) -> None:
        image = found[0]
        grey = image.dtype == torch.uint8 and image.ndim > 2 and len(image) > 1 and bool((image[1:] == image[:1]).all())
        times = len(image) if grey else 0
        found = (image[:1] if grey else image, found[1])
        if times not in self._blocks:
            size, wanted = sum(part.nbytes for part in found), self._share - len(self._kept)
            n = self._room.take(wanted, size)
            if n < wanted and (mapped := self._room.on_disk(found, wanted)) is not None:
                self._room.give([n * size])
                self._blocks[times], self._mapped = mapped, True
            else:
                self._taken.append(n * size)
                inputs, targets = (part.new_empty((n, *part.shape)) for part in found)
                self._blocks[times] = inputs, targets
        blocks, place = self._blocks[times], self._used[times]
        same = all(part.shape == block.shape[1:] for part, block in zip(found, blocks, strict=True))
        if row not in self._kept and place < len(blocks[0]) and same:
            for part, block in zip(found, blocks, strict=True):
                block[place] = part
            self._kept[row], self._used[times] = (times, place), place + 1

    def errors(self, tell: Callable[[int], None] = lambda done: None) -> list[DataError]:
        """Read every example once and return what is wrong with those that cannot be read; ``tell`` how many are."""
        found = []
        with ThreadPoolExecutor(max(1, self.num_workers)) as pool:
            for done, error in enumerate(pool.map(self._error, range(len(self))), start=1):
                tell(done)
                found += [error] if error is not None else []
        return found

    @property
    def in_memory(self) -> bool:
        """Whether all examples have been read and are kept there."""
        return self._all_kept and not self._mapped

    @property
    def _all_kept(self) -> bool:
        return 0 < len(self._kept) == len(self)

    def read(self, batches: Sequence[Tensor]) -> Iterator[Example]:
        """Inputs (n, ...) and targets (n, ...) of each batch of row numbers, in order."""
        if self.num_workers == 0 or self._all_kept:
            yield from (stacked([self.example(row) for row in rows.tolist()]) for rows in batches)
            return
        with ThreadPoolExecutor(self.num_workers) as pool:
            waiting: deque[list[Future[Example]]] = deque()
            try:
                for rows in batches:
                    waiting.append([pool.submit(self.example, row) for row in rows.tolist()])
                    if len(waiting) > AHEAD:
                        yield stacked([one.result() for one in waiting.popleft()])
                while waiting:
                    yield stacked([one.result() for one in waiting.popleft()])
            finally:  # an aborted round does not wait for what nobody will see
                pool.shutdown(wait=True, cancel_futures=True)

    def described(self, rows: Tensor) -> dict[str, Any]:
        """Smallest and largest edge, spacing and the numbers of channels of evenly spaced files among ``rows``."""
        places = torch.linspace(0, len(rows) - 1, min(len(rows), MOST_FILES)).round().long()
        images = [getattr(self.items[row], "image", None) for row in rows[places].tolist()]
        look = getattr(self.reader, "geometry", lambda path: None)  # what reads images comes with the task
        found = [one for path in images if isinstance(path, (Path, Frame)) and (one := look(path)) is not None]
        if not found:
            return {}
        sizes: dict[str, Any] = {
            "height": _range([one.height for one in found]),
            "width": _range([one.width for one in found]),
            "channels": sorted({one.channels for one in found}),
        }
        spacings = [one.spacing for one in found if one.spacing is not None]
        return sizes | ({"spacing": [_range(edge) for edge in zip(*spacings, strict=True)]} if spacings else {})

    def _error(self, row: int) -> DataError | None:
        try:
            image, target = self.example(row)
        except DataError as error:
            return error
        varies = bool((image != image.flatten()[0]).any())
        share = float(target.float().flatten(1).mean(1).max()) if target.ndim > 1 else math.nan
        self.seen[row] = (hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest() if varies else b"", share)
        return None


def _range(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)]


def stacked(examples: Sequence[Example]) -> Example:
    """Inputs and targets in one piece each."""
    inputs, targets = zip(*examples)
    if any(one.shape != inputs[0].shape for one in inputs):  # bags, filled up with instances of zeros
        return torch.nn.utils.rnn.pad_sequence(list(inputs), batch_first=True), torch.stack(targets)
    return torch.stack(inputs), torch.stack(targets)
