# SPDX-License-Identifier: Apache-2.0
"""Every benchmark runs, at a size that says nothing about speed, and prints figures that are finite numbers."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))
COSTLY = ("many_images", "peers", "soak", "soak_flare", "start_up", "transport_memory", "volumes")
COSTLY += ("where_seconds_go", "workers")
"""Five to sixteen CPU seconds each even so: ``make test-long`` runs them."""


@pytest.fixture(autouse=True)
def same_threads():
    """Benchmarks set torch's number of threads for their process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=[pytest.mark.long] * (name[:-3] in COSTLY)) for name in SCRIPTS]
)
def test_a_benchmark_runs_at_toy_size(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--toy"])
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    runpy.run_path(str(FOLDER / script), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(r"\d+\.\d+", printed), printed
    assert "nan" not in printed.lower() and "inf" not in printed.lower().replace("information", ""), printed


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_is_in_the_table(script):
    assert f"benchmarks/{script}" in (FOLDER.parent / "docs" / "benchmarks" / "README.md").read_text()


def test_the_page_on_robustness_has_the_tables_of_what_is_stored(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    robustness = runpy.run_path(str(FOLDER / "robustness.py"))
    page = robustness["PAGE"].read_text()
    assert robustness["with_tables"](page) == page
    assert min(page.count(f"<!-- {name}: {end} -->") for name in ("bounded", "honest") for end in ("begin", "end")) == 1
