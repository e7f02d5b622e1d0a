# SPDX-License-Identifier: Apache-2.0
"""The audit log: one JSON object per line, each holding the SHA-256 of the one before.

Whoever keeps the last hash can tell whether any earlier line was changed, dropped or reordered. What the lines must say
one after the other is in ``history``.

A transport may send each question with the signed head of the log, and ask for signed answers (``Countersigned``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

from fairflare.core.errors import UserError, naming
from fairflare.core.schema import Answer, Instruction, Transport
from fairflare.engine.files import MOST_LOG, is_there, reading
from fairflare.engine.hashes import model_hash
from fairflare.privacy.statements import LAST, SIGNED, answer_bytes, head_bytes
from fairflare.privacy.sum_protocol import Identity

GENESIS = "0" * 64
CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
PLAIN = json.JSONEncoder(allow_nan=False)


class AuditLog:
    """Appends entries to a file; opening an existing file continues its chain and changes nothing before ``append``.

    ``first`` and ``last`` are its first and last entry, empty when there is none.
    """

    def __init__(self, path: Path, each: Callable[[dict[str, Any]], None] = lambda entry: None) -> None:
        """Call ``each`` with every entry that the file holds; raises UserError when its chain is broken."""
        self.path = path
        self.first, self.last = dict[str, Any](), dict[str, Any]()
        self._size = self._torn = 0
        if is_there(path):
            with reading(path, MOST_LOG) as file:
                for self.last in _chained(file, path.name):
                    self.first = self.first or self.last
                    each(self.last)
                self._size, self._torn = file.tell(), len(file.read())

    def head(self) -> dict[str, Any]:
        """The log by its first entry, and place and hash of its last; empty before the first."""
        return {"log": self.first["hash"], "seq": self.last["seq"], "hash": self.last["hash"]} if self.first else {}

    def append(self, event: str, **content: Any) -> dict[str, Any]:
        """Write one entry durably and return it, with its ``seq``, ``time``, ``prev`` and ``hash``.

        A last line that a killed process left without its end is cut off first.

        Raises:
            UserError: the file is not as this object left it; then it is left alone.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        seq, head = (self.last["seq"] + 1, self.last["hash"]) if self.first else (0, GENESIS)
        entry = {"seq": seq, "time": now, "event": event, **content, "prev": head}
        entry["hash"] = entry_hash(entry)
        data = (_text(entry) + "\n").encode()
        with self.path.open("ab", buffering=0) as file:  # closing a buffered file writes what a full disk refused
            if file.seek(0, os.SEEK_END) != self._size + self._torn:
                raise UserError(f"{self.path.name}: was changed by somebody else while the run went on")
            if self._torn:
                file.truncate(self._size)
                self._torn = 0
            self._write(file, data)
        self.first, self.last, self._size = self.first or entry, entry, self._size + len(data)
        return entry

    def _write(self, file: io.FileIO, data: bytes) -> None:
        try:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        except OSError as error:
            os.ftruncate(file.fileno(), self._size)  # a full disk leaves no half line before the entry that says so
            raise naming(error, self.path)  # noqa: B904  # the same error


def first_entry(path: Path) -> dict[str, Any]:
    """The first entry, {} while no whole, valid line is there; raises UserError where the file cannot be read."""
    with reading(path, MOST_LOG) as file:
        line = file.readline()
    try:
        return next(_chained(io.BytesIO(line), path.name), {})
    except UserError:
        return {}


def verify(path: Path, *, torn: bool = False) -> list[dict[str, Any]]:
    """All entries of an unbroken chain; the file is not changed.

    Args:
        torn: whether a last line that a killed process did not write to its end is left out, in place of refused.

    Raises:
        UserError: names the first line that does not fit.
    """
    with reading(path, MOST_LOG) as file:
        return list(_chained(file, path.name, torn))


def entry_hash(entry: dict[str, Any]) -> str:
    """SHA-256 over the entry without its own hash, as canonical JSON."""
    content = {key: value for key, value in entry.items() if key != "hash"}
    digest = hashlib.sha256()
    for piece in _pieces(content, CANONICAL):
        digest.update(piece.encode())
    return digest.hexdigest()


def _chained(file: BinaryIO, name: str, torn: bool = True) -> Iterator[dict[str, Any]]:
    """The entries of an unbroken chain; ``file`` is left at its end or where a last line without one begins.

    Raises UserError for anything that ``append`` does not write, and for such a last line, too, unless ``torn``.
    """
    head = GENESIS
    for number, line in enumerate(file, 1):
        if b"\r" in line:
            raise UserError(f"{name}: has line ends (CR) that it was not written with; it was left as it is")
        if not line.endswith(b"\n"):
            begin = f'{{"seq": {number - 1}, "'.encode()
            if line[: len(begin)] != begin[: len(line)] or not all(32 <= byte < 127 for byte in line):
                raise UserError(f"{name}: line {number} is not JSON, nor the begin of an entry")
            if not torn:
                raise UserError(f"{name}: line {number} has no end: whoever wrote it was killed, or it was cut")
            file.seek(-len(line), os.SEEK_CUR)
            return
        entry = _entry(line[:-1], number, name)
        if entry.get("seq") != number - 1 or entry.get("prev") != head or entry.get("hash") != entry_hash(entry):
            raise UserError(f"{name}: the chain is broken at line {number}: it or a line before it was changed")
        head = entry["hash"]
        yield entry


def _entry(line: bytes, number: int, name: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise UserError(f"{name}: line {number} is not JSON") from None
    if not isinstance(entry, dict):
        raise UserError(f"{name}: line {number} is not a JSON object")
    try:
        written = _text(entry).encode()
    except (ValueError, RecursionError):
        written = b""
    # A second key of the same name or a space more would leave the parsed entry, and so its hash, as it was.
    if written != line:
        raise UserError(f"{name}: the chain is broken at line {number}: it is not as it was written")
    return entry


def _text(entry: dict[str, Any]) -> str:
    return "".join(_pieces(entry, PLAIN))


def _pieces(value: Any, form: json.JSONEncoder, depth: int = 3) -> Iterator[str]:
    """What ``form`` makes of ``value``, mapping by mapping: all at once it needs several times the text's memory."""
    if not depth or type(value) is not dict or not value or not all(type(key) is str for key in value):
        yield form.encode(value)
        return
    before = "{"
    for key, item in sorted(value.items()) if form.sort_keys else value.items():
        yield before + form.encode(key) + form.key_separator
        yield from _pieces(item, form, depth - 1)
        before = form.item_separator
    yield "}"


UNSIGNED = "signature: expected the site's own of this answer and of the log's head"


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
            proof = {name: str(answer.signed[name]) for name in ("numbers", "certificate", "signature")}
            update = "" if answer.update is None else model_hash(answer.update)
        except Exception:  # an answer may hold anything
            return False
        said = answer_bytes(answer.site, task, round, head["hash"], update, proof["numbers"])
        if not self._signer.vouches(answer.site, said, proof):
            return False
        shown = {name: head[name] for name in ("log", "seq", "hash", "signature")}
        self._taken["head"] = {**shown, "certificate": self._named(head["certificate"])}
        about = {"task": task, "round": round, "update": update, "numbers": proof["numbers"]}
        proven = {"signature": proof["signature"], "certificate": self._named(proof["certificate"])}
        signed = self._taken.setdefault("signed", {})
        if update or answer.site not in signed:
            signed[answer.site] = {**about, **proven}
        return True

    def _named(self, certificate: str) -> str:
        """The certificate's SHA-256, by which the log names it; the first time it stands there whole."""
        name = hashlib.sha256(certificate.encode()).hexdigest()
        if name not in self._known:
            self._known.add(name)
            self._taken.setdefault("certificates", {})[name] = certificate
        return name
