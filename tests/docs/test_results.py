# SPDX-License-Identifier: Apache-2.0
"""README's figures are those of docs/results, whose files say which command, versions and machine made them."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner
from printed_commands import ROOT

from fairflare.app import cli
from fairflare.app.describe import method_rows
from fairflare.report.tables import as_csv

RESULTS = ROOT / "docs" / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/compare.json"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
FIGURE = re.compile(r"(?<![\w.])[+\u2212-]?\d\.\d{3}(?!\d)")


def test_there_are_results():
    assert FOLDERS


def test_the_pages_quote_the_files_as_they_are(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quote.py", "--check"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(RESULTS / "quote.py"), run_name="__main__")
    assert stop.value.code == 0, capsys.readouterr().out


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_of_results_agrees_with_itself(folder):
    comparison = json.loads((folder / "compare.json").read_text())
    page = (folder / "compare.md").read_text(encoding="utf-8")
    assert comparison["command"] in page and "torch" in page and "cores" in page
    assert f"--tables docs/results/{folder.name}" in comparison["command"]
    assert (folder / "compare.csv").read_text() == as_csv(comparison)
    for row in csv.DictReader((folder / "compare.csv").open()):
        method = next(m for m in comparison["methods"] if m["label"] == row["method"])
        values = [run[row["quantity"]] for run in method["runs"]]
        known = [value for value in values if value is not None]
        assert float(row["mean"]) == pytest.approx(sum(known) / len(known))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_command_behind_a_result_is_one_that_can_be_typed(folder, monkeypatch, tmp_path):
    """Everything but the runs: methods, settings and seeds are accepted, and the tables written where they are."""
    comparison = json.loads((folder / "compare.json").read_text())
    command, seen = comparison.pop("command"), []

    def compare_all(configs, *args, **kwargs):
        seen.extend(configs)
        return comparison

    monkeypatch.setattr("fairflare.app.runs.compare_all", compare_all)
    monkeypatch.setattr("fairflare.app.console.comparison", lambda *args: None)
    monkeypatch.chdir(tmp_path)
    here = tmp_path / "docs" / "results" / folder.name
    shutil.copytree(folder, here)
    (here / "compare.csv").unlink()
    done = CliRunner().invoke(cli.cli, shlex.split(command)[1:], obj=command, catch_exceptions=False)
    assert done.exit_code == 0 and len(seen) == len(comparison["methods"]) * len(comparison["seeds"])
    for name in ("compare.csv", "compare.json"):
        assert (here / name).read_text() == (folder / name).read_text()


def test_every_figure_of_the_readme_is_in_a_result():
    known = set()
    for folder in FOLDERS:
        known |= set(FIGURE.findall((folder / "compare.md").read_text(encoding="utf-8")))
    known |= {figure.lstrip("+\u2212-") for figure in known}
    prose = re.sub(r"^```.*?^```", "", README, flags=re.S | re.M)
    strange = [figure for figure in FIGURE.findall(prose) if figure.replace("-", "\u2212") not in known]
    assert not strange, strange


def test_the_cost_of_a_method_is_the_one_that_list_prints():
    """README's table shows some of the methods; ``fairflare list`` shows all."""
    costs = {row["id"]: row["cost"] for row in method_rows()}
    shown = re.findall(r"^\| `([a-z-]+)` \|[^|]*\| ([0-9.]+) x", README, flags=re.M)
    assert {"fedavg", "fedism-plus"} <= {id for id, _ in shown} <= set(costs)
    for id, cost in shown:
        assert f"{float(cost):.1f}" == f"{costs[id]:.1f}", id


@pytest.mark.parametrize("id", [row["id"] for row in method_rows()])
def test_every_method_has_a_card(id):
    card = (ROOT / "docs" / "methods" / f"{id}.md").read_text(encoding="utf-8")
    assert card.startswith("# ") and f"(`{id}`)" in card.splitlines()[0]
    assert all(f"**{part}" in card for part in ("What it is for.**", "Rule", "Cost.**", "Attribution.**"))


def test_the_tables_of_recalibration_are_those_of_its_file():
    made = runpy.run_path(str(RESULTS / "recalibration.py"))
    rows, page = made["read"](), (RESULTS / "recalibration" / "recalibration.md").read_text(encoding="utf-8")
    assert {row["task"] for row in rows} == set(made["TASKS"])
    for task in made["TASKS"]:
        own = [row for row in rows if row["task"] == task]
        assert {row["seed"] for row in own} == set(made["SEEDS"])
        assert "\n".join(made["table"](own)) in page


@pytest.mark.slow
def test_recalibration_is_measured_at_toy_size(monkeypatch, capsys):
    script, folder = RESULTS / "recalibration.py", RESULTS / "recalibration"
    kept, run = {path: path.read_bytes() for path in folder.iterdir()}, subprocess.run

    def in_process(words, **options):
        if words[1:3] != ["-m", "fairflare"]:
            return run(words, **options)
        return CliRunner().invoke(cli.cli, words[3:], obj=shlex.join(words), catch_exceptions=False)

    monkeypatch.setattr(subprocess, "run", in_process)
    monkeypatch.setattr(sys, "argv", [script.name, "--toy"])
    runpy.run_path(str(script), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    ways = [line.split("|")[1].strip() for line in lines[2:]]
    assert ways == ["the model as it is", "one line for all", "line of each site's own"]
    assert all(FIGURE.search(line) for line in lines[2:]) and "nan" not in "".join(lines)
    assert {path: path.read_bytes() for path in folder.iterdir()} == kept
