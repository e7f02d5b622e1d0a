# SPDX-License-Identifier: Apache-2.0
"""A kind of task from outside the package, with its metrics and a task: it trains, evaluates, reports and predicts."""

import csv
import dataclasses
import json

import numpy as np
import pytest
import torch

from command_line import succeed as call
from fairflare.core.errors import UserError
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import make_config
from fairflare.testing import check_metric, check_task
from fairflare.testing import tasks as kit

TASK = "made-up-survival"


@pytest.fixture(scope="module")
def folder(plugin, tmp_path_factory):
    found = tmp_path_factory.mktemp("hazard") / "run"
    call("run", "fedavg", "--task", TASK, "--rounds", "4", "--set", "group_by=sex", "--out", found)
    return found


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "report.json").read_text())["detail"]


def cases(plugin):
    task = tasks.load(TASK)
    split = task.site_data("site-1").splits["test"]
    return task.kind.cases(torch.randn(len(split), 4, generator=torch.Generator().manual_seed(0)), split.targets, ())


def test_it_passes_the_contract(plugin):
    check_task(TASK, patients=80)
    for name in ("c_index", "likelihood"):
        check_metric(name, cases(plugin))


def test_the_contract_finds_what_is_wrong(plugin, monkeypatch):
    monkeypatch.setattr(plugin.MadeUpSurvival, "headline", "auc")
    with pytest.raises(AssertionError, match="headline auc: expected one of c_index, likelihood"):
        check_task(TASK)
    monkeypatch.undo()
    wrong = dataclasses.replace(plugin.LIKELIHOOD, each=lambda cases: 2 * plugin.likelihood(cases) + 1)
    with pytest.raises(AssertionError, match="likelihood: expected 0 to 1"):
        kit._check_on(wrong, cases(plugin), "here")
    by_order = {"each": None, "benefit": False, "value": lambda cases: float(cases.outputs[0].sigmoid()[0])}
    with pytest.raises(AssertionError, match="depends on the order of the cases"):
        kit._check_on(dataclasses.replace(plugin.LIKELIHOOD, **by_order), cases(plugin), "here")


def test_concordance_is_that_of_all_pairs(plugin):
    found = cases(plugin)
    (last, died), risk = found.targets.numpy().T, torch.nn.functional.softplus(found.outputs.double()).sum(1).numpy()
    won = [
        1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
        for i in range(len(risk))
        for j in range(len(risk))
        if died[i] and last[i] < last[j]
    ]
    assert plugin.concordance(found, np.ones((1, len(risk))))[0] == pytest.approx(np.mean(won))


def test_the_loss_is_that_of_the_likelihood_worked_out_by_hand(plugin):
    """Hazards of 1/2: alive in two intervals and dead in the third 1/8, censored in the second 1/2."""
    targets = torch.tensor([[2, 1], [1, 0]])
    losses = plugin.hazard_loss(torch.zeros(2, 4), targets, reduction="none")
    assert losses.exp().tolist() == pytest.approx([8.0, 2.0])


def test_it_trains_and_the_report_says_how_well(folder, report):
    assert report["status"] == "completed" and report["headline"] == "c_index" and report["higher_is_better"]
    assert report["fairness"]["mean"] > 0.7 and report["metrics"]["c_index"]["label"] == "C-index"
    assert {"c_index", "likelihood", "loss"} <= set(report["sites"][0]["test"])
    assert report["learned"] is None and report["clinical"] is None, "no classes, and no constant answer"
    assert "C-index" in (folder / "report.html").read_text()


def test_groups_and_benefit_are_told_in_its_metrics(report):
    assert report["groups"]["metric"] == "likelihood"
    assert {row["group"] for row in report["groups"]["rows"]} == {"female", "male"}
    assert list(report["benefit"]["metrics"]) == ["c_index", "likelihood"]
    assert {row["group"] for row in report["benefit"]["metrics"]["c_index"]["groups"]} == {"female", "male"}


def test_it_predicts_the_risk_after_each_interval(folder, tmp_path):
    (tmp_path / "new.csv").write_text("id,a,b,c\nlow,-2,-2,0\nhigh,2,2,0\n")
    call("predict", folder, tmp_path / "new.csv", "--out", tmp_path / "found")
    low, high = csv.DictReader((tmp_path / "found" / "predictions.csv").open())
    names = [f"dead_after_{months}_months" for months in (3, 6, 12, 24)]
    for row in (low, high):
        risks = [float(row[name]) for name in names]
        assert risks == sorted(risks) and risks[0] > 0 and risks[-1] < 1
    assert float(high[names[1]]) > float(low[names[1]]) + 0.3


def test_two_runs_are_compared(folder, plugin, tmp_path):
    call("compare", "fedavg", "qffl", "--task", TASK, "--rounds", "2", "--seeds", "2", "--out", tmp_path / "both")
    found = json.loads((tmp_path / "both" / "compare.json").read_text())
    assert found["headline"] == "c_index" and len(found["methods"]) == 2


@pytest.mark.parametrize(
    "values, message",
    [
        ({"logit_tau": 1.0}, "has no class labels"),
        ({"group_by": "label"}, "has no attribute 'label'; it has: sex"),
        ({"after": "recalibrate"}, "recalibrate needs class labels, which this task has not"),
        ({"after": "conformal"}, "conformal needs class labels or masks"),
    ],
)
def test_what_needs_classes_is_refused_in_one_line(plugin, values, message):
    with pytest.raises(UserError, match=message) as error:
        make_config("fedavg", TASK, values=values)
    assert "\n" not in str(error.value)


def test_a_method_that_needs_classes_is_refused(plugin):
    with pytest.raises(UserError, match="needs one class label"):
        make_config("fedproto", TASK)


def test_a_kind_without_a_score_says_nothing_of_groups(plugin, monkeypatch, tmp_path):
    kind = dataclasses.replace(plugin.MadeUpSurvival.kind, score="")
    monkeypatch.setattr(plugin.MadeUpSurvival, "kind", kind)
    check_task(TASK, patients=80)
    call("run", "fedavg", "--task", TASK, "--rounds", "1", "--set", "group_by=sex", "--out", tmp_path / "run")
    found = json.loads((tmp_path / "run" / "report.json").read_text())["detail"]
    assert not [row for row in found["groups"]["rows"] if row["value"] is not None]
    assert list(found["benefit"]["metrics"]) == ["c_index", "likelihood"]
