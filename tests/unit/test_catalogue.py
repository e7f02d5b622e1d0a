# SPDX-License-Identifier: Apache-2.0
"""What is listed without importing it is what the registry holds; once anything differs the registry is asked."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cases import each
from fairflare.app import catalogue
from fairflare.app.cli import main
from fairflare.core import plugins

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "monai", "numpy", "sklearn", "scipy", "nvflare", "pandas", "matplotlib", "PIL", "cryptography")


def python(*arguments):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FAIRFLARE_")}
    kept["PYTHONPATH"] = str(ROOT / "custom")
    return subprocess.run([sys.executable, *arguments], env=kept, capture_output=True, text=True, timeout=120)


def test_the_catalogue_is_what_the_registry_holds():
    done = python(str(ROOT / "docs" / "write_catalogue.py"), "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@each(
    "command",
    [
        ["--help"],
        ["run", "--help"],
        ["list"],
        ["list", "--parts"],
        ["list", "--json"],
        ["tasks"],
        ["tasks", "--json"],
        ["new", "rule", "my-own"],
        ["run", "--no-such-option"],
        ["no-such-command"],
    ],
    ids=" ".join,
)
def test_what_trains_nothing_imports_nothing_that_trains(command, tmp_path):
    if command[0] == "new":
        command = [*command, "--out", str(tmp_path)]
    code = f"""
import sys
from fairflare.app.cli import main
try:
    main({command!r})
except SystemExit as end:
    code = end.code
print("imported:", code, *sorted(set({HEAVY!r}) & set(sys.modules)))
"""
    done = python("-c", code)
    expected = 2 if "no-such" in " ".join(command) else 0
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == f"imported: {expected}", done.stdout + done.stderr


def copied(tmp_path):
    """A copy of the files that declare something, and what a catalogue says of them."""
    for room in catalogue.ROOMS:
        shutil.copytree(catalogue.PACKAGE / room, tmp_path / room, dirs_exist_ok=True)
    return tmp_path, {catalogue.SOURCES: catalogue.sources(tmp_path)}


def test_a_file_that_changed_came_or_went_is_noticed(tmp_path, monkeypatch):
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    package, known = copied(tmp_path)
    rule = package / "aggregators" / "fedavg.py"
    text = rule.read_text()
    assert catalogue.is_current(package, known)
    rule.write_text(text.replace("examples", "example"))
    assert not catalogue.is_current(package, known)
    rule.write_text(text)
    (package / "datasets" / "new.py").write_text("")
    assert not catalogue.is_current(package, known)
    (package / "datasets" / "new.py").unlink()
    assert catalogue.is_current(package, known)
    (package / "trainers" / "ditto.py").unlink()
    assert not catalogue.is_current(package, known)
    assert not catalogue.is_current(package, {})


def test_with_a_plugin_the_registry_is_asked(monkeypatch):
    known = {catalogue.SOURCES: catalogue.sources(catalogue.PACKAGE)}
    monkeypatch.setenv(plugins.VARIABLE, str(Path(__file__).parent / "toy_rule.py"))
    assert not catalogue.is_current(catalogue.PACKAGE, known)
    monkeypatch.delenv(plugins.VARIABLE)
    assert catalogue.is_current(catalogue.PACKAGE, known)
    monkeypatch.setattr(plugins, "_entry_points", lambda: ("installed",))
    assert not catalogue.is_current(catalogue.PACKAGE, known)


@pytest.mark.parametrize("command", [["list"], ["list", "--parts"], ["tasks"], ["tasks", "--json"]], ids=" ".join)
def test_both_ways_print_the_same(command, monkeypatch, capsys):
    """From rows that the registry made, and from rows that were JSON in between."""
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    printed = []
    for known in ({}, json.loads(json.dumps(catalogue.described()))):
        monkeypatch.setattr(catalogue, "_known", lambda known=known: known)
        with pytest.raises(SystemExit):
            main(command)
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


def rows():
    return {row["id"]: row for row in catalogue.method_rows()}


@each("id", rows())
def test_a_method_says_all_of_itself(id):
    """Card, paper, cost, what leaves and comes, what it needs, parts and settings."""
    row = rows()[id]
    assert (ROOT / row["card"]).is_file() and row["url"].startswith("https://") and row["paper"]
    assert row["passes"]["forward"] >= 1 and row["passes"]["backward"] >= 1 and row["exchanges"] in (1, 2, "several")
    assert row["cost"] == pytest.approx((row["passes"]["forward"] + 2 * row["passes"]["backward"]) / 3, abs=0.006)
    assert all(one["number"] and one["range"] and one["meaning"] for one in row["sends"])
    assert all(one["tensors"] and one["meaning"] for one in row["receives"])
    assert {"trainer", "probes", "rule", "selector", "server_optimizer", "parameters", "needs"} <= set(row)


def test_what_is_listed_of_a_few_methods():
    found = rows()
    assert [one["number"] for one in found["scaffold"]["sends"]] == ["control_change/<entry>"]
    assert [one["tensors"] for one in found["scaffold"]["receives"]] == ["control"]
    assert found["fedlwr"]["exchanges"] == 2 and found["fedavg"]["exchanges"] == 1
    assert any("BatchNorm" in need for need in found["fedbn"]["needs"]) and found["fedavg"]["needs"] == []
    assert any("sgd" in need for need in found["scaffold"]["needs"])
    assert any("class label" in need for need in found["moon"]["needs"])
