# SPDX-License-Identifier: Apache-2.0
"""Keys that every two sites share and nobody else can compute, the server that passes them on included.

X25519 for the shared secret, HKDF-SHA256 for a key per round, attempt, purpose and pair, AES-128 in counter mode for as
many bytes as are asked for: the fastest of OpenSSL's streams where the processor has instructions for it.

Self-masks: what a site has sealed can be read only once enough sites agree that this sum, and no other, came about. A
mask of the site's own lies over its sealed numbers and its masked update. Its seed is shared out to all sites of the
sum, so that any ``threshold`` of them recover it and fewer know nothing (Shamir, CACM 1979,
https://doi.org/10.1145/359168.359176). A site hands out its shares of one sum per round. Two sums of a round that
differ by one site would both be read only if ``threshold`` sites handed out shares of each, and there are not so many
honest ones: a server that lies about silence, or receives an answer late, reads one of them at most.

Bonawitz et al. (CCS 2017, https://doi.org/10.1145/3133956.3133982) recover the masks of silent sites too, and have
sites sign who is left. Here the rest is asked again, under new masks and self-masks; what was sent before stays masked.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fairflare.privacy import schemes
from fairflare.privacy import sum_protocol as protocol
from fairflare.privacy.identity import KEY, Identity, NoIdentity
from fairflare.privacy.statements import Sealed

TAG = 16
"""Bytes that authenticate a message to one other site."""
BLOCK = 2**17
"""Bytes of a stream at a time: few enough to stay in a processor's cache until they are used."""
_ZEROS = memoryview(bytes(BLOCK))
_SPARE = 15
"""Bytes beyond those written that the cipher wants in a buffer."""


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
        self,
        site: str,
        context: str,
        identity: Identity | None = None,
        graph: protocol.MaskGraph | None = None,
    ) -> None:
        self.site, self._graph = site, graph or protocol.MaskGraph(0)
        self._context, self._identity = context, identity or NoIdentity()
        self._key = X25519PrivateKey.generate()
        self._public = self._key.public_key().public_bytes_raw().hex()
        self._secrets: dict[str, bytes] = {}
        self._checked: set[bytes] = set()
        self._latest: tuple[protocol.SumOrder, bytes] | None = None

    @property
    def sites(self) -> int:
        """Of the run; 0 where that is not known."""
        return self._graph.sites

    def statement(self) -> Sealed:
        """{"key": hex of the public key, and its proof}."""
        return {"key": self._public, **self._identity.sign(key_content(self._context, self.site, self._public))}

    def check(self, order: protocol.SumOrder) -> None:
        """Raise SumRefused unless every key of the roster is its site's own; each statement is looked at once."""
        if dict(order.statements.get(self.site, {})).get("key") != self._public:
            raise protocol.SumRefused("a sum with another key of this site")
        for site in order.roster:
            stated = protocol.fingerprint(site, order.statements[site])
            own = stated in self._checked or verified(self._context, site, order.statements[site], self._identity)
            if not own:
                raise protocol.SumRefused(f"{site}: a key that is not its own")
            self._checked.add(stated)

    def neighbours(self, order: protocol.SumOrder) -> tuple[str, ...]:
        """The sites of the roster that share masks of updates with this one."""
        return self._graph.neighbours(self.site, order, self._context)

    def streams(
        self, order: protocol.SumOrder, purpose: str, others: Iterable[str] | None = None
    ) -> Iterator[tuple[int, Stream]]:
        """(1 or -1, a stream) for each of ``others``, all of the roster by default; those of a pair differ in sign."""
        for other in order.roster if others is None else others:
            if other != self.site:
                yield 1 if self.site < other else -1, Stream(self.derived(other, order, purpose))

    def tag(self, other: str, order: protocol.SumOrder, author: str, content: bytes) -> bytes:
        """Proves to the other of this site and ``other`` that ``author``, one of the two, said ``content``."""
        key = self.derived(other, order, f"tag\0{author}")
        return hmac.digest(key, content, "sha256")[:TAG]

    def derived(self, other: str, order: protocol.SumOrder, purpose: str) -> bytes:
        """32 bytes that the pair alone can compute, for one sum and purpose."""
        low, high = sorted((self.site, other))
        about = self._digest(order) + f"{purpose}\0{low}\0{high}".encode()
        secret = self._secret(order.statements[other]["key"])
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=about).derive(secret)

    def _digest(self, order: protocol.SumOrder) -> bytes:
        """Computed once per order, not once per pair and purpose."""
        if self._latest is None or self._latest[0] is not order:
            self._latest = order, order.digest(self._context)
        return self._latest[1]

    def _secret(self, key: str) -> bytes:
        if key not in self._secrets:
            self._secrets[key] = self._key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(key)))
        return self._secrets[key]


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


PRIME = 2**255 - 19
SEED, SHARE = 31, 32
"""Bytes of a seed and of a share of it."""
SEALED = SHARE + 16
"""Bytes of a share that only its holder can read."""
SELF_MASK = range(SEALED * (schemes.LEAST - 1), SEALED * protocol.MOST, SEALED)
"""How many bytes the shares of a site's self-mask may have."""
SHARES = range(SHARE * schemes.LEAST, SHARE * protocol.MOST + 1, SHARE)
"""How many bytes a site's shares of everyone's self-masks may have."""
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
    return min((asked + max(asked, of) // protocol.SHARE) // 2 + 1, asked)


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
            raise protocol.SumRefused(f"{len(points)} shares of a self-mask were handed out, {needed} needed")
        if points not in factors:
            factors[points] = [_at_zero(point, points) for point in points]
        value = sum(factor * int.from_bytes(one[point], "big") for factor, point in zip(factors[points], points))
        if (value := value % PRIME) >= 1 << 8 * SEED:
            raise protocol.SumRefused("shares that are not of one seed")
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
    """The bytes that mask what was sealed."""
    return Stream(hashlib.sha256(b"fairflare cover\0" + seed).digest())


def self_masked(message: bytes, seed: bytes) -> bytes:
    """Masks ``message``, or takes the mask off."""
    return stream_of(seed).over(message)


class SelfMasks:
    """A site's half, for one of a round's sums, "numbers" or "update": shares of the one are none of the other."""

    def __init__(self, keys: PairwiseKeys, purpose: str) -> None:
        self._keys, self._purpose = keys, purpose
        self._seed: tuple[protocol.SumOrder, bytes, list[bytes]] | None = None
        self._handed_out: protocol.SumOrder | None = None

    def draw(self, order: protocol.SumOrder, first: int) -> tuple[bytes, bytes]:
        """The seed of this site's self-mask in a sum, and its shares for the roster's other sites, one after the other.

        ``first``: sites that were asked first in this round.

        Raises:
            SumRefused: too few sites are left, or shares of another sum of this round were handed out.
        """
        self._check_only(order)
        needed = threshold(first, self._keys.sites)
        if len(order.roster) < needed:
            raise protocol.SumRefused(f"a sum of {len(order.roster)} sites, {needed} of {first} needed")
        if self._seed is None or self._seed[0] != order:
            seed = secrets.token_bytes(SEED)
            self._seed = order, seed, split(seed, len(order.roster), needed)
        _, seed, shares = self._seed
        author = self._keys.site
        holders = [(site, share) for site, share in zip(order.roster, shares, strict=True) if site != author]
        return seed, b"".join(self._cipher(site, order, author).encrypt(_NONCE, one, None) for site, one in holders)

    def hand_out(self, order: protocol.SumOrder, sealed: Mapping[str, bytes]) -> bytes:
        """This site's share of every self-mask of a sum, in the roster's order, ``NONE`` where it could not read one.

        Raises:
            SumRefused: this site did not take part, or handed out shares of another sum of this round.
        """
        self._check_only(order)
        if self._seed is None or self._seed[0] != order:
            raise protocol.SumRefused("shares of a sum that this site has no part in")
        self._handed_out = order
        own = self._seed[2][order.roster.index(self._keys.site)]
        return b"".join(own if s == self._keys.site else self._opened(s, order, sealed.get(s)) for s in order.roster)

    def _check_only(self, order: protocol.SumOrder) -> None:
        given = self._handed_out
        if given is not None and given.round == order.round and given != order:
            raise protocol.SumRefused("a second sum of a round whose shares were handed out")

    def _opened(self, author: str, order: protocol.SumOrder, sealed: object) -> bytes:
        if not isinstance(sealed, bytes):
            return NONE
        try:
            return self._cipher(author, order, author).decrypt(_NONCE, sealed, None)
        except InvalidTag:
            return NONE

    def _cipher(self, other: str, order: protocol.SumOrder, author: str) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(self._keys.derived(other, order, f"share of {self._purpose}\0{author}"))
