# SPDX-License-Identifier: Apache-2.0
"""What ``fairflare paper`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from fairflare.cli.console import _entry, _indented, say
from fairflare.studies.display import out


def papers(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of ``fairflare paper``."""
    from fairflare_lab.studies.paper_list import in_words

    paper = ""
    for row in rows:
        if row["paper"] != paper:
            paper = row["paper"]
            out.print(f"\n{escape(paper)}")
        _entry(row["name"], row["title"])
        _indented(f"{row['runs']} runs, {in_words(row['seconds'])} on {row['cores']} cores")
        _indented(*map(_data_words, row["data"]))


def exhibit(found: Mapping[str, Any]) -> None:
    """Which files an exhibit is in, with the tables themselves."""
    path = next((Path(file) for file in found["files"] if file.endswith(".md")), None)
    if path is not None:
        out.print(escape(path.read_text(encoding="utf-8")), soft_wrap=True)
    for file in found["files"]:
        say(f"{Path(file).suffix.lstrip('.')}: {file}")


def _data_words(data: Mapping[str, Any]) -> str:
    if data["here"]:
        whose = " (your copy)" if data["needs"] else ", which comes with the package"
        return f"{data['title']}: {data['task']}{whose}"
    instead = f"; otherwise {data['stand_in']} stands for it" if data["stand_in"] else "; nothing stands for it"
    return f"{data['title']}: needs {', '.join(data['needs'])} in FAIRFLARE_DATA{instead}"
