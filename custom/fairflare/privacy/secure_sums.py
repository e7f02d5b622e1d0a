# SPDX-License-Identifier: Apache-2.0
"""Pairwise-masked sums: two sites share a mask that one adds and the other subtracts.

The masks cancel in the sum and hide every summand (Bonawitz et al., CCS 2017, https://doi.org/10.1145/3133956.3133982,
without their recovery of the masks of lost sites: here the rest is asked again). For numbers all pairs share masks, for
updates those that a ``MaskGraph`` makes neighbours.

Numbers are summed as integers modulo 2^2176, in units of 2^-1074: every finite double is such an integer, so sums are
exact. Neither depends on the order of sites or on the masks.

Entries of updates become whole numbers modulo 2^64, in steps of 2^-40, a hundredth of float32's own rounding at 1e-5.
Rounding is to the nearest step, ties to even. A sum over K sites is off by at most K / 2 steps, and by sqrt(K / 12) in
root mean square where the entries' remainders are independent.

At the end: the schemes for sums of numbers by name, and what each needs to be handed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
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
"""Of the entries of a sum; masks that do not cancel leave entries up to 2^23."""

ENTRIES = BLOCK // 8
"""Of an update that are masked at a time."""
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
    self_mask: Stream | None = None,
) -> StateDict:
    """``update`` (floating-point, tensors or arrays) as whole numbers of the same shapes that say nothing alone.

    Works block by block: beside the result nothing larger than ``BLOCK`` is held.

    Args:
        update: p_k D_k.
        self_mask: the site's, see ``sum_keys``.

    Raises:
        SumRefused: an entry is not finite or so large that a sum could overflow.
    """
    streams = list(keys.streams(order, "update", keys.neighbours(order)))
    streams += [] if self_mask is None else [(1, self_mask)]
    most = LARGEST / len(order.roster)
    masked = {key: _masked(torch.as_tensor(update[key]), most, streams) for key in sorted(update)}
    return {key: masked[key] for key in update}


def _masked(entries: Tensor, most: float, streams: Sequence[tuple[int, Stream]]) -> Tensor:
    flat = entries.detach().cpu().reshape(-1)
    total, buffer = torch.empty(len(flat), dtype=torch.int64), new_buffer()
    whole = total.numpy()
    for start in range(0, len(flat), ENTRIES):
        wide = flat[start : start + ENTRIES].double()
        if not bool((wide.abs() <= most).all()):  # also where it is NaN
            raise protocol.SumRefused("an update whose entries are not finite, or too large to be summed")
        block = whole[start : start + ENTRIES]
        block[:] = torch.round(wide / STEP)
        add_masks(block.view("<u8"), streams, buffer)
    return total.reshape(entries.shape)


def add_masks(block: np.ndarray, streams: Sequence[tuple[int, Stream]], buffer: bytearray) -> None:
    """Adds the next entries of every stream to ``block`` or takes them off it, in place and with wrap-around."""
    mask = np.frombuffer(buffer, block.dtype, count=len(block))
    for sign, stream in streams:
        stream.read_into(buffer, block.nbytes)
        (np.add if sign > 0 else np.subtract)(block, mask, out=block)


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
