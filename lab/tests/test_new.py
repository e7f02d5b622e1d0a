# SPDX-License-Identifier: Apache-2.0
"""``fairflare new``: what it writes works, passes its own test and the kit, and overwrites nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core import registry

ROOT = Path(__file__).parents[2]
KINDS = ("rule", "trainer", "probe")


def new(*arguments):
    with pytest.raises(SystemExit) as end:
        main(["new", *map(str, arguments)])
    return end.value.code


def in_its_folder(folder, *command):
    """The command as its user would give it, with the packages importable and nothing else of this checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FAIRFLARE_")}
    kept["PYTHONPATH"] = os.pathsep.join((str(ROOT / "custom"), str(ROOT / "lab")))
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, env=kept, capture_output=True, text=True, timeout=180
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a plugin of each kind."""
    folder = tmp_path_factory.mktemp("new") / "made"
    for kind in KINDS:
        assert new(kind, f"my-{kind}", "--out", folder) == 0
    names = {name for kind in KINDS for name in (f"my_{kind}.py", f"test_my_{kind}.py", f"my-{kind}.md")}
    assert {path.name for path in folder.iterdir()} == names
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_passes_its_own_test(kind, made):
    done = in_its_folder(made, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"test_my_{kind}.py")
    assert done.returncode == 0, done.stdout[-3000:]


def test_what_is_written_keeps_the_rules_of_this_repository(made):
    for command in (("check", "-q"), ("format", "-q", "--check")):
        tool = [sys.executable, "-m", "ruff", *command, "--config", ROOT / "pyproject.toml", *made.glob("*.py")]
        tool += ["--extend-per-file-ignores", "test_*.py:D1"] * (command[0] == "check")
        done = subprocess.run([str(word) for word in tool], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_what_is_written_runs(made, tmp_path):
    """From another folder than the plugins', each as a method of its own."""
    code = f"""
import os
os.environ["FAIRFLARE_PLUGINS"] = {os.pathsep.join(str(made / f"my_{kind}.py") for kind in KINDS)!r}
from fairflare.cli.main import main
for kind in {KINDS}:
    try:
        main(["run", f"my-{{kind}}", "--task", "support2", "--rounds", "1", "--no-solo", "--out", kind])
    except SystemExit as end:
        assert not end.code, kind
"""
    done = in_its_folder(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr[-2000:]
    for kind in KINDS:
        assert json.loads((tmp_path / kind / "report.json").read_text())["status"] == "completed"


def test_the_files_are_told(tmp_path, capsys):
    assert new("rule", "my-own", "--out", tmp_path / "made", "--json") == 0
    files = [Path(name) for name in json.loads(capsys.readouterr().out)["files"]]
    assert [path.name for path in files] == ["my_own.py", "test_my_own.py", "my-own.md"]


def test_the_card_is_of_what_was_written(tmp_path, capsys):
    assert new("rule", "my-own", "--out", tmp_path) == 0
    shown, card = capsys.readouterr().out, (tmp_path / "my-own.md").read_text()
    assert "# My own (`my-own`)" in card and "`power`" in card
    assert f"FAIRFLARE_PLUGINS={tmp_path / 'my_own.py'}" in shown.replace("\n", "")
    assert "fairflare run my-own --task support2" in card


@pytest.mark.parametrize("there", ["my_own.py", "test_my_own.py", "my-own.md"])
def test_nothing_is_overwritten(there, tmp_path, capsys):
    (tmp_path / there).write_text("mine")
    assert new("rule", "my-own", "--out", tmp_path) == 2
    assert "is there already; nothing was written" in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == [there] and (tmp_path / there).read_text() == "mine"


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "my_own.py").symlink_to(tmp_path / "elsewhere.py")
    assert new("probe", "my-own", "--out", tmp_path) == 2
    assert not (tmp_path / "elsewhere.py").exists()


@each("name", ["My", "../up", "a b", "a_b", "a--b", "class", "", "x" * 41, "a/b", "é"])
def test_names_that_fit_no_file_are_refused(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert new("rule", name) == 2
    assert "expected a name of lower-case words" in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


TAKEN = [("rule", "fedavg"), ("trainer", "gsam"), ("probe", "sharpness"), ("probe", "fedce")]


@pytest.mark.parametrize("kind, name", TAKEN)
def test_a_name_that_is_taken_is_refused(kind, name, tmp_path, capsys):
    assert new(kind, name, "--out", tmp_path) == 2
    assert f"{name!r} already" in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir()) and name in {*registry.parts(kind), *registry.methods()}
