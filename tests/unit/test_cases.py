# SPDX-License-Identifier: Apache-2.0
"""Many cases in one test: all are tried, those that fail are named, and no case meets what another has left."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILE = """
    import os, pytest
    from cases import each

    @each("name, n", [("fine", 1), ("wrong", 2), ("broken", None), pytest.param("late", 0, id="zero")])
    @each("sign", [1, -1])
    def test_all(name, n, sign):
        print(f"tried {name} {sign}")
        assert n * sign < 2

    @each("k", range(3))
    def test_own(k, tmp_path, monkeypatch, capsys):
        assert not list(tmp_path.iterdir()) and "OF_A_CASE" not in os.environ and not capsys.readouterr().out
        (tmp_path / "file").touch()
        monkeypatch.setenv("OF_A_CASE", "1")
        print("said")

    @each("k", range(3))
    def test_some_skip(k):
        if k < 2: pytest.skip("none here")

    @each("k", range(3))
    def test_all_skip(k):
        pytest.skip("none anywhere")

    @each("k", ["first", "second", "third"], short=["second"])
    def test_few(k):
        print(f"went through {k}")

    @pytest.mark.timeout(0.2)
    @each("k", range(100))
    def test_slow(k):
        import time; print(f"waited {k}"); time.sleep(1)

    @each("k", range(2))
    def test_ends(k):
        raise SystemExit(k)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What pytest says of such a file."""
    folder = tmp_path_factory.mktemp("cases")
    (folder / "test_it.py").write_text(textwrap.dedent(FILE))
    options = 'parser.addoption("--only", default="")\n    parser.addoption("--long", action="store_true")\n'
    (folder / "conftest.py").write_text(f"def pytest_addoption(parser):\n    {options}")
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS}\nmarkers =\n    long: all cases\n")

    def run(*more):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "-s", *more, "."]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120).stdout

    return run


def test_every_case_is_tried_and_one_that_fails_is_named(told):
    said = told()
    assert all(f"tried {name} {sign}" in said for name in ("fine", "wrong", "broken", "late") for sign in (1, -1))
    failed = [line for line in said.splitlines() if line.startswith("_") and "test_all" in line]
    assert [line.strip("_ ") for line in failed] == [
        "test_all [1-wrong-2]", "test_all [1-broken-None]", "test_all [-1-broken-None]", "test_all",
    ]  # fmt: skip
    assert not any(f"test_{name} [" in said for name in ("own", "some_skip", "few"))
    assert "none here" not in said and "none anywhere" in said, "a test is skipped if all of it is"
    assert "went through second" in said and "went through first" not in said
    assert "waited 0" in said and "waited 1" not in said, "the time is that of the whole test"
    assert "test_ends [0]" in said and "test_ends [1]" in said
    assert "4 passed" not in said and "3 passed" in said and "1 skipped" in said


def test_cases_can_be_chosen_by_name(told):
    said = told("--only", "zero", "-k", "all")
    assert "tried late 1" in said and "tried fine" not in said
    assert "no case of this name" in told("--only", "nobody", "-k", "own")
    assert all(f"went through {k}" in told("--long", "-m", "long") for k in ("first", "second", "third"))
