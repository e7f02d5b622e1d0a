# SPDX-License-Identifier: Apache-2.0
"""The items of the documents, filled in: what the run says, what a human says, what is blank."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairflare.report.evidence.run import RESULTS, Run, table

TOKEN = re.compile(r"\{([^{}]+)\}")
SCORE = "score"
OTHER = ("documents", "notes", SCORE)


@dataclass(frozen=True)
class Part:
    """A part of an item.

    Attributes:
        kind: "evidence" (the run's) or "human".
        text: blank where nobody says it.
        sources: pointers into report, log and configuration; of a human's part the key.
        rows: of results, in place of a text.
    """

    kind: str
    text: str
    sources: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...] = ()

    @property
    def state(self) -> str:
        return self.kind if self.text or self.rows else "blank"


@dataclass(frozen=True)
class Entry:
    """An item of a document, with what is asked in words."""

    item: str
    what: str
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return " ".join(part.text for part in self.parts if part.text)

    @property
    def sources(self) -> list[str]:
        return [source for part in self.parts if part.state != "blank" for source in part.sources]

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row for part in self.parts for row in part.rows]


def questions() -> Mapping[str, Mapping[str, str]]:
    """Section -> key of the human's YAML -> question."""
    return table("human.yaml")


def documents() -> list[str]:
    return [name for name in table("items.yaml") if name not in OTHER]


def fill(document: str, run: Run, human: Mapping[str, str]) -> list[Entry]:
    """The items of a document; ``human``: key -> text, blank where it is missing."""
    return [_entry(row, run, human) for row in table("items.yaml")[document]]


def _entry(row: Mapping[str, Any], run: Run, human: Mapping[str, str]) -> Entry:
    parts = []
    if "say" in row:
        parts.append(_said(_list(row["say"]), run))
    if "results" in row:
        rows = tuple(RESULTS[row["results"]](run))
        parts.append(Part("evidence", "", tuple(one["source"] for one in rows), rows))
    parts += [Part("human", human.get(key, ""), (f"human: {key}",)) for key in _list(row.get("human", []))]
    return Entry(row["item"], row.get("what", ""), tuple(parts))


def _said(sentences: Sequence[str], run: Run) -> Part:
    texts, sources = [], []
    for sentence in sentences:
        found = {token: run.value(token) for token in TOKEN.findall(sentence)}
        if all(found.values()):
            texts.append(TOKEN.sub(lambda match: found[match[1]][0], sentence))  # type: ignore[index]  # noqa: B023 - used at once
            sources += [one for said in found.values() for one in said[1]]  # type: ignore[index]  # none is None
    return Part("evidence", " ".join(texts), tuple(dict.fromkeys(sources)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def shares(entries: Sequence[Entry]) -> dict[str, int]:
    """How many parts of a document the run, a human and nobody fills; the words that a part holds are not judged."""
    states = [part.state for entry in entries for part in entry.parts]
    return {kind: states.count(kind) for kind in ("evidence", "human", "blank")}


def score(bom: Any) -> tuple[float, list[str]]:
    """Completeness of a BOM in 0 to 100, and the fields that it lacks: see the end of ``items.yaml``."""
    total, lacks = 0.0, []
    for category in table("items.yaml")[SCORE].values():
        missing = [name for name, path in category["fields"].items() if not _holds(bom, path.split("/"))]
        total += category["weight"] * (1 - len(missing) / len(category["fields"]))
        lacks += missing
    return round(total, 1), lacks


def _holds(found: Any, steps: Sequence[str]) -> bool:
    for step in steps:
        if isinstance(found, list):
            named = [one for one in found if step in (one.get("name"), one.get("type"))]
            found = found[int(step)] if step.isdigit() and len(found) > int(step) else (named or [None])[0]
        else:
            found = found.get(step) if isinstance(found, Mapping) else None
    return bool(found)
