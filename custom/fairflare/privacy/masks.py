# SPDX-License-Identifier: Apache-2.0
"""Pairwise-masked sums: every two sites share a mask that one adds and the other subtracts.

The masks cancel in the sum and hide every summand (Bonawitz et al., CCS 2017, https://doi.org/10.1145/3133956.3133982,
without their recovery of the masks of lost sites: here the rest is asked again). Two sites derive their mask from an
X25519 key exchange, so that the server, which passes the public keys on, cannot compute it.

Numbers are summed as integers modulo 2^2176, in units of 2^-1074: every finite double is such an integer, so sums are
exact, the same in any order of sites, and the same to the last bit whatever the masks were.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fairflare.privacy.sums import Identity, NoIdentity, Rosters, Sealed, SumOrder, SumRefused

UNIT = 1074
BITS = 2176
SIZE = BITS // 8
KEY = re.compile(r"[0-9a-f]{64}")


class MaskedSums:
    """A site's half; its key pair is new with every job.

    Args:
        site: its name.
        context: names the run; masks of two runs have nothing in common.
        identity: signs this site's key and checks the others'.
    """

    def __init__(self, site: str, context: str, identity: Identity | None = None) -> None:
        self._site, self._context, self._identity = site, context, identity or NoIdentity()
        self._key = X25519PrivateKey.generate()
        self._rosters = Rosters(site)

    def statement(self) -> Sealed:
        """{"key": hex of the public key, and its proof}."""
        key = self._key.public_key().public_bytes_raw().hex()
        return {"key": key, **self._identity.sign(key_content(self._context, self._site, key))}

    def seal(self, values: Sequence[float], order: SumOrder) -> Sealed:
        """{"sum": 272 bytes per value}, each value plus the masks shared with every other site of the roster.

        Raises:
            SumRefused: a key that its site does not vouch for, or one sum too many, see ``Rosters``.
        """
        if dict(order.statements.get(self._site, {})).get("key") != self.statement()["key"]:
            raise SumRefused("a sum with another key of this site")
        for site in order.roster:
            if not verified(self._context, site, order.statements[site], self._identity):
                raise SumRefused(f"{site}: a key that is not its own")
        self._rosters.admit(order)
        totals = [_whole(value) for value in values]
        for site in order.roster:
            if site != self._site:
                sign = 1 if self._site < site else -1
                masks = self._masks(site, order, len(totals))
                totals = [total + sign * mask for total, mask in zip(totals, masks)]
        return {"sum": b"".join((total % 2**BITS).to_bytes(SIZE, "big") for total in totals)}

    def open(self, total: Any, terms: int) -> list[float]:
        """The sums, which ``combine`` already has as numbers."""
        if not isinstance(total, (list, tuple)) or len(total) != terms or not all(type(t) is float for t in total):
            raise SumRefused("not the sums that were asked for")
        return list(total)

    def _masks(self, other: str, order: SumOrder, n: int) -> list[int]:
        """What this site and ``other`` derive alike, and nobody else can."""
        public = X25519PublicKey.from_public_bytes(bytes.fromhex(order.statements[other]["key"]))
        low, high = sorted((self._site, other))
        about = order.digest(self._context) + f"{low}\0{high}".encode()
        try:
            secret = self._key.exchange(public)
        except ValueError:  # a point of small order
            raise SumRefused(f"{other}: a key that is none") from None
        stream = HKDF(algorithm=SHA256(), length=n * SIZE, salt=None, info=about).derive(secret)
        return [int.from_bytes(stream[i : i + SIZE], "big") for i in range(0, n * SIZE, SIZE)]


def combine(sealed: Iterable[bytes]) -> list[float]:
    """The sums of the values that are sealed in messages of equal length, correctly rounded.

    Raises:
        SumRefused: they do not cancel: a site added something else.
    """
    rows = [[int.from_bytes(m[i : i + SIZE], "big") for i in range(0, len(m), SIZE)] for m in sealed]
    return [_number(sum(column) % 2**BITS) for column in zip(*rows, strict=True)]


def key_content(context: str, site: str, key: str) -> bytes:
    """What a site signs."""
    return f"fairflare secure sum\0{context}\0{site}\0{key}".encode()


def verified(context: str, site: str, statement: Sealed, identity: Identity) -> bool:
    """Whether ``statement`` holds a key that is ``site``'s own."""
    key = statement.get("key")
    if not isinstance(key, str) or not KEY.fullmatch(key):
        return False
    return identity.vouches(site, key_content(context, site, key), statement)


def _whole(value: float) -> int:
    if not 0 <= value < float("inf"):
        raise SumRefused("a number that is not finite and >= 0")
    over, under = float(value).as_integer_ratio()
    return (over << UNIT) // under


def _number(total: int) -> float:
    try:
        return total / (1 << UNIT)
    except OverflowError:
        raise SumRefused("the masks do not cancel") from None
