# SPDX-License-Identifier: Apache-2.0
"""Panels that need more than reports: how bright images are, the loss around a model; rows for one kind of data."""

import dataclasses

import pytest
import torch
from torch import nn

from fairflare.core.errors import UserError
from fairflare.engine.checkpoint import Checkpoint, save_checkpoint
from fairflare.engine.files import CHECKPOINT
from fairflare.tasks.base import TestSet
from fairflare_lab.papers.declaration import Block, Column, Data, Exhibit, Row, Table
from fairflare_lab.report.table_files import Cell
from fairflare_lab.report.table_files import Column as ShownColumn
from fairflare_lab.report.table_files import Row as ShownRow
from fairflare_lab.report.table_files import Table as Shown
from fairflare_lab.studies.paper import Choices, Plan
from fairflare_lab.studies.paper_panels import BINS, STEPS, _around, consistency, densities, drawn, standalone

OWN = Data("own", "Patients", "covid-brazil:regions", ("covid_brazil.csv",), "support2", "SUPPORT2")
MEAN = (Column("mean", "Mean", "over-sites", {"which": "mean"}),)
EMPTY = Shown("panel", "A panel", (), ())


def test_a_density_has_a_row_per_site_that_sums_to_one():
    panel = Table("d", "How large the numbers are", (), (Block(OWN, ()),), draw="density", axes=("value", "share"))
    shown = densities(panel, EMPTY, [("own", "Patients", "support2:default", {})])
    assert len(shown.rows) == 4 and len(shown.columns) == BINS
    for row in shown.rows:
        assert sum(cell.value for cell in row.cells.values()) == pytest.approx(1)
    (svg,) = drawn(panel, shown)
    assert standalone(svg).startswith('<svg xmlns="http://www.w3.org/2000/svg"')


def test_the_middle_of_a_landscape_is_the_models_own_loss():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    images, targets = torch.rand(20, 1, 2, 2), torch.arange(20) % 3
    grid = _around(network, TestSet("clean", False, images, targets), seed=5)
    with torch.no_grad():
        own = float(nn.functional.cross_entropy(network(images), targets))
    middle = STEPS.index(0.0)
    assert grid[middle][middle] == pytest.approx(own)
    assert _around(network, TestSet("clean", False, images, targets), seed=5) == grid
    assert max(map(max, grid)) > own


def test_a_map_is_drawn_for_every_group_of_rows():
    panel = Table("l", "Around", (Row("a", "A", "fedavg"),), (Block(OWN, ()),), draw="landscape", axes=("step", "loss"))
    columns = tuple(ShownColumn(f"step-{i}", str(i)) for i in range(3))
    cells = {f"step-{i}": Cell(float(i)) for i in range(3)}
    rows = tuple(ShownRow(f"{g} {i}", str(i), cells, group=g) for g in ("A, clean", "A, noise") for i in range(3))
    (svg,) = drawn(panel, dataclasses.replace(EMPTY, columns=columns, rows=rows))
    assert "A, clean" in svg and "A, noise" in svg


def test_rows_and_data_sets_that_are_not_wanted_make_no_runs(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    rows = (Row("here", "Here", "fedavg", only="own"), Row("else", "Else", "fedavg", only="stand-in"))
    twin = Data("twin", "Twins", "ctg:small", ("CTG.xls",), "support2:dirichlet", "SUPPORT2")
    exhibit = Exhibit("toy-4", "Four", (Table("4", "Four", rows, (Block(OWN, MEAN), Block(twin, MEAN))),))
    plan = Plan(exhibit, Choices(rounds=1))
    assert [list(place.runs) for place in plan.places[0]] == [["else"], ["else"]]
    plan = Plan(exhibit, Choices(rounds=1, data=("twin",)))
    assert [place.data.key for place in plan.places[0]] == ["twin"]
    with pytest.raises(UserError, match="own, twin"):
        Plan(exhibit, Choices(data=("other",)))


def test_leaving_out_makes_a_run_per_site(monkeypatch):
    monkeypatch.delenv("FAIRFLARE_DATA", raising=False)
    columns = (Column("drop", "drop", "drops"),)
    table = Table("5", "Five", (Row("a", "A", "fedavg"),), (Block(OWN, columns),), seeds=(0,), left_out="fedavg")
    plan = Plan(Exhibit("toy-5", "Five", (table,)), Choices(rounds=1))
    assert len(plan.configs) == 1 + 4
    assert sorted(config.leave_out for config in plan.configs.values()) == ["", "site-1", "site-2", "site-3", "site-4"]


def test_a_counter_of_signs_becomes_a_share_of_rounds(tmp_path):
    up = torch.tensor([10, 0, 5, 8], dtype=torch.uint8)
    state = {"history": {"a": {"w": up, "b": up[:1]}}, "rounds": {"a": 10}}
    save_checkpoint(tmp_path / CHECKPOINT, Checkpoint(10, {"w": torch.zeros(4)}, state, {"a": 4}))
    panel = Table(
        "2", "How steady", (Row("a", "A", "fedheal"),), (Block(OWN, ()),), draw="consistency", axes=("x", "y")
    )
    shown = consistency(panel, EMPTY, [("10 rounds", None, tmp_path)])
    (row,) = shown.rows
    assert row.group == "10 rounds, w" and sum(cell.value for cell in row.cells.values()) == pytest.approx(1)
    assert row.cells["share-9"].value == 0.5  # ten of ten rounds one way, whichever
    assert row.cells["share-6"].value == 0.25 and row.cells["share-0"].value == 0.25
    assert drawn(panel, shown)
