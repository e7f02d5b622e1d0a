# SPDX-License-Identifier: Apache-2.0
"""What a site was asked for after the last round: of one model, with one set of sites, told one total, once per run.

A second model would show its cases from another side, and two sums that differ by a site would show that site's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairflare.core.types import Round
from fairflare.engine.files import is_there, read_json
from fairflare.engine.state import save_json

ENDING = ".asked.json"


class AskedAgain(Exception):
    """Something that a site does not do a second time, or not yet; the text holds no number of the site's."""


def asked_file(memory: Path) -> Path:
    """Where it is kept, beside the site's memory: "site-1.asked.json" beside "site-1.safetensors"."""
    return memory.with_name(memory.stem + ENDING)


class Asked:
    """The first question; the same may come again, as after a kill, and is answered the same.

    Args:
        path: the file that survives a restart; None keeps it in this object only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._first: dict[str, Any] = {}
        if path is not None and is_there(path):
            self._first = read_json(path)

    def check(self, model: str, sites: Sequence[str], total: Sequence[float] | None = None) -> None:
        """Raise AskedAgain for another question than the first, or for results before the sums.

        Args:
            model: hash of the model whose outputs the cases are of.
            sites: those in a sum that hides each of them; none in the clear.
            total: the sums over all sites that results are asked for with; None: the site's own sums are asked for.
        """
        question = _question(model, sites, total)
        if total is not None and "sites" not in self._first:
            raise AskedAgain("results before the sums")
        for name, value in question.items():
            if self._first.get(name, value) != value:
                raise AskedAgain(f"another {name} than the first after the last round")

    def is_of(self, model: str) -> bool:
        """Whether nothing was asked so far of another model; from now on nothing will be answered of another."""
        if self._first.get("model", model) != model:
            return False
        self._note({"model": model})
        return True

    def keep(self, model: str, sites: Sequence[str], total: Sequence[float] | None = None) -> None:
        """Take note of what was checked and is about to be answered."""
        self._note(_question(model, sites, total))

    def once(self, name: str, model: str) -> None:
        """Take note of the model that ``name`` is asked with; raise AskedAgain for another than the first."""
        if self._first.get(name, model) != model:
            raise AskedAgain(f"{name} with another model than the first after the last round")
        self._note({name: model})

    def _note(self, question: Mapping[str, Any]) -> None:
        first = {**self._first, **question}
        if first != self._first and self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_json(self._path, first)
        self._first = first


def check_last(round: Round, rounds: int) -> None:
    """Raise AskedAgain unless it is the last of ``rounds``."""
    if round != Round(rounds, rounds):
        raise AskedAgain("before the last round")


def _question(model: str, sites: Sequence[str], total: Sequence[float] | None) -> dict[str, Any]:
    question: dict[str, Any] = {"model": model, "sites": sorted(sites)}
    if total is not None:
        question["total"] = hashlib.sha256(json.dumps([float(value) for value in total]).encode()).hexdigest()
    return question
