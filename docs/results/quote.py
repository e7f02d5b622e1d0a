# SPDX-License-Identifier: Apache-2.0
"""Writes the tables that pages quote from the files beside this script; ``--check`` compares.

    python docs/results/quote.py [--check]

A page holds a pair of markers with a folder's name and the quantities to show, as ``runs.csv`` names them; what
stands between them is replaced:

    <!-- results: NAME | worst, corrupted -->
    <!-- end of results -->

``fairflare compare ... --tables docs/results/NAME`` wrote the folder; its command stands above the table. Without
``--check``, a compare.json that it has just written becomes ``runs.csv`` first, see ``kept.keep``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import kept  # noqa: E402

from fairflare.report.sections import quantities as known  # noqa: E402
from fairflare.report.values import text, with_interval  # noqa: E402

RESULTS = Path(__file__).resolve().parent
ROOT = RESULTS.parent.parent
PAGES = (ROOT / "README.md", RESULTS / "README.md", *sorted((ROOT / "docs" / "methods").glob("*.md")))
BLOCK = re.compile(r"(<!-- results: (?P<name>[\w-]+) \| (?P<what>[\w, ]+) -->\n)(.*?)(<!-- end of results -->)", re.S)


def main() -> int:
    """Write every page, or with --check name those that are not what the files say."""
    stale = []
    for fresh in RESULTS.glob("*/compare.json") if "--check" not in sys.argv else ():
        kept.keep(fresh.parent)
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = BLOCK.sub(_block, before)
        if after != before and "--check" in sys.argv:
            stale.append(page)
        elif after != before:
            page.write_text(after, encoding="utf-8")
    for page in stale:
        print(f"{page.relative_to(ROOT)}: its tables are not those of docs/results; run python docs/results/quote.py")
    return 1 if stale else 0


def _block(found: re.Match[str]) -> str:
    comparison = kept.comparison(RESULTS / found["name"])
    quantities = [name.strip() for name in found["what"].split(",")]
    return found[1] + quoted(comparison, quantities) + found[5]


def quoted(comparison: dict, quantities: list[str]) -> str:
    """The command, and a table with a row per method and for each quantity its value and the paired difference."""
    count = len(comparison["seeds"])
    header = [f"{comparison['headline']}, {count} seeds"]
    for name in quantities:
        header += [known()[name].label, "minus the first row"]
    rows = [header, ["---", *["--:"] * (len(header) - 1)]]
    for method in comparison["methods"]:
        row = [method["label"]]
        for name in quantities:
            row += [with_half_width(method[name]), _difference((method["versus_first"] or {}).get(name))]
        rows.append(row)
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"```\n{comparison['command']}\n```\n\n{table}\n\n"


def with_half_width(found: dict) -> str:
    """ "0.812 ± 0.010": a mean and half the width of its interval, where it has one, as these pages say."""
    half = "" if found["low"] is None else f" ± {text(found['high'] - found['mean'])}"
    return text(found["mean"]) + half


def _difference(paired: dict | None) -> str:
    return with_interval(paired) if paired and paired["mean"] is not None else ""


if __name__ == "__main__":
    sys.exit(main())
