# SPDX-License-Identifier: Apache-2.0
"""`fairflare paper` on a toy table: runs made once, gone on with after a kill, files in all forms, the list."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairflare.cli import main as cli
from fairflare.core.errors import RunFailed, UserError
from fairflare.report.write import verify_run
from fairflare_lab.papers.declaration import PAPERS, Block, Column, Data, Exhibit, Row, Table
from fairflare_lab.studies import paper
from fairflare_lab.studies.paper import Choices, make_exhibit
from fairflare_lab.studies.paper_list import _data_of, paper_rows, preset_pairs

OWN = Data("own", "Patients of four hospitals", "covid-brazil:regions", ("covid_brazil.csv",), "support2", "SUPPORT2")
COLUMNS = (
    Column("site", "site", "sites"),
    Column("mean", "Mean", "over-sites", {"which": "mean"}),
    Column("std", "Std", "over-sites", {"which": "std", "ddof": 1}, better="lower"),
)
ROWS = (Row("fedavg", "FedAvg", "fedavg"), Row("uniform", "Uniform", "fedavg:weighting=uniform"))
TOY = Exhibit("toy-1", "A toy", (Table("1", "Two methods", ROWS, (Block(OWN, COLUMNS),), seeds=(0, 1)),))
CURVE = Table("c", "A sweep", ROWS, (Block(OWN, COLUMNS[1:]),), seeds=(0, 1), draw="curve", axes=("x", "AUC"))
CHOICES = Choices(rounds=1, values={"model": "linear"}, stand_in=True)
KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_paper_command import CHOICES, TOY, make_exhibit
from fairflare_lab.studies import paper
from pathlib import Path
first, done = paper.run_once, []
def run(config, folder, **more):
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    done.append(folder)
    return first(config, folder, **more)
paper.run_once = run
make_exhibit(TOY, Path({out!r}), CHOICES, workers=1)
"""


def models(folder):
    return {log.parent.name: verify_run(log.parent)[-1]["model_sha256"] for log in folder.glob("*/*/audit.jsonl")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, make_exhibit(TOY, folder, CHOICES, command="fairflare paper toy-1", workers=1)


def test_a_table_is_written_in_every_form(made):
    folder, found = made
    assert {Path(file).suffix for file in found["files"]} == {".md", ".csv", ".html", ".json"}
    content = json.loads((folder / "papers" / "toy-1.json").read_text())
    assert content["facts"]["Command"] == "fairflare paper toy-1"
    page = (folder / "papers" / "toy-1.md").read_text()
    assert "Patients of four hospitals is not here: measured on support2" in page and "FedAvg" in page
    rows = list(csv.DictReader((folder / "papers" / "toy-1.csv").open()))
    assert {row["row"] for row in rows} == {"fedavg", "uniform"} and all(row["n"] == "2" for row in rows)
    report = json.loads(next(folder.glob("*/fedavg-seed0/report.json")).read_text())
    own = [float(row["value"]) for row in rows if row["row"] == "fedavg" and row["column"] == "mean"]
    other = json.loads(next(folder.glob("*/fedavg-seed1/report.json")).read_text())
    assert own == [pytest.approx((report["fairness"]["mean"] + other["fairness"]["mean"]) / 2)]


def test_tables_share_their_runs(made, monkeypatch):
    folder, _ = made
    monkeypatch.setattr("fairflare.studies.runs.execute", lambda *args, **more: pytest.fail("a run was made again"))
    found = make_exhibit(Exhibit("toy-figure", "The same", (CURVE,)), folder, CHOICES, workers=1)
    assert found["runs"] == 4 and [file for file in found["files"] if file.endswith(".svg")]
    svg = (folder / "papers" / "toy-figure-1.svg").read_text()
    assert svg.startswith("<svg xmlns=") and "A sweep" in svg


@pytest.mark.slow
def test_a_killed_command_goes_on_to_the_same_models(made, tmp_path):
    code = KILLED.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, timeout=120)
    assert done.returncode == -9, done.stderr
    before = models(tmp_path)
    assert len(before) == 2
    make_exhibit(TOY, tmp_path, CHOICES, workers=1)
    assert models(tmp_path) == models(made[0]) and before.items() <= models(tmp_path).items()


def test_a_run_that_fails_is_named_and_leaves_the_others(tmp_path, monkeypatch):
    first = paper.run_once

    def run(config, folder, **more):
        if "uniform" in folder.name:
            raise RunFailed(f"{folder.name}: no")
        return first(config, folder, **more)

    monkeypatch.setattr(paper, "run_once", run)
    with pytest.raises(RunFailed, match="uniform"):
        make_exhibit(TOY, tmp_path, CHOICES, workers=1)
    assert len(models(tmp_path)) == 2


def test_training_alone_is_tested_on_other_deals_with_the_models_of_its_sites(tmp_path):
    """Dealt as they were, patients have the results of the run; dealt otherwise, not."""
    given = [{"options": f"alpha={alpha}", "which": "mean"} for alpha in (1, 9)]
    columns = [Column(f"deal-{k}", "Mean", "elsewhere", one) for k, one in enumerate(given)]
    data = Data("own", "Patients", "support2:dirichlet", ("none",), "support2:dirichlet", "SUPPORT2")
    blocks = (Block(data, (*COLUMNS[1:2], *columns)),)
    choices = Choices(rounds=1, values={"model": "linear", "alpha": 1, "n_sites": 3}, stand_in=True, seeds=(0,))
    table = Table("4", "Alone", (Row("solo", "Local", "solo"),), blocks)
    found = make_exhibit(Exhibit("toy-4", "Alone", (table,)), tmp_path, choices, workers=1)
    (row,) = found["tables"][0]["rows"]
    mean, same, other = (row["cells"][column]["value"] for column in ("mean", "deal-0", "deal-1"))
    assert same == pytest.approx(mean, abs=1e-9) and abs(other - mean) > 1e-4


def test_the_users_copy_comes_first(monkeypatch, tmp_path):
    monkeypatch.setenv("FAIRFLARE_DATA", str(tmp_path))
    assert not paper.is_here(OWN, "support2")
    (tmp_path / "covid_brazil.csv").touch()
    assert paper.is_here(OWN, "support2") and not paper.is_here(OWN, OWN.task)  # which reads the file, and it is empty
    plan = paper.Plan(TOY, Choices(stand_in=True))
    assert [place.stands_in for place in plan.places[0]] == [True]


def test_data_sets_with_nothing_of_their_own_are_left_out_and_said(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    twin = Data("twin", "Another set", "ctg:small", ("CTG.xls",), "support2", "SUPPORT2")
    blocks = (Block(OWN, COLUMNS), Block(twin, COLUMNS))
    plan = paper.Plan(Exhibit("toy-2", "Two", (Table("2", "Two", ROWS, blocks),)), CHOICES)
    assert len(plan.places[0]) == 1 and "Another set is not here" in plan.tables[0].note
    alone = Data("none", "A set", "ctg:small", ("CTG.xls",))
    with pytest.raises(UserError, match=r"CTG\.xls"):
        paper.Plan(Exhibit("toy-3", "None", (Table("3", "None", ROWS, (Block(alone, COLUMNS),)),)), CHOICES)


NOTHING_RUNS = ("fedce-figure-2", "fedufo-table-11")


def test_the_list_is_eighty_columns_wide_and_says_time_and_data(tmp_path):
    rows = paper_rows(tmp_path)
    assert all(row["data"] and (row["runs"] > 0 or row["name"] in NOTHING_RUNS) for row in rows)
    done = CliRunner().invoke(cli.cli, ["paper", "--out", str(tmp_path)], env={"COLUMNS": "80"})
    assert done.exit_code == 0 and max(map(len, done.output.splitlines())) <= 80
    assert "fedheal-table-5" in done.output and "stands for it" in done.output
    listed = json.loads(CliRunner().invoke(cli.cli, ["paper", "--json", "--out", str(tmp_path)]).output)
    assert [row["name"] for row in listed] == [row["name"] for row in rows]


def index_lines():
    """The lines of lab/docs/papers.md's table: name, title, data sets and what stands for them."""
    lines = []
    for one in PAPERS:
        for exhibit in one.exhibits:
            data = _data_of(exhibit)
            stand_ins = dict.fromkeys(f"`{data_set.stand_in}`" for data_set in data if data_set.stand_in)
            titles = "; ".join(data_set.title for data_set in data)
            lines.append(f"| `{exhibit.name}` | {exhibit.title} | {titles} | {', '.join(stand_ins)} |")
    return lines


def test_the_page_has_every_name():
    page = (Path(__file__).parents[3] / "lab" / "docs" / "papers.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| `")] == index_lines()


@pytest.mark.parametrize("given", [("digits",), (":small",), ("a:b", "a:c")])
def test_a_preset_is_a_task_and_its_preset(given):
    with pytest.raises(UserError, match="T:PRESET"):
        preset_pairs(given)


def test_an_unknown_name_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["paper", "no-such-table"])
    assert stop.value.code == 2 and "expected one of" in capsys.readouterr().err
