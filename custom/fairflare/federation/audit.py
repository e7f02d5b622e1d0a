# SPDX-License-Identifier: Apache-2.0
"""The audit log: one JSON object per line, each holding the SHA-256 of the one before.

Whoever keeps the last hash can tell whether any earlier line was changed, dropped or reordered.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from fairflare.contracts import StateDict
from fairflare.errors import UserError

GENESIS = "0" * 64


class AuditLog:
    """Appends entries to a file; opening an existing file continues its chain."""

    def __init__(self, path: Path) -> None:
        """Raises UserError when the file exists and its chain is broken."""
        self.path = path
        self._seq, self._head, self.first = 0, GENESIS, {}
        if path.exists():
            _drop_torn_line(path)
            entries = verify(path)
            self._seq, self._head = len(entries), entries[-1]["hash"] if entries else GENESIS
            self.first = entries[0] if entries else {}

    def append(self, event: str, **content: Any) -> dict[str, Any]:
        """Write one entry durably and return it, with its ``seq``, ``time``, ``prev`` and ``hash``."""
        entry = {"seq": self._seq, "time": _now(), "event": event, **content, "prev": self._head}
        entry["hash"] = entry_hash(entry)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_text(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._seq, self._head = self._seq + 1, entry["hash"]
        return entry


def read(path: Path) -> list[dict[str, Any]]:
    """All entries; raises UserError when a line is not the JSON that ``append`` writes."""
    entries = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entry = json.loads(line)
        except ValueError:
            raise UserError(f"{path.name}: line {number} is not JSON") from None
        if not isinstance(entry, dict):
            raise UserError(f"{path.name}: line {number} is not a JSON object")
        # A second key of the same name or a space more would leave the parsed entry, and so its hash, as it was.
        if _text(entry).encode() != line:
            raise UserError(f"{path.name}: the chain is broken at line {number}: it is not as it was written")
        entries.append(entry)
    return entries


def verify(path: Path) -> list[dict[str, Any]]:
    """All entries of an unbroken chain; raises UserError that names the first line that does not fit."""
    entries, head = read(path), GENESIS
    for number, entry in enumerate(entries, 1):
        if entry.get("seq") != number - 1 or entry.get("prev") != head or entry.get("hash") != entry_hash(entry):
            raise UserError(f"{path.name}: the chain is broken at line {number}: it or a line before it was changed")
        head = entry["hash"]
    return entries


def entry_hash(entry: dict[str, Any]) -> str:
    """SHA-256 over the entry without its own hash, as canonical JSON."""
    content = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def model_hash(model: StateDict) -> str:
    """SHA-256 over names, types, shapes and bytes in name order: equal exactly for bit-identical models."""
    digest = hashlib.sha256()
    for key in sorted(model):
        tensor = model[key].detach().cpu().contiguous()
        digest.update(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _text(entry: dict[str, Any]) -> str:
    return json.dumps(entry, allow_nan=False)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _drop_torn_line(path: Path) -> None:
    """Cut a last line without its newline: the process died while writing it, so nobody has relied on it."""
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        with path.open("r+b") as file:
            file.truncate(end)
