# SPDX-License-Identifier: Apache-2.0
"""The sentences of a Markdown page, without code, tables, headings, links' targets and formulas."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DROPPED = re.compile(
    r"^---\n.*?^---\n|<!--.*?-->|^ *```.*?^ *```|^ *~~~.*?^ *~~~|\$\$.*?\$\$|^(?: {4}|\t)[^\n]*$|^ *\|[^\n]*$|^#[^\n]*$"
    r"|^:::[^\n]*$|!\[[^\]]*\]\([^)]*\)|<[^>]+>",
    re.S | re.M,
)
FENCE = re.compile(
    r"^ *```.*?^ *```|<!-- ([\w ]+): begin.*?<!-- \1: end -->"
    r"|<!-- results: .*?<!-- end of results -->",
    re.S | re.M,
)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]*`|\$[^$]*\$")
BULLET = re.compile(r"^ *(?:[-*]|\d+\.) +", re.M)
END = re.compile(r"(?<=[.!?])(?<![ (][A-Z]\.)\)?\s+(?=[A-Z\"'(\d])|(?<=[.!?])\s+(?=code)|\n\s*\n")
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|et al|cf|vs|Fig|Eq|No|Sec|pp|approx)\.\s")


def pages() -> list[Path]:
    """Every page that people read: README and its neighbours, docs, and the lab's documents and cards."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
    folders = ("docs", "lab/docs", "lab/cards", "poc_workspace", "jobs")
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.md"))]
    return [*top, ROOT / "lab" / "README.md", *found]


def words(page: Path) -> int:
    """Words of a page: those of tables too, not those of fenced code and of tables that are made; numbers are none."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return sum(any(map(str.isalpha, one)) for one in text.split())


def sentences(text: str) -> list[str]:
    """Sentences in order; the end of a paragraph or of a list's item ends one."""
    plain = LINK.sub(r"\1", BULLET.sub("\n\n", DROPPED.sub("\n\n", text)))
    plain = ABBREVIATIONS.sub(r"\1 ", CODE.sub("code", plain).replace("*", ""))
    found = (" ".join(part.split()) for part in END.split(plain))
    return [one for one in found if len(re.findall(r"[A-Za-z]{2,}", one)) > 1]
