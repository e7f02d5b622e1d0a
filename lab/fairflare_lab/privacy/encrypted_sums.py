# SPDX-License-Identifier: Apache-2.0
"""Encrypted sums that sites can check.

Who cannot read a CKKS ciphertext can still add to it and multiply it. So each site sends its masked numbers along,
encrypted under a key that only sites have: these can be neither read nor changed by the server, every site adds them up
itself, and what CKKS says must agree.

CKKS (Cheon et al., ASIACRYPT 2017) through TenSEAL, the extra ``he``. FLARE's ``HEBuilder`` puts the key into the
sites' startup kits as ``client_context.tenseal`` and what the server needs to add into its own. CKKS rounds at about
1e-9 whatever a number's size, and x^q can be anything from 1e-40 to 1e36. So every number is sent several times, scaled
by powers of two, beside flags for the copies that were too large; the largest scale at which nobody's was is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fairflare.core.errors import UserError
from fairflare.privacy.secure_sums import MaskedSums
from fairflare.privacy.statements import Sealed
from fairflare.privacy.sum_protocol import SumOrder, SumRefused

EXPONENTS = tuple(range(-110, 151, 10))
"""Scales 2^e: of numbers from 2^-142 to 2^128 one copy lies between 2^8 and 2^18."""
LARGEST = 2.0**18
DEGREE, MODULI, SCALE = 8192, [60, 40, 40], 2.0**40
"""FLARE's own defaults for HE."""


class EncryptedSums:
    """A site's half for numbers; UserError where TenSEAL is not installed, or the context has no secret key."""

    def __init__(self, context: bytes) -> None:
        self._ts = _tenseal()
        self._context = self._ts.context_from(context)
        if not self._context.has_secret_key():
            raise UserError("secure_sum=ckks: the site's context has no secret key")

    def seal(self, values: Sequence[float], order: SumOrder) -> Sealed:
        """{"sum": one ciphertext}, about 240 kB."""
        return {"sum": self._ts.ckks_vector(self._context, rungs(values)).serialize()}

    def open(self, total: Any, terms: int) -> list[float]:
        """Decrypt what ``added`` made."""
        try:
            slots = self._ts.ckks_vector_from(self._context, total).decrypt()
        except Exception as error:  # whatever TenSEAL says of it, these are not the sums
            raise SumRefused("not the sums that were asked for") from error
        if len(slots) != terms * 2 * len(EXPONENTS):
            raise SumRefused("not the sums that were asked for")
        return [from_rungs(slots[i : i + 2 * len(EXPONENTS)]) for i in range(0, len(slots), 2 * len(EXPONENTS))]


def added(sealed: Sequence[bytes], context: bytes) -> bytes:
    """The sum of ciphertexts under a context that cannot read them; raises SumRefused when one is none."""
    ts = _tenseal()
    try:
        public = ts.context_from(context)
        first, *rest = [ts.ckks_vector_from(public, one) for one in sealed]
        for one in rest:
            first.add_(one)
        if not first.size():
            raise ValueError("empty ciphertexts")
        return bytes(first.serialize())
    except Exception as error:  # TenSEAL raises what comes along
        raise SumRefused("not a ciphertext of this federation") from error


def new_contexts() -> tuple[bytes, bytes]:
    """A new key as (the sites' context, the server's), for runs whose sites have no startup kits."""
    ts = _tenseal()
    context = ts.context(
        ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=MODULI, encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC
    )
    context.global_scale = SCALE
    kept = {"save_galois_keys": False, "save_relin_keys": False}
    public = context.serialize(save_public_key=False, save_secret_key=False, **kept)
    return context.serialize(save_public_key=True, save_secret_key=True, **kept), public


def rungs(values: Sequence[float]) -> list[float]:
    """Each value at every scale, clipped, followed by its flags."""
    slots: list[float] = []
    for value in values:
        if not 0 <= value < float("inf"):
            raise SumRefused("a number that is not finite and >= 0")
        scaled = [value * 2.0**e for e in EXPONENTS]
        slots += [min(one, LARGEST) for one in scaled]
        slots += [float(one > LARGEST) for one in scaled]
    return slots


def from_rungs(slots: Sequence[float]) -> float:
    """The sum at the largest scale at which no summand was clipped; raises SumRefused when all were."""
    values, flags = slots[: len(EXPONENTS)], slots[len(EXPONENTS) :]
    usable = [i for i, flag in enumerate(flags) if abs(flag) < 0.5]
    if not usable:
        raise SumRefused("a number that is too large to be encrypted")
    best = max(usable)
    # What is left of zeros at the finest scale is the scheme's noise.
    return 0.0 if abs(values[best]) < 1e-3 and best == len(EXPONENTS) - 1 else values[best] / 2.0 ** EXPONENTS[best]


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise UserError("secure_sum=ckks needs TenSEAL: pip install 'fairflare-lab[he]'") from None
    return tenseal


LENGTH = 4
"""Bytes that say how long the copy is."""
TOTAL, COPIES = "total", "copies"
CLOSE, SMALLEST = 1e-6, 1e-45
"""What CKKS may be off by, relative and absolute: a thousand times its rounding, and where it reads 0."""


class CheckedSums:
    """A site's half for numbers; ``secret``: TenSEAL's context with the secret key, the same bytes at all sites."""

    def __init__(self, encrypted: EncryptedSums, masked: MaskedSums, secret: bytes) -> None:
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
    return CheckedSums(EncryptedSums(context), masked, context)


def combine(sealed: Mapping[str, bytes], context: bytes) -> dict[str, Any]:
    """{"total": the sum of the ciphertexts, "copies": {site: its copy}}; raises SumRefused when there is none."""
    ends = {site: LENGTH + int.from_bytes(one[:LENGTH], "big") for site, one in sealed.items()}
    total = added([sealed[site][ends[site] :] for site in sorted(sealed)], context)
    return {TOTAL: total, COPIES: {site: one[LENGTH : ends[site]] for site, one in sealed.items()}}
