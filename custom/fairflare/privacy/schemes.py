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
from fairflare.privacy.sums import Identity, NoIdentity, Sealed, SiteScheme

NONE = "none"
LARGEST = {NONE: 0, "masks": masks.SIZE, "ckks": 2**19}
"""Scheme -> bytes that one sealed number takes at most; a ciphertext holds all of a site's numbers in less than one."""


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
    if name not in LARGEST:
        raise UserError(f"secure_sum: expected one of {', '.join(LARGEST)}, got {name!r}")
    if name == "ckks" and find_spec("tenseal") is None:
        raise UserError("secure_sum=ckks needs TenSEAL: pip install 'fairflare[he]'")


def site_scheme(name: str, site: str, context: str, credentials: Credentials) -> SiteScheme:
    """A site's half; ``context`` names the run."""
    check_scheme(name)
    if name == "ckks":
        return ckks.EncryptedSums(site, credentials.ckks())
    return masks.MaskedSums(site, context, credentials.identity)


def server_half(
    name: str, context: str, credentials: Credentials
) -> tuple[Callable[[Sequence[bytes]], Any], Callable[[str, Sealed], bool]]:
    """(what adds sealed numbers, what tells whether a statement is its site's own)."""
    check_scheme(name)
    if name == "ckks":
        return partial(ckks.combine, context=credentials.ckks()), lambda site, statement: True
    return masks.combine, lambda site, said: masks.verified(context, site, said, credentials.identity)
