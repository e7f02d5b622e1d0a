# SPDX-License-Identifier: Apache-2.0
"""A plugin is one file of at most 80 lines; a kind of task with its metrics and a task has 100, an exchange 120."""

from pathlib import Path

import pytest

SUPPORT = ("conftest", "runs")
MAX_LINES = {"hazard": 100, "quantile": 120}
FILES = [
    p for p in sorted(Path(__file__).parent.glob("*.py")) if p.stem not in SUPPORT and not p.stem.startswith("test_")
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_short(path):
    assert len(path.read_text().splitlines()) <= MAX_LINES.get(path.stem, 80)
