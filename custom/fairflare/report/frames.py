# SPDX-License-Identifier: Apache-2.0
"""Tables of records as the templates take them, and as CSV and Markdown.

Names come from sites, plugins and files: every writer escapes what its form would otherwise read as markup or a
spreadsheet's formula. Where people read numbers they are rounded; CSV keeps them whole.
"""

from __future__ import annotations

import os
import platform
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from fairflare.report.values import Estimate

Json = dict[str, Any]
NUMBER = re.compile(r"[-+−]?[\d.]+( (to|of|±) [-+−]?[\d.]+)?|–|")
MARKUP = re.compile(
    r"[\\|`*~$\[\]<>]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # not within a word, where it is no emphasis
    r"|&(?=#?\w+;)|:(?=//)|(?<=www)\.",
    re.I,
)
"""What a backslash stands before in Markdown."""


def shown(
    rows: Iterable[Mapping[str, Any]],
    caption: str,
    label: str = "",
    worst: Iterable[Any] = (),
    notes: Iterable[str] = (),
) -> Json:
    """A table of a page as the templates take it: heads, and rows of title and cells.

    A row is a mapping from heading to cell, the first of which names it; a cell is a text, a whole number, a number, an
    ``Estimate``, or None: there is none.

    Not by pandas' Styler, which escapes no caption, marks no heading for screen readers and takes ten times as long.

    Args:
        label: its name for screen readers, on a page once; by default the first words of the caption.
        worst: names of rows, or positions, that stand out.
    """
    held, worse = list(rows), set(worst) - {None}
    columns = list(dict.fromkeys(name for row in held for name in row))
    cells = [[_cell(row.get(name, "")) for name in columns] for row in held]
    words = {k for row in cells for k, (said, _) in enumerate(row) if not NUMBER.fullmatch(said)} | {0}
    return {
        "caption": caption,
        "label": label or caption.partition(":")[0],
        "notes": list(notes),
        "heads": [[name] if k in words else name for k, name in enumerate(columns)],
        "rows": [
            {
                "title": row[0][0],
                "worst": place in worse or row[0][0] in worse,
                "cells": [(*cell, k in words) for k, cell in enumerate(row) if k],
            }
            for place, row in enumerate(cells)
        ],
    }


def _cell(value: Any) -> tuple[str, str]:
    """What a cell says, and what stands below it in grey."""
    if isinstance(value, (str, int)):
        return str(value), ""
    found = Estimate.of(value)
    return found.value, found.ends()


def piped(lines: Iterable[Iterable[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def csv_text(heads: Iterable[str], lines: Iterable[Iterable[Any]]) -> str:
    """Lines of CSV: None is empty, and no text is a formula."""
    import pandas as pd

    quoted = [[spreadsheet(value) if isinstance(value, str) else value for value in line] for line in lines]
    return pd.DataFrame(quoted, columns=list(heads), dtype=object).to_csv(index=False, lineterminator="\n")


def markdown(text: Any) -> str:
    """Text with everything that Markdown reads as markup, an entity or a web address written out."""
    return MARKUP.sub(r"\\\g<0>", _plain(text))


def spreadsheet(text: str) -> str:
    """Text that no spreadsheet computes: what begins as a formula, after blanks or in wide forms too, is quoted."""
    found = _plain(text)
    first = unicodedata.normalize("NFKC", found.lstrip()[:1])
    return f"'{found}" if first in ("=", "+", "-", "@") and found != "-" else found


def machine() -> str:
    """Architecture, cores and Python of this machine, without its name."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _plain(text: Any) -> str:
    """One line of characters that have a shape."""
    return "".join(char for char in re.sub(r"\s+", " ", str(text)) if char.isprintable())
