# SPDX-License-Identifier: Apache-2.0
"""A transport that sends each question with the signed head of the audit log, and asks for signed answers."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairflare.core.schema import Answer, Instruction, Transport, said
from fairflare.engine.hashes import model_hash
from fairflare.privacy.identity import Identity, is_proof
from fairflare.privacy.statements import LAST, SIGNED, answer_bytes, head_bytes, numbers_hash

UNSIGNED = "signature: expected the site's own of this answer and of the log's head"
MOST_CERTIFICATES = 8
"""Of one site: it may have a new one now and then, but not in each answer, since the log holds each whole."""


class Countersigned:
    """Another transport's exchanges, with heads and signatures.

    An answer without a proper signature is an error: the round goes on without it.
    """

    def __init__(self, transport: Transport, signer: Identity, head: Callable[[], Mapping[str, Any]]) -> None:
        """
        Args:
            signer: the server's key, and whom it takes for a site.
            head: "log", "seq" and "hash" of the log as it is; empty before its first entry.
        """
        self._transport, self._signer, self._head = transport, signer, head
        self._known: set[str] = set()
        self._of: dict[str, set[str]] = {}
        self._taken: dict[str, Any] = {}

    def sites(self) -> list[str]:
        return self._transport.sites()

    def exchange(self, instructions: Mapping[str, Instruction], *, last: bool = False) -> Iterator[Answer]:
        """As the transport does it; ``last``: nothing is asked but that sites keep the head and sign it."""
        head = dict(self._head())
        if not head:
            yield from self._transport.exchange(instructions)
            return
        head |= self._signer.sign(head_bytes(head)) | ({LAST: True} if last else {})
        sent = {site: dataclasses.replace(one, log=head) for site, one in instructions.items()}
        for answer in self._transport.exchange(sent):
            task = LAST if last else sent[answer.site].task if answer.site in sent else ""
            wanted = task in (*SIGNED, LAST) and not answer.error
            good = not wanted or self._note(task, sent[answer.site].round.number, head, answer)
            yield answer if good else Answer(site=answer.site, round=answer.round, error=UNSIGNED)

    def taken(self) -> dict[str, Any]:
        """What the log says of the exchanges since the last call: "head", "signed" by site, and new "certificates"."""
        found, self._taken = self._taken, {}
        return found

    def _note(self, task: str, round: int, head: Mapping[str, Any], answer: Answer) -> bool:
        """Take note of an answer's signature, of several that of an update; False where it is not the site's."""
        try:
            proof = {name: answer.signed[name] for name in ("numbers", "certificate", "signature")}
            update = "" if answer.update is None else model_hash(answer.update)
            numbers = numbers_hash(said(answer))
        except Exception:  # an answer may hold anything
            return False
        if not all(is_proof("key" if name == "numbers" else name, value) for name, value in proof.items()):
            return False
        signed = answer_bytes(answer.site, task, round, head["hash"], update, proof["numbers"])
        if numbers != proof["numbers"] or not self._signer.vouches(answer.site, signed, proof):
            return False
        own = self._of.setdefault(answer.site, set())
        own.add(proof["certificate"])
        if len(own) > MOST_CERTIFICATES:
            return False
        shown = {name: head[name] for name in ("log", "seq", "hash", "signature")}
        self._taken["head"] = {**shown, "certificate": self._named(head["certificate"])}
        about = {"task": task, "round": round, "update": update, "numbers": proof["numbers"]}
        proven = {"signature": proof["signature"], "certificate": self._named(proof["certificate"])}
        noted = self._taken.setdefault("signed", {})
        if update or answer.site not in noted:
            noted[answer.site] = {**about, **proven}
        return True

    def _named(self, certificate: str) -> str:
        """The certificate's SHA-256, by which the log names it; the first time it stands there whole."""
        name = hashlib.sha256(certificate.encode()).hexdigest()
        if name not in self._known:
            self._known.add(name)
            self._taken.setdefault("certificates", {})[name] = certificate
        return name
