# SPDX-License-Identifier: Apache-2.0
"""The commands that README and docs print, read from their fenced blocks and sentences."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(p for folder in ("docs", "lab/docs", "lab/cards") for p in (ROOT / folder).rglob("*.md")),
    *sorted((ROOT / "poc_workspace").glob("*.md")),
    *sorted((ROOT / "jobs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
PROGRAMS = r"(?:fairflare|python|pytest|nvflare|make|pip|\w+\.sh)"
COMMAND = re.compile(rf"^(\$ )?((?:[A-Z_]+=\S+ )*(?:\S*/)?{PROGRAMS}(?: .*)?)$")


INLINE = re.compile(r"`((?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?(?:fairflare|python) [^`]+)`")
PATTERN = re.compile(r"(^|[ =/])[A-Z][A-Z_]*( |$|/)|\.\.\.")
"""A word in capitals stands for something else: what holds one is the form of a command."""
SUBJECT = re.compile(r"fairflare \w+ \S*\w\S* .*--(task|datalists|kind)|python ")
"""A command that says what it works on; `fairflare verify` in a sentence is a name."""


class Printed(NamedTuple):
    """One command of one page, its lines joined."""

    page: str
    text: str

    @property
    def words(self) -> list[str]:
        """The shell's words, without comments."""
        return shlex.split(self.text, comments=True)


def printed_commands() -> list[Printed]:
    """Every command in a fenced block or, whole, within a sentence, in the order of the pages."""
    found = []
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        text = page.read_text(encoding="utf-8")
        for language, body in FENCE.findall(text):
            if language in ("", "bash", "console", "sh"):
                found += [Printed(name, command) for command in _commands(body)]
        found += [Printed(name, command) for command in _inline(FENCE.sub("", text))]
    return found


def _inline(text: str) -> list[str]:
    spans = [" ".join(span.split()) for span in INLINE.findall(text)]
    return [span for span in spans if SUBJECT.search(span) and not PATTERN.search(span)]


def _commands(body: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", body)
    return [match[2].rstrip() for line in joined.splitlines() if (match := COMMAND.match(line.strip()))]
