# SPDX-License-Identifier: Apache-2.0
"""Encrypted sums that sites can check.

Who cannot read a CKKS ciphertext can still add to it and multiply it. So each site sends its masked numbers along,
encrypted under a key that only sites have: these can be neither read nor changed by the server, every site adds them up
itself, and what CKKS says must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fairflare.privacy.secure_sum import ckks
from fairflare.privacy.secure_sum.pairwise import MaskedSums
from fairflare.privacy.secure_sum.protocol import Sealed, SumOrder, SumRefused

LENGTH = 4
"""Bytes that say how long the copy is."""
TOTAL, COPIES = "total", "copies"
new_contexts = ckks.new_contexts
"""Of a run on one machine: whoever asks for this module by name needs no other of "ckks"."""
CLOSE, SMALLEST = 1e-6, 1e-45
"""What CKKS may be off by, relative and absolute: a thousand times its rounding, and where it reads 0."""


class CheckedSums:
    """A site's half for numbers; ``secret``: TenSEAL's context with the secret key, the same bytes at all sites."""

    def __init__(self, encrypted: ckks.EncryptedSums, masked: MaskedSums, secret: bytes) -> None:
        self._encrypted, self._masked, self._secret = encrypted, masked, secret
        self._order: SumOrder | None = None

    def seal(self, values: Sequence[float], order: SumOrder) -> Sealed:
        """{"sum": the length of the copy, the copy, one ciphertext}."""
        self._order = order
        copy = self._covered(self._masked.seal(values, order)["sum"], self._masked.site, order)
        return {"sum": len(copy).to_bytes(LENGTH, "big") + copy + self._encrypted.seal(values, order)["sum"]}

    def open(self, total: Any, terms: int) -> list[float]:
        """Decrypt what ``combine`` made, if the copies agree with it."""
        if self._order is None or not isinstance(total, Mapping) or not isinstance(total.get(COPIES), Mapping):
            raise SumRefused("not the sums that were asked for")
        copies = {site: self._covered(copy, site, self._order) for site, copy in total[COPIES].items()}
        exact = self._masked.open(copies, terms)
        found = self._encrypted.open(total.get(TOTAL), terms)
        if not all(abs(one - other) <= CLOSE * other + SMALLEST for one, other in zip(found, exact, strict=True)):
            raise SumRefused("encrypted sums that are not of everyone's numbers")
        return found

    def _covered(self, copy: Any, site: str, order: SumOrder) -> bytes:
        """Encrypts and decrypts; what was changed on the way is noticed by ``MaskedSums``."""
        if not isinstance(copy, bytes):
            raise SumRefused("not the sums that were asked for")
        about = b"fairflare copy\0" + order.digest(site)
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=about).derive(self._secret)
        # The key is for this copy alone, so that the nonce may be constant.
        return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(copy)


def sums_of(masked: MaskedSums, context: bytes) -> CheckedSums:
    """A site's half, of its half for masked numbers and TenSEAL's context with the secret key."""
    return CheckedSums(ckks.EncryptedSums(context), masked, context)


def combine(sealed: Mapping[str, bytes], context: bytes) -> dict[str, Any]:
    """{"total": the sum of the ciphertexts, "copies": {site: its copy}}; raises SumRefused when there is none."""
    ends = {site: LENGTH + int.from_bytes(one[:LENGTH], "big") for site, one in sealed.items()}
    total = ckks.combine([sealed[site][ends[site] :] for site in sorted(sealed)], context)
    return {TOTAL: total, COPIES: {site: one[LENGTH : ends[site]] for site, one in sealed.items()}}
