# SPDX-License-Identifier: Apache-2.0
"""Tables to keep: what the comparison says, in CSV and Markdown, with the command behind it."""

import csv
import io
import json
import sys

import pytest

from fairflare.cli import main as cli
from fairflare.report.compare import compare
from fairflare.report.compare_page import comparison_markdown as as_markdown
from fairflare.report.compare_tables import CSV_COLUMNS as COLUMNS
from fairflare.report.compare_tables import comparison_csv as as_csv
from fairflare.report.frames import machine


@pytest.fixture
def comparison(make_run):
    return compare([make_run("A", 0), make_run("A", 1), make_run("B", 0, 0.02), make_run("B", 1, 0.04)])


def test_csv_holds_means_and_paired_differences(comparison):
    rows = list(csv.DictReader(io.StringIO(as_csv(comparison))))
    worst = next(row for row in rows if (row["method"], row["quantity"]) == ("B", "worst"))
    assert tuple(worst) == COLUMNS
    assert [float(worst[key]) for key in ("mean", "difference")] == pytest.approx([0.63, 0.03])
    assert (worst["n"], worst["wins"]) == ("2", "2")
    first = next(row for row in rows if (row["method"], row["quantity"]) == ("A", "worst"))
    assert first["difference"] == ""


def test_markdown_names_command_versions_and_machine(comparison):
    page = as_markdown(comparison, "fairflare compare a b", {"torch": "2.13.0"})
    assert "fairflare compare a b" in page and "torch 2.13.0" in page and machine() in page
    assert "| worst site | 0.600 ± 0.000 | 0.630 ± 0.014 |" in page
    assert "+0.030 [−0.097, +0.157], 2 of 2" in page


def test_names_of_methods_are_no_formulas_and_no_markup(make_run):
    evil = "=1+1 | _x_ [a](https://b.example)"
    found = compare([make_run("A", 0), make_run("A", 1), make_run(evil, 0), make_run(evil, 1)])
    labels = {row["method"] for row in csv.DictReader(io.StringIO(as_csv(found)))}
    assert labels == {"A", f"'{evil}"}
    page = as_markdown(found, "fairflare compare a b", {})
    assert r"| final model | A | =1+1 \| \_x\_ \[a\](https\://b.example) |" in page
    assert "](" not in page.replace("\\](", "") and "_x_" not in page


FILES = ["compare.csv", "compare.json", "compare.md"]


def test_compare_writes_its_tables(tmp_path, monkeypatch, capsys):
    tables = tmp_path / "tables"
    arguments = ["compare", "fedavg", "--task", "support2", "--rounds", "1", "--tables", str(tables)]
    monkeypatch.setattr(sys, "argv", ["fairflare"])
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments, "--out", str(tmp_path / "runs")])
    assert end.value.code == 0, capsys.readouterr().err
    kept = json.loads((tables / "compare.json").read_text())
    assert kept["command"].startswith("fairflare compare fedavg --task support2")
    assert kept["command"].endswith("--tables tables --out runs"), "no folder of this machine"
    assert kept["command"] in (tables / "compare.md").read_text()
    assert sorted(path.name for path in tables.iterdir()) == FILES


def test_tables_replace_nobodys_files(tmp_path, monkeypatch, capsys):
    (tmp_path / "compare.md").write_text("mine")
    monkeypatch.setattr("fairflare.studies.comparison.compare_all", lambda *args, **kwargs: pytest.fail("it ran"))
    with pytest.raises(SystemExit) as end:
        cli.main(["compare", "fedavg", "--task", "support2", "--tables", str(tmp_path)])
    told = capsys.readouterr().err
    assert end.value.code == 2 and "compare.md" in told and told.count("\n") == 1
    assert (tmp_path / "compare.md").read_text() == "mine"
