# SPDX-License-Identifier: Apache-2.0
"""How steadily each site has moved each parameter in one direction: a byte per site and parameter, two from 256 rounds.

Work goes in blocks that stay in cache. NumPy does it because its comparisons, unlike torch's on a CPU, use vector
instructions: deciding a block costs about as much as reading it. Counters lie where the updates lie: beside those that
are in files they are mapped from files too, whose pages the system takes back when it needs memory.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from fairflare.core.tensor_files import Entries
from fairflare.core.types import Reply

NARROWEST = 2**8 - 1
"""The most that a counter of one byte holds; from then on they have two."""
MOST_ROUNDS = 2**15 - 1
COUNTERS = "fairflare_counters_"
"""How the name of a file of counters begins while it has one."""
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

    history: Mapping[str, torch.Tensor]
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
        in_files &= sum(sizes.values()) * len(replies) >= LARGE
        for reply in replies:
            if rounds.setdefault(reply.site, 0) >= MOST_ROUNDS:
                raise OverflowError(f"site {reply.site}: {MOST_ROUNDS} rounds, more than the counters hold")
            history[reply.site] = _counters(history.get(reply.site), sizes, rounds[reply.site] + 1, in_files)
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
        return {site: one.numpy() for site, one in self.history.items()}

    def keep(self, site: str, key: str, block: slice, update: np.ndarray, *, count: bool) -> np.ndarray:
        """bool (B,): where ``update`` is consistent.

        Args:
            update: the update at the positions ``block`` of the entry ``key``.
            count: adds this round to the counters; the paper's form counts before it decides, the authors' after.
        """
        start = self._starts[key] + block.start
        counter = self._arrays[site][start : start + len(update)]
        counted = update <= 0 if self.reference else update >= 0
        if count and not self.reference:
            np.add(counter, counted, out=counter, casting="unsafe")
        seen = self.rounds[site] + (0 if self.reference else 1)
        least = least_count(seen, self.tau, strict=self.reference) if seen else 0
        # l >= tau where the update goes the counted way, 1 - l >= tau where it does not.
        kept, steady = counter <= seen - least, counter >= least
        steady ^= kept
        steady &= counted
        kept ^= steady
        if count and self.reference:
            np.add(counter, counted, out=counter, casting="unsafe")
        return kept


def _counters(
    found: torch.Tensor | Mapping[str, torch.Tensor] | None, sizes: Mapping[str, int], most: int, in_file: bool
) -> torch.Tensor:
    """The counters, of the type that ``most`` fits; zeros where there are none. New ones lie in a file where asked."""
    dtype = torch.uint8 if most <= NARROWEST else torch.int16
    if isinstance(found, Mapping):  # a checkpoint of an earlier version has them entry by entry
        found = torch.cat([found[key].reshape(-1) for key in sizes])
    if found is not None and found.dtype is dtype and (found.untyped_storage().filename or not in_file):
        return found
    counters = _zeros(sum(sizes.values()), dtype, in_file)
    return counters if found is None else counters.copy_(found)


def _zeros(size: int, dtype: torch.dtype, in_file: bool) -> torch.Tensor:
    """(size,): in memory, or mapped from a file without a name, which goes with the tensor, after a kill too.

    A full disk, and a system that reserves no room on it, leave them in memory.
    """
    if in_file and size:
        with contextlib.suppress(OSError, AttributeError), tempfile.NamedTemporaryFile(prefix=COUNTERS) as file:
            os.posix_fallocate(file.fileno(), 0, size * dtype.itemsize)
            return torch.from_file(file.name, shared=True, size=size, dtype=dtype)
    return torch.zeros(size, dtype=dtype)


@cache
def least_count(seen: int, tau: float, *, strict: bool) -> int:
    """The smallest count c with c / seen >= tau (> tau when ``strict``)."""
    least = max(math.floor(tau * seen) - 1, 0)
    while least / seen < tau or (strict and least / seen <= tau):
        least += 1
    return least
