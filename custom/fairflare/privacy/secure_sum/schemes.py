# SPDX-License-Identifier: Apache-2.0
"""The schemes for secure sums by name, and what each needs to be handed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairflare.core.errors import UserError
from fairflare.privacy.secure_sum.protocol import LEAST, MOST, Identity, NoIdentity, NumberScheme
from fairflare.privacy.sum_keys import TAG, PairwiseKeys

NONE = "none"
SCHEMES = (NONE, "masks", "ckks")
CHECKED = "fairflare.privacy.secure_sum.checked"
"""Of "ckks", by a name that no reader of imports follows: other jobs do not carry it."""
MOST_CKKS_Q = 4
"""(1e-10)^4 and (1e6)^4 times 1e12 examples are numbers that CKKS can sum."""
CIPHERTEXT = 2**19
"""Bytes of a ciphertext at most; a real one has about 235,000."""
SITE_CONTEXT, SERVER_CONTEXT = "client_context.tenseal", "server_context.tenseal"
"""Where FLARE's ``HEBuilder`` puts them."""
HE = "he"
"""Folder of a simulated run with contexts of its own."""


@dataclass(frozen=True)
class Credentials:
    """What a server or a site has been given; ``ckks`` reads TenSEAL's context, the sites' with the secret key."""

    identity: Identity = field(default_factory=NoIdentity)
    ckks: Callable[[], bytes] = bytes


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
    if name == "ckks":
        return range(1, CIPHERTEXT)
    return masked_sizes(terms)


def masked_sizes(terms: int) -> range:
    """How many bytes ``terms`` numbers may have that masks hide."""
    from fairflare.privacy.secure_sum.pairwise import SIZE

    numbers = terms * SIZE
    return range(numbers + TAG * (LEAST - 1), numbers + TAG * MOST, TAG)


def number_scheme(name: str, keys: PairwiseKeys, credentials: Credentials) -> NumberScheme:
    from fairflare.privacy.secure_sum import pairwise as masks

    check_scheme(name)
    masked = masks.MaskedSums(keys)
    if name != "ckks":
        return masked
    scheme: NumberScheme = import_module(CHECKED).sums_of(masked, credentials.ckks())
    return scheme


def combiner(name: str, credentials: Credentials) -> Callable[[Mapping[str, bytes]], Any]:
    """What the server makes of {site: its sealed numbers} and tells every site."""
    from fairflare.privacy.secure_sum import pairwise as masks

    check_scheme(name)
    if name != "ckks":
        return masks.passed_on
    context = credentials.ckks()
    return partial(import_module(CHECKED).combine, context=context)


def make_contexts(folder: Path) -> None:
    """Write new contexts for a simulated run with "ckks" into ``folder``."""
    (folder / HE).mkdir(exist_ok=True)
    for name, content in zip((SITE_CONTEXT, SERVER_CONTEXT), import_module(CHECKED).new_contexts(), strict=True):
        (folder / HE / name).write_bytes(content)
