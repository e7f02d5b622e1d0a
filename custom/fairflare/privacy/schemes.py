# SPDX-License-Identifier: Apache-2.0
"""The schemes for secure sums by name, and what each needs to be handed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

from fairflare.errors import UserError
from fairflare.privacy import ckks, masks
from fairflare.privacy.pairs import PairwiseKeys
from fairflare.privacy.sums import Identity, NoIdentity, NumberScheme

NONE = "none"
SCHEMES = (NONE, "masks", "ckks")
CIPHERTEXT = 2**19
"""Bytes of a ciphertext at most; a real one has about 235,000."""


@dataclass(frozen=True)
class Credentials:
    """What a server or a site has been given beforehand.

    Attributes:
        identity: its certificate, to sign with and to check others by.
        ckks: reads TenSEAL's context, the sites' with the secret key, the server's without.
    """

    identity: Identity = field(default_factory=NoIdentity)
    ckks: Callable[[], bytes] = lambda: b""


def check_scheme(name: str) -> None:
    """Raise UserError unless there is a scheme ``name`` and this machine has what it needs."""
    if name not in SCHEMES:
        raise UserError(f"secure_sum: expected one of {', '.join(SCHEMES)}, got {name!r}")
    if name == "ckks" and find_spec("tenseal") is None:
        raise UserError("secure_sum=ckks needs TenSEAL: pip install 'fairflare[he]'")


def sealed_sizes(name: str, terms: int) -> range:
    """How many bytes ``terms`` sealed numbers may have."""
    if name == NONE:
        return range(0)
    return range(1, CIPHERTEXT) if name == "ckks" else range(terms * masks.SIZE, terms * masks.SIZE + 1)


def number_scheme(name: str, keys: PairwiseKeys, credentials: Credentials) -> NumberScheme:
    """A site's half."""
    check_scheme(name)
    return ckks.EncryptedSums(credentials.ckks()) if name == "ckks" else masks.MaskedSums(keys)


def combiner(name: str, credentials: Credentials) -> Callable[[Sequence[bytes]], Any]:
    """What adds sealed numbers at the server."""
    check_scheme(name)
    return partial(ckks.combine, context=credentials.ckks()) if name == "ckks" else masks.combine
