# SPDX-License-Identifier: Apache-2.0
"""What a site keeps of the audit log: the signed heads that it saw, and what it signed itself, in a file of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairflare.core.errors import DataError
from fairflare.core.schema import Answer, Instruction, audited
from fairflare.engine.hashes import model_hash
from fairflare.flare.credentials import Certificate
from fairflare.privacy.statements import LAST, SIGNED, answer_bytes, head_bytes, numbers_hash

ENDING = ".heads.jsonl"


class Heads:
    """One site's file of one federation, made with the first head; nothing is ever taken out of it.

    ``identity``: the site's own certificate and key, and the root.
    """

    def __init__(self, path: Path, site: str, identity: Certificate) -> None:
        self._path, self._site, self._identity = path, site, identity
        self._asked: tuple[str, int, str] | None = None

    def receive(self, instruction: Instruction) -> None:
        """Keep the head that came with a question.

        Raises:
            DataError: "head"; the federation's server has not signed it.
        """
        head: Mapping[str, Any] = instruction.log
        self._asked = None
        if not head:
            return
        try:
            plain = {name: str(head[name]) for name in ("log", "hash", "certificate", "signature")}
            kept = {**plain, "seq": int(head["seq"])}
            signed = self._identity.is_server(head_bytes(kept), plain)
        except (KeyError, TypeError, ValueError):
            signed = False
        if not signed:
            raise DataError("head", "the head of the log is not signed by this federation's server")
        task = LAST if head.get(LAST) else instruction.task
        self._append({"head": kept, "task": task, "round": instruction.round.number})
        if task in (*SIGNED, LAST):
            self._asked = task, instruction.round.number, plain["hash"]

    def sign(self, answer: Answer) -> dict[str, str]:
        """What goes with the answer, as it leaves, to the question received last; nothing where that had no head."""
        if self._asked is None:
            return {}
        told = json.loads(json.dumps(audited(vars(answer)), default=_plain))
        update = "" if answer.update is None else model_hash(answer.update)
        numbers = numbers_hash(told)
        proof = self._identity.sign(answer_bytes(self._site, *self._asked, update, numbers))
        task, round, head = self._asked
        said = {"site": self._site, "task": task, "round": round, "head": head, "update": update, "numbers": numbers}
        self._append({"signed": {**said, **proof}, "told": told})
        return {"numbers": numbers, **proof}

    def _append(self, line: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else float(value)
