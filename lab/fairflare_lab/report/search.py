# SPDX-License-Identifier: Apache-2.0
"""The page and the table of a search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairflare.report.frames import csv_text
from fairflare.report.values import (
    drawn,
    rendered_from,
)

Json = dict[str, Any]
HERE = Path(__file__).parent
"""The templates of this package."""
TRIAL_COLUMNS = ("score", "mean", "worst", "worst_site")


def trials_csv(found: Mapping[str, Any]) -> str:
    """A line per trial: number, each setting, score, mean and worst site on validation, and why one failed."""
    names, kept = list(found["over"]), (*TRIAL_COLUMNS, "reason")
    rows = found["trials"]
    lines = [[row["trial"], *(row["values"][name] for name in names), *(row[key] for key in kept)] for row in rows]
    return csv_text(["trial", *names, *kept], lines)


def render_search(found: Json) -> str:
    from fairflare_lab.report.search_figure import progress

    return rendered_from(HERE, "search", found=found, figures=drawn([progress(found)]))
