# SPDX-License-Identifier: Apache-2.0
"""Covers: what a site has sealed can be read only once enough sites agree that this sum, and no other, came about.

A mask of the site's own lies over its sealed numbers and its masked update. Its seed is shared out to all sites of the
sum, so that any ``threshold`` of them recover it and fewer know nothing (Shamir, CACM 1979,
https://doi.org/10.1145/359168.359176). A site hands out its shares of one sum per round. Two sums of a round that
differ by one site would both be read only if ``threshold`` sites handed out shares of each, and there are not so many
honest ones: a server that lies about silence, or receives an answer late, reads one of them at most.

Bonawitz et al. (CCS 2017, https://doi.org/10.1145/3133956.3133982) recover the masks of silent sites too, and have
sites sign who is left. Here the rest is asked again, under new masks and covers; what was sent before stays covered.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fairflare.privacy.secure_sum.keys import PairwiseKeys, Stream
from fairflare.privacy.secure_sum.protocol import LEAST, MOST, SumOrder, SumRefused
from fairflare.privacy.secure_sum.protocol import SHARE as SHARE_OF_SITES

PRIME = 2**255 - 19
SEED, SHARE = 31, 32
"""Bytes of a seed and of a share of it."""
SEALED = SHARE + 16
"""Bytes of a share that only its holder can read."""
COVERS = range(SEALED * (LEAST - 1), SEALED * MOST, SEALED)
"""How many bytes the shares of a site's cover may have."""
SHARES = range(SHARE * LEAST, SHARE * MOST + 1, SHARE)
"""How many bytes a site's shares of everyone's covers may have."""
NONE = b"\xff" * SHARE
"""In place of a share that could not be read."""
_NONCE = bytes(12)
"""Each key encrypts one share."""


def threshold(asked: int, of: int = 0) -> int:
    """Shares that recover a seed, where ``asked`` sites were asked first in the round, ``of`` the run's sites.

    With c of them that work with the server, t - c honest sites at least have to hand out shares of a sum: for two sums
    2 (t - c), which is more than the ``asked`` - c that there are. c is a third of the run's sites, so that a server
    gains nothing by asking fewer. Where that is more than all, all are needed, and any c is withstood.
    """
    return min((asked + max(asked, of) // SHARE_OF_SITES) // 2 + 1, asked)


def split(seed: bytes, holders: int, needed: int) -> list[bytes]:
    """Shares of ``seed`` for holders 1, 2, ...: values of a random polynomial of degree ``needed`` - 1 with it at 0."""
    terms = [int.from_bytes(seed, "big"), *(secrets.randbelow(PRIME) for _ in range(needed - 1))]
    found = []
    for x in range(1, holders + 1):
        value = 0
        for term in reversed(terms):
            value = (value * x + term) % PRIME
        found.append(value.to_bytes(SHARE, "big"))
    return found


def recover(shares: Sequence[Mapping[int, bytes]], needed: int) -> list[bytes]:
    """The seeds of which ``shares`` hold {holder: share}; wrong shares give a wrong seed.

    Raises:
        SumRefused: a seed has fewer shares than are ``needed``, or they are of none.
    """
    found = []
    factors: dict[tuple[int, ...], list[int]] = {}
    for one in shares:
        points = tuple(sorted(one))[:needed]
        if len(points) < needed:
            raise SumRefused(f"{len(points)} shares of a cover were handed out, {needed} needed")
        if points not in factors:
            factors[points] = [_at_zero(point, points) for point in points]
        value = sum(factor * int.from_bytes(one[point], "big") for factor, point in zip(factors[points], points))
        if (value := value % PRIME) >= 1 << 8 * SEED:
            raise SumRefused("shares that are not of one seed")
        found.append(value.to_bytes(SEED, "big"))
    return found


def _at_zero(point: int, points: Sequence[int]) -> int:
    """Lagrange's factor of ``point`` for the value at 0."""
    above, below = 1, 1
    for other in points:
        if other != point:
            above, below = above * other % PRIME, below * (other - point) % PRIME
    return above * pow(below, -1, PRIME) % PRIME


def stream_of(seed: bytes) -> Stream:
    """The bytes that cover what was sealed."""
    return Stream(hashlib.sha256(b"fairflare cover\0" + seed).digest())


def uncovered(message: bytes, seed: bytes) -> bytes:
    """Covers ``message``, or takes its cover off."""
    return stream_of(seed).over(message)


class Covers:
    """A site's half, for one of a round's sums, "numbers" or "update": shares of the one are none of the other."""

    def __init__(self, keys: PairwiseKeys, purpose: str) -> None:
        self._keys, self._purpose = keys, purpose
        self._seed: tuple[SumOrder, bytes, list[bytes]] | None = None
        self._handed_out: SumOrder | None = None

    def cover(self, order: SumOrder, first: int) -> tuple[bytes, bytes]:
        """The seed of this site's cover in a sum, and its shares for the roster's other sites, one after the other.

        ``first``: sites that were asked first in this round.

        Raises:
            SumRefused: too few sites are left, or shares of another sum of this round were handed out.
        """
        self._check_only(order)
        needed = threshold(first, self._keys.sites)
        if len(order.roster) < needed:
            raise SumRefused(f"a sum of {len(order.roster)} sites, {needed} of {first} needed")
        if self._seed is None or self._seed[0] != order:
            seed = secrets.token_bytes(SEED)
            self._seed = order, seed, split(seed, len(order.roster), needed)
        _, seed, shares = self._seed
        author = self._keys.site
        holders = [(site, share) for site, share in zip(order.roster, shares, strict=True) if site != author]
        return seed, b"".join(self._cipher(site, order, author).encrypt(_NONCE, one, None) for site, one in holders)

    def hand_out(self, order: SumOrder, sealed: Mapping[str, bytes]) -> bytes:
        """This site's share of every cover of a sum, in the roster's order, ``NONE`` where it could not read one.

        Raises:
            SumRefused: this site did not take part, or handed out shares of another sum of this round.
        """
        self._check_only(order)
        if self._seed is None or self._seed[0] != order:
            raise SumRefused("shares of a sum that this site has no part in")
        self._handed_out = order
        own = self._seed[2][order.roster.index(self._keys.site)]
        return b"".join(own if s == self._keys.site else self._opened(s, order, sealed.get(s)) for s in order.roster)

    def _check_only(self, order: SumOrder) -> None:
        given = self._handed_out
        if given is not None and given.round == order.round and given != order:
            raise SumRefused("a second sum of a round whose shares were handed out")

    def _opened(self, author: str, order: SumOrder, sealed: object) -> bytes:
        if not isinstance(sealed, bytes):
            return NONE
        try:
            return self._cipher(author, order, author).decrypt(_NONCE, sealed, None)
        except InvalidTag:
            return NONE

    def _cipher(self, other: str, order: SumOrder, author: str) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._keys.derived(other, order, f"share of {self._purpose}\0{author}"))
