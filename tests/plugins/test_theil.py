# SPDX-License-Identifier: Apache-2.0
"""A number from outside the package stands wherever the package's own stand."""

import csv
import json
import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from command_line import succeed as call
from fairflare.core.errors import UserError
from fairflare.report.section import Quantity
from fairflare.report.sections import quantities

RUN = ["--task", "support2:dirichlet", "--sites", "3", "--rounds", "2"]


@pytest.fixture(scope="module")
def folder(plugin, tmp_path_factory):
    found = tmp_path_factory.mktemp("theil")
    call("run", "fedavg", *RUN, "--out", found / "run")
    tables = ["--seeds", "0,1", "--workers", "1", "--tables", found / "tables", "--out", found / "both"]
    call("compare", "fedavg", "fedprox", *RUN, *tables)
    return found


def test_it_is_what_its_paper_defines(plugin):
    assert plugin.theil({"a": 0.5, "b": 0.5, "c": None}, True) == 0
    assert plugin.theil({"a": 0.0, "b": 0.8}, True) == pytest.approx(math.log(2))
    assert plugin.theil({"a": -0.1, "b": 0.8}, True) is None is plugin.theil({}, True)


def test_the_page_of_a_run_shows_it(plugin, folder):
    report = json.loads((folder / "run" / "report.json").read_text())["detail"]
    value = plugin.theil({row["site"]: row["value"] for row in report["sites"]}, True)
    assert f"<dt>Theil&#39;s index over sites</dt><dd>{value:.3f}</dd>" in (folder / "run" / "report.html").read_text()


def test_a_comparison_judges_it_in_its_direction_and_range(plugin, folder):
    found = json.loads((folder / "both" / "compare.json").read_text())["methods"][1]
    assert found["theil"]["low"] >= 0 and found["theil"]["n"] == 2
    pairs = found["versus_first"]["theil"]
    assert pairs["wins"] == sum(pair["difference"] < 0 for pair in pairs["pairs"])
    assert "Theil&#39;s index</th>" in (folder / "both" / "compare.html").read_text()


def test_every_file_of_a_comparison_has_it(plugin, folder):
    with (folder / "tables" / "compare.csv").open() as file:
        assert {row["method"] for row in csv.DictReader(file) if row["quantity"] == "theil"} == {"FedAvg", "FedProx"}
    assert "Theil's index over sites" in (folder / "tables" / "compare.md").read_text()


def test_tensorboard_has_it_of_every_metric_in_every_round(plugin, folder):
    events = EventAccumulator(str(folder / "run" / "tb_events"))
    events.Reload()
    assert [one.step for one in events.Scalars("fairness/theil_auc")] == [1, 2]


def test_a_second_number_of_a_name_is_refused(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "OTHER", (Quantity("worst", "another"),), raising=False)
    from fairflare.report import sections as section

    section._known.cache_clear()
    with pytest.raises(UserError, match="expected a new name of a quantity, got 'worst'"):
        quantities()
    monkeypatch.undo()
    section._known.cache_clear()
