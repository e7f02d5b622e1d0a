# SPDX-License-Identifier: Apache-2.0
"""A plugin is one file of at most 80 lines; one of a kind of task with its metrics and a task, of 100."""

from pathlib import Path

import pytest

SUPPORT = ("conftest", "runs")
FILES = [
    p for p in sorted(Path(__file__).parent.glob("*.py")) if p.stem not in SUPPORT and not p.stem.startswith("test_")
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_short(path):
    assert len(path.read_text().splitlines()) <= (100 if path.stem == "hazard" else 80)
