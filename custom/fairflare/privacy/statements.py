# SPDX-License-Identifier: Apache-2.0
"""What a server and its sites sign of an audit log, byte for byte: a signature is worth what it binds.

The server signs a head: the log that it is of (hash of its first entry), an entry's place and the entry's hash, which
binds all entries before it. A site signs its answer together with the head that came with the question, so that it
vouches for the log up to there as well. No torch here: ``log_verifier`` runs on a plain machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

SIGNED = ("train", "compare", "weigh", "evaluate")
"""The tasks whose answers are signed, beside what a site is sent at the end of the run."""
Sealed = Mapping[str, Any]
"""What goes into a message: short texts, or bytes."""
LAST = "last"
"""In place of a task: the site has seen the last head, and has nothing else to say."""


def head_bytes(head: Mapping[str, Any]) -> bytes:
    """What the server signs; ``head``: "log" and "hash" (SHA-256, hexadecimal), "seq" (from 0 on)."""
    return _canonical("fairflare head", head["log"], head["seq"], head["hash"])


def answer_bytes(site: str, task: str, round: int, head: str, update: str, numbers: str) -> bytes:
    """What a site signs.

    Args:
        task, round: one of ``SIGNED``, or ``LAST``, and the round that it was asked for.
        head: hash of the head that it was sent.
        update: SHA-256 of the update as it left the site, hexadecimal; empty without one.
        numbers: ``numbers_hash`` of what it said beside the update.
    """
    return _canonical("fairflare answer", site, task, round, head, update, numbers)


def numbers_hash(numbers: Mapping[str, Any]) -> str:
    """SHA-256 of numbers by name, nested as they may be."""
    return hashlib.sha256(_canonical(numbers)).hexdigest()


def within(shown: Any, kept: Sequence[Any]) -> bool:
    """Whether one of ``kept`` has each number that is shown."""
    if isinstance(shown, Mapping):
        inner = [one for one in kept if isinstance(one, Mapping)]
        return all(within(value, [one.get(key) for one in inner]) for key, value in shown.items())
    return any(shown == one for one in kept)


BESIDE = ("personal", "clinical")


def is_told(shown: Mapping[str, Any], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether an evaluation in the log is what a site signed: ``one`` answer with all of its metrics.

    ``BESIDE`` it may stand what the site said of its own model, in the same answer or in an ``other``.
    """
    each = [{**one, **one["metrics"]}, {**other, **other["metrics"], "personal": other["metrics"]}]
    whole = all(shown.get(split, {}).keys() == one["metrics"].get(split, {}).keys() for split in ("val", "test"))
    own = {key: value for key, value in shown.items() if key not in BESIDE}
    return whole and within(own, each[:1]) and within({key: shown[key] for key in BESIDE if shown.get(key)}, each)


def _canonical(*content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
