# SPDX-License-Identifier: Apache-2.0
"""The notebooks run, are those that make.py writes, and are committed with outputs that name no machine."""

import functools
import json
import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "docs" / "notebooks"
NAMES = sorted(path.stem for path in HERE.glob("*.ipynb"))


@functools.cache
def make():
    """make.py, whose libraries take seconds to import: only the process that has these tests spends them."""
    found = runpy.run_path(str(HERE / "make.py"))
    assert sorted(found["NOTEBOOKS"]) == NAMES
    return found


def kept(name):
    import nbformat

    return nbformat.read(HERE / f"{name}.ipynb", as_version=4)


def results(notebook):
    """What each code cell shows last, as text."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [[out.get("data", {}).get("text/plain") for out in cell.outputs] for cell in cells]


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_notebook_is_whole(name):
    notebook, plain = kept(name), make()["made"](make()["NOTEBOOKS"][name])
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in plain.cells]
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert all(results(notebook)) and {out.output_type for out in outputs} <= {"execute_result", "display_data"}
    text = json.dumps([dict(out) for out in outputs])
    assert not any(root in text for root in ("/tmp", "/home", "/root", "/work", "/usr", str(Path.home())))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, monkeypatch):
    """Every cell runs and shows as many lines as the committed one; numbers may differ between machines."""
    monkeypatch.setenv("PYTHONPATH", str(HERE.parents[1] / "custom"))
    again = make()["executed"](make()["made"](make()["NOTEBOOKS"][name]))
    lines = [[[len(text.splitlines()) for text in cell] for cell in results(one)] for one in (again, kept(name))]
    assert lines[0] == lines[1]
