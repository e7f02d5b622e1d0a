# SPDX-License-Identifier: Apache-2.0
"""Pairwise-masked sums: two sites share a mask that one adds and the other subtracts.

The masks cancel in the sum and hide every summand (Bonawitz et al., CCS 2017, https://doi.org/10.1145/3133956.3133982,
without their recovery of the masks of lost sites: here the rest is asked again). For numbers all pairs share masks, for
updates those that a ``MaskGraph`` makes neighbours.

Numbers are summed as integers modulo 2^2176, in units of 2^-1074: every finite double is such an integer, so sums are
exact. Updates are summed as ``Scale`` says. Neither depends on the order of sites or on the masks.

Entries of updates become whole numbers modulo 2^64 or 2^32. With 64 bits every entry counts in steps of 2^-40, a
hundredth of float32's own rounding at 1e-5. With 32 bits, half as much to mask and to send, parameters count in steps
that follow from the received model, which all sites of a sum have alike: 2^-24 where a tensor's largest entry is at
most 1, else as much coarser as the next power of two above it. Statistics keep 64 bits: their size says nothing of how
they change. Rounding is to the nearest step, ties to even. A sum over K sites is off by at most K / 2 steps, and by
sqrt(K / 12) in root mean square where the entries' remainders are independent.

At the end: the schemes for sums of numbers by name, and what each needs to be handed.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairflare.core.types import StateDict
from fairflare.privacy import sum_protocol as protocol
from fairflare.privacy.identity import Credentials
from fairflare.privacy.schemes import HE, LEAST, NONE, SERVER_CONTEXT, SITE_CONTEXT, check_scheme, module_of
from fairflare.privacy.statements import Sealed
from fairflare.privacy.sum_keys import BLOCK, TAG, PairwiseKeys, Stream, new_buffer

CIPHERTEXT = 2**19
"""Bytes of a ciphertext at most; a real one has about 235,000."""
STEP = 2.0**-40
LARGEST = 2.0**16
"""Of the entries of a sum with 64 bits; masks that do not cancel leave entries up to 2^23."""
RANGE = 2.0**28
"""Steps of the largest entry of a sum with 32 bits; masks that do not cancel leave up to 2^31."""
TIMES = 16.0
"""That entry, beside the power of two above the model's largest one."""


@dataclass(frozen=True)
class Scale:
    """How one tensor's entries are written.

    Attributes:
        bits: 64 or 32.
        step: what the whole number 1 stands for, a power of two.
        reach: the largest entry of a sum.
    """

    bits: int = 64
    step: float = STEP
    reach: float = LARGEST

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if self.bits == 64 else torch.int32

    @property
    def unsigned(self) -> np.dtype[Any]:
        """Of masks, whose arithmetic wraps around."""
        return np.dtype(f"<u{self.bits // 8}")

    def most(self, sites: int, weight: float) -> float:
        """The largest entry that a site may add, so that a sum over ``sites`` whose weights add up to 1 stays in reach.

        With 32 bits half of the reach is shared out by weights, so that D_k may be half of it large at any site, and
        half evenly.
        """
        return self.reach / sites if self.bits == 64 else self.reach * (weight + 1 / sites) / 2


WIDE = Scale()


@dataclass(frozen=True)
class Ring:
    """The scales of a run; ``bits``: 64, or 32 for the parameters."""

    bits: int = 64
    parameters: frozenset[str] = frozenset()

    def scales(self, model: Mapping[str, Any]) -> dict[str, Scale]:
        """Entry -> its scale, for the floating-point entries of the received model, tensors or arrays."""
        found = {key: torch.as_tensor(value) for key, value in model.items()}
        return {key: self._scale(key, value) for key, value in found.items() if value.is_floating_point()}

    def _scale(self, key: str, value: torch.Tensor) -> Scale:
        if self.bits == 64 or key not in self.parameters or not value.numel():
            return WIDE
        low, high = (float(extreme) for extreme in torch.aminmax(value.detach()))
        largest = max(-low, high)
        if not math.isfinite(largest):
            return WIDE
        above = 2.0 ** max(0, math.ceil(math.log2(max(largest, 1.0))))
        return Scale(32, TIMES * above / RANGE, TIMES * above)


UNIT = 1074
BITS = 2176
SIZE = BITS // 8


class MaskedSums:
    """A site's half for numbers."""

    def __init__(self, keys: PairwiseKeys) -> None:
        self._keys = keys
        self._sent: tuple[protocol.SumOrder, bytes] | None = None

    @property
    def site(self) -> str:
        return self._keys.site

    def seal(self, values: Sequence[float], order: protocol.SumOrder) -> Sealed:
        """{"sum": 272 bytes per value, and 16 per other site of the roster by which that one knows whose they are}.

        A value is sent plus the masks that are shared with every other site.
        """
        totals = [_whole(value) for value in values]
        for sign, stream in self._keys.streams(order, "numbers"):
            totals = [total + sign * int.from_bytes(stream.read(SIZE), "big") for total in totals]
        message = b"".join((total % 2**BITS).to_bytes(SIZE, "big") for total in totals)
        tags = [self._keys.tag(other, order, self._keys.site, message) for other in self._others(order.roster)]
        self._sent = order, message + b"".join(tags)
        return {"sum": self._sent[1]}

    def open(self, total: Any, terms: int) -> list[float]:
        """The sums of {site: its sealed numbers}, which each site adds up anew.

        Each checks that all are as their sites sent them for this sum: the server can neither make one up nor leave
        one out, and what a site makes of the sums is what it would have made of the true numbers.
        """
        if self._sent is None:
            raise protocol.SumRefused("no sum was asked for")
        order, message = self._sent
        if not isinstance(total, Mapping) or set(total) != set(order.roster) or total[self._keys.site] != message:
            raise protocol.SumRefused("not the sums that were asked for")
        if not all(self._is_from(site, total[site], order, terms) for site in self._others(order.roster)):
            raise protocol.SumRefused("not the sums that were asked for")
        return combine(list(total.values()))

    def _others(self, roster: Sequence[str]) -> list[str]:
        return [site for site in roster if site != self._keys.site]

    def _is_from(self, author: str, message: Any, order: protocol.SumOrder, terms: int) -> bool:
        end = terms * SIZE
        if not isinstance(message, bytes) or len(message) != end + TAG * (len(order.roster) - 1):
            return False
        at = end + TAG * [site for site in order.roster if site != author].index(self._keys.site)
        return hmac.compare_digest(message[at : at + TAG], self._keys.tag(author, order, author, message[:end]))


def passed_on(sealed: Mapping[str, bytes]) -> dict[str, bytes]:
    """What the server tells the sites of their numbers: everyone's sealed ones, which say no more than their sums.

    SumRefused where they do not cancel.
    """
    combine(list(sealed.values()))
    return dict(sealed)


def combine(sealed: Sequence[bytes]) -> list[float]:
    """The sums of the values that are sealed in the messages of all sites of a sum, correctly rounded.

    SumRefused where they do not cancel: a site added something else.
    """
    tags = TAG * (len(sealed) - 1)
    rows = [[int.from_bytes(m[i : i + SIZE], "big") for i in range(0, len(m) - tags, SIZE)] for m in sealed]
    return [_number(sum(column) % 2**BITS) for column in zip(*rows, strict=True)]


def mask_update(
    keys: PairwiseKeys,
    update: Mapping[str, Any],
    order: protocol.SumOrder,
    scales: Mapping[str, Scale] | None = None,
    weight: float = 0.0,
    self_mask: Stream | None = None,
) -> StateDict:
    """``update`` (floating-point, tensors or arrays) as whole numbers of the same shapes that say nothing alone.

    Works block by block: beside the result nothing larger than ``BLOCK`` is held.

    Args:
        update: p_k D_k.
        scales: how entries are written, see ``Ring.scales``; by default all with 64 bits.
        weight: p_k.
        self_mask: the site's, see ``sum_keys``.

    Raises:
        SumRefused: an entry is not finite or so large that a sum could overflow.
    """
    streams = list(keys.streams(order, "update", keys.neighbours(order)))
    streams += [] if self_mask is None else [(1, self_mask)]
    masked = {}
    for key in sorted(update):
        scale = WIDE if scales is None else scales[key]
        most = scale.most(len(order.roster), weight)
        masked[key] = _masked(torch.as_tensor(update[key]), scale, most, streams)
    return {key: masked[key] for key in update}


def _masked(entries: Tensor, scale: Scale, most: float, streams: Sequence[tuple[int, Stream]]) -> Tensor:
    flat = entries.detach().cpu().reshape(-1)
    total, buffer = torch.empty(len(flat), dtype=scale.dtype), new_buffer()
    whole, length = total.numpy(), 8 * BLOCK // scale.bits
    for start in range(0, len(flat), length):
        block = whole[start : start + length]
        block[:] = _steps(flat[start : start + length], scale.step, most)
        add_masks(block.view(scale.unsigned), streams, buffer)
    return total.reshape(entries.shape)


def add_masks(block: np.ndarray, streams: Sequence[tuple[int, Stream]], buffer: bytearray) -> None:
    """Adds the next entries of every stream to ``block`` or takes them off it, in place and with wrap-around."""
    mask = np.frombuffer(buffer, block.dtype, count=len(block))
    for sign, stream in streams:
        stream.read_into(buffer, block.nbytes)
        (np.add if sign > 0 else np.subtract)(block, mask, out=block)


def _steps(entries: Tensor, step: float, most: float) -> np.ndarray:
    wide = entries.double()
    if not bool((wide.abs() <= most).all()):  # also where it is NaN
        raise protocol.SumRefused("an update whose entries are not finite, or too large to be summed")
    return np.asarray(torch.round(wide / step))


def _whole(value: float) -> int:
    if not 0 <= value < float("inf"):
        raise protocol.SumRefused("a number that is not finite and >= 0")
    over, under = float(value).as_integer_ratio()
    return (over << UNIT) // under


def _number(total: int) -> float:
    try:
        return total / (1 << UNIT)
    except OverflowError:
        raise protocol.SumRefused("the masks do not cancel") from None


def sealed_sizes(name: str, terms: int) -> range:
    """How many bytes ``terms`` sealed numbers may have."""
    if name == NONE:
        return range(0)
    if name == "ckks":
        return range(1, CIPHERTEXT)
    return masked_sizes(terms)


def masked_sizes(terms: int) -> range:
    """How many bytes ``terms`` numbers may have that masks hide."""
    numbers = terms * SIZE
    return range(numbers + TAG * (LEAST - 1), numbers + TAG * protocol.MOST, TAG)


def number_scheme(name: str, keys: PairwiseKeys, credentials: Credentials) -> protocol.NumberScheme:
    check_scheme(name)
    masked = MaskedSums(keys)
    if name != "ckks":
        return masked
    scheme: protocol.NumberScheme = import_module(module_of(name)).sums_of(masked, credentials.ckks())
    return scheme


def combiner(name: str, credentials: Credentials) -> Callable[[Mapping[str, bytes]], Any]:
    """What the server makes of {site: its sealed numbers} and tells every site."""
    check_scheme(name)
    if name != "ckks":
        return passed_on
    context = credentials.ckks()
    return partial(import_module(module_of(name)).combine, context=context)


def make_contexts(folder: Path) -> None:
    """Write new contexts for a simulated run with "ckks" into ``folder``."""
    (folder / HE).mkdir(exist_ok=True)
    for name, content in zip(
        (SITE_CONTEXT, SERVER_CONTEXT), import_module(module_of("ckks")).new_contexts(), strict=True
    ):
        (folder / HE / name).write_bytes(content)
