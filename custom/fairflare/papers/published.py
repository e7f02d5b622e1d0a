# SPDX-License-Identifier: Apache-2.0
"""Numbers that a paper printed, where they are at hand: facts in a CSV file with their source in the first line."""

from __future__ import annotations

import csv
from pathlib import Path

Published = dict[tuple[str, str], float]
"""(row, column) -> the printed number."""
FOLDER = Path(__file__).parent / "data"


def read(name: str) -> tuple[Published, str]:
    """The numbers of ``data/NAME.csv`` (columns row, column, value) and their source, the comment above them."""
    lines = (FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    source = lines[0].removeprefix("#").strip()
    return {(row["row"], row["column"]): float(row["value"]) for row in csv.DictReader(lines[1:])}, source
