# SPDX-License-Identifier: Apache-2.0
"""Keys that every two sites share and nobody else can compute, the server that passes them on included.

X25519 for the shared secret, HKDF-SHA256 for a key per round, attempt, purpose and pair, AES-128 in counter mode for as
many bytes as are asked for: the fastest of OpenSSL's streams where the processor has instructions for it.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding

from fairflare.privacy.secure_sum.protocol import (
    Identity,
    MaskGraph,
    NoIdentity,
    Sealed,
    SumOrder,
    SumRefused,
    fingerprint,
)

KEY = re.compile(r"[0-9a-f]{64}")
TAG = 16
"""Bytes that authenticate a message to one other site."""
BLOCK = 2**17
"""Bytes of a stream at a time: few enough to stay in a processor's cache until they are used."""
_ZEROS = memoryview(bytes(BLOCK))
_SPARE = 15
"""Bytes beyond those written that the cipher wants in a buffer."""
PROOF = ("key", "certificate", "signature")
"""What a statement may hold."""


class Stream:
    """Bytes that two sites share; each read goes on where the one before stopped.

    ``secret``: 32 bytes for this stream alone: AES's key and the start of its counter.
    """

    def __init__(self, secret: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES(secret[:16]), modes.CTR(secret[16:])).encryptor()

    def read(self, size: int) -> bytes:
        return self.over(bytes(size))

    def over(self, content: bytes) -> bytes:
        """``content`` xor the next bytes, which a stream from the same secret takes off again."""
        return self._encryptor.update(content)

    def read_into(self, buffer: bytearray, size: int) -> None:
        """Put the next ``size`` bytes, at most ``BLOCK``, at the start of a ``new_buffer``."""
        self._encryptor.update_into(_ZEROS[:size], buffer)


def new_buffer() -> bytearray:
    return bytearray(BLOCK + _SPARE)


class PairwiseKeys:
    """One site's key pair, new with every job, and what follows from it with every other site's.

    Args:
        context: names the run; streams of two runs have nothing in common.
        identity: signs this site's key and checks the others'.
        graph: which sites mask each other's updates; all of them where there is none.
    """

    def __init__(
        self, site: str, context: str, identity: Identity | None = None, graph: MaskGraph | None = None
    ) -> None:
        self.site, self._graph = site, graph or MaskGraph(0)
        self._context, self._identity = context, identity or NoIdentity()
        self._key = X25519PrivateKey.generate()
        self._public = self._key.public_key().public_bytes_raw().hex()
        self._secrets: dict[str, bytes] = {}
        self._checked: set[bytes] = set()
        self._latest: tuple[SumOrder, bytes] | None = None

    @property
    def sites(self) -> int:
        """Of the run; 0 where that is not known."""
        return self._graph.sites

    def statement(self) -> Sealed:
        """{"key": hex of the public key, and its proof}."""
        return {"key": self._public, **self._identity.sign(key_content(self._context, self.site, self._public))}

    def check(self, order: SumOrder) -> None:
        """Raise SumRefused unless every key of the roster is its site's own; each statement is looked at once."""
        if dict(order.statements.get(self.site, {})).get("key") != self._public:
            raise SumRefused("a sum with another key of this site")
        for site in order.roster:
            stated = fingerprint(site, order.statements[site])
            own = stated in self._checked or verified(self._context, site, order.statements[site], self._identity)
            if not own:
                raise SumRefused(f"{site}: a key that is not its own")
            self._checked.add(stated)

    def neighbours(self, order: SumOrder) -> tuple[str, ...]:
        """The sites of the roster that share masks of updates with this one."""
        return self._graph.neighbours(self.site, order, self._context)

    def streams(
        self, order: SumOrder, purpose: str, others: Iterable[str] | None = None
    ) -> Iterator[tuple[int, Stream]]:
        """(1 or -1, a stream) for each of ``others``, all of the roster by default; those of a pair differ in sign."""
        for other in order.roster if others is None else others:
            if other != self.site:
                yield 1 if self.site < other else -1, Stream(self.derived(other, order, purpose))

    def tag(self, other: str, order: SumOrder, author: str, content: bytes) -> bytes:
        """Proves to the other of this site and ``other`` that ``author``, one of the two, said ``content``."""
        key = self.derived(other, order, f"tag\0{author}")
        return hmac.digest(key, content, "sha256")[:TAG]

    def derived(self, other: str, order: SumOrder, purpose: str) -> bytes:
        """32 bytes that the pair alone can compute, for one sum and purpose."""
        low, high = sorted((self.site, other))
        about = self._digest(order) + f"{purpose}\0{low}\0{high}".encode()
        secret = self._secret(order.statements[other]["key"])
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=about).derive(secret)

    def _digest(self, order: SumOrder) -> bytes:
        """Computed once per order, not once per pair and purpose."""
        if self._latest is None or self._latest[0] is not order:
            self._latest = order, order.digest(self._context)
        return self._latest[1]

    def _secret(self, key: str) -> bytes:
        if key not in self._secrets:
            self._secrets[key] = self._key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
        return self._secrets[key]


def is_certificates(text: str) -> bool:
    """Whether ``text`` is one to four certificates in PEM and nothing else."""
    try:
        found = x509.load_pem_x509_certificates(text.encode("ascii"))
    except (UnicodeEncodeError, ValueError):
        return False
    return len(found) <= 4 and text.split() == "".join(c.public_bytes(Encoding.PEM).decode() for c in found).split()


def key_content(context: str, site: str, key: str) -> bytes:
    """What a site signs; its first byte is one that nothing else begins with which FLARE has sites sign."""
    return f"\0fairflare secure sum\0{context}\0{site}\0{key}".encode()


def verified(context: str, site: str, statement: Sealed, identity: Identity) -> bool:
    """Whether ``statement`` holds a key that is ``site``'s own and that can be used."""
    key = statement.get("key")
    if not isinstance(key, str) or not KEY.fullmatch(key):
        return False
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
    except ValueError:  # a point of small order: no secret would follow from it
        return False
    return identity.vouches(site, key_content(context, site, key), statement)
