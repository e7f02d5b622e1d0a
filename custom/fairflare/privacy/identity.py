# SPDX-License-Identifier: Apache-2.0
"""How a site proves that its words are its own, and the form of such a proof; a run without secure sums has both."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fairflare.privacy.statements import Sealed

KEY = re.compile(r"[0-9a-f]{64}")
PROOF = ("key", "certificate", "signature")
"""What a site states of itself before the first round."""
SIGNATURE = re.compile(r"[A-Za-z0-9+/=]{1,1024}")
LONGEST = 1 << 15
"""Characters of a site's certificates together."""


class Identity(Protocol):
    """FLARE's certificates, or nothing."""

    def sign(self, content: bytes) -> dict[str, str]:
        """A proof that this site said ``content``."""

    def vouches(self, site: str, content: bytes, proof: Sealed) -> bool:
        """Whether ``proof`` shows that ``site`` said ``content``."""


class NoIdentity:
    """Takes everyone at their word: within one process, and in the simulator, whose sites have no certificates."""

    def sign(self, content: bytes) -> dict[str, str]:
        return {}

    def vouches(self, site: str, content: bytes, proof: Sealed) -> bool:
        return True


@dataclass(frozen=True)
class Credentials:
    """What a server or a site has been given; ``ckks`` reads TenSEAL's context, the sites' with the secret key."""

    identity: Identity = field(default_factory=NoIdentity)
    ckks: Callable[[], bytes] = bytes


def is_proof(name: str, value: Any) -> bool:
    """Whether ``value`` is the part ``name`` of ``PROOF``, and nothing else."""
    if not isinstance(value, str):
        return False
    if name == "certificate":
        return is_certificates(value)
    return (KEY if name == "key" else SIGNATURE).fullmatch(value) is not None


def is_certificates(text: str) -> bool:
    """Whether ``text`` is one to four certificates in PEM and nothing else, of ordinary length."""
    if len(text) > LONGEST:
        return False
    try:
        found = x509.load_pem_x509_certificates(text.encode("ascii"))
    except (UnicodeEncodeError, ValueError):
        return False
    return len(found) <= 4 and text.split() == "".join(c.public_bytes(Encoding.PEM).decode() for c in found).split()
