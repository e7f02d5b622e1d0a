# SPDX-License-Identifier: Apache-2.0
"""A metric from outside the package: it is checked at the site and the server, and shown as the package's own are."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from fairflare.cli.main import main
from fairflare.core import metric
from fairflare.core.errors import UserError
from fairflare.core.schema import Instruction
from fairflare.core.types import Round
from fairflare.engine.benefit import Pair, measured
from fairflare.engine.setup import tasks
from fairflare.engine.setup.assembly import build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.functional.intervals import resamples
from fairflare.testing import check_metric

NAME, SITES = "auprc", ("site-1", "site-2", "site-3")
RUN = ["run", "fedavg", "--task", "support2:dirichlet", "--sites", "3", "--rounds", "2", "--set", "group_by=sex"]


@pytest.fixture(scope="module")
def folder(plugin, tmp_path_factory):
    found = tmp_path_factory.mktemp("auprc") / "run"
    with pytest.raises(SystemExit) as end:
        main([*RUN, "--out", str(found)])
    assert not end.value.code
    return found


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder / "report.json").read_text())["detail"]


def test_it_passes_the_contract(plugin):
    check_metric(NAME)


def test_it_is_scikit_learns_under_weights_and_without(plugin):
    task, draw = tasks.load("support2"), torch.Generator().manual_seed(0)
    outputs = torch.randn(60, 2, generator=draw).round(decimals=1)
    targets = torch.randint(2, (60,), generator=draw)
    risks = outputs.double().softmax(1)[:, 1]
    assert task.evaluate(outputs, targets)[NAME] == pytest.approx(average_precision_score(targets, risks))
    counts = next(resamples(60, 20, 0))
    expected = [average_precision_score(targets, risks, sample_weight=row) for row in counts]
    assert task.measured(outputs, targets, counts)[NAME] == pytest.approx(expected)
    assert NAME not in task.evaluate(outputs, torch.zeros(60, dtype=torch.int64))


def test_label_direction_and_meaning_are_in_the_report(folder, report):
    said = report["metrics"][NAME]
    assert said["label"] == "AUPRC" and said["higher_is_better"] and said["meaning"].startswith("the precision")
    assert "AUPRC" in (folder / "report.html").read_text()


def test_every_site_has_its_value_and_interval(folder, report):
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    ends = next(line for line in lines if line["event"] == "evaluation")["sites"]
    for row in report["sites"]:
        interval = ends[row["site"]]["intervals"][NAME]
        assert 0 < interval["low"] < row["test"][NAME] < interval["high"] < 1


def test_joining_is_told_in_it_over_all_patients_and_by_group(report):
    benefit = report["benefit"]["metrics"][NAME]
    assert benefit["label"] == "AUPRC" and [row["site"] for row in benefit["sites"]] == list(SITES)
    assert all(row["low"] < row["benefit"] < row["high"] for row in benefit["sites"])
    assert {row["group"] for row in benefit["groups"]} == {"female", "male"}
    assert any("(AUPRC)" in text for text in report["benefit"]["sentences"])


def test_a_group_has_it_only_with_enough_cases_of_each_class(plugin):
    task, draw = tasks.load("support2"), torch.Generator().manual_seed(1)
    outputs, members = torch.randn(60, 2, generator=draw), torch.arange(60) % 2
    targets = torch.tensor([k % 2 == 1 and k < 25 or k % 4 == 0 for k in range(60)]).long()
    assert targets[members == 1].sum() == 12 and targets[members == 0].sum() == 15
    pair = Pair((outputs, targets, members), (outputs.flip(1), targets, members))
    for least, both in ((10, True), (13, False)):
        found = measured(pair, task, ("a", "b"), least, 0, "A")
        assert (f"federated.{NAME}/a" in found) and (f"federated.{NAME}/b" in found) == both
        assert "federated.accuracy/b" in found


def test_out_of_its_range_it_does_not_leave(plugin, monkeypatch):
    config = make_config("fedavg", "support2", rounds=2)
    parts = build_parts(config)
    site, honest = build_site(config, parts, "site-1"), type(parts.task).evaluate
    monkeypatch.setattr(type(parts.task), "evaluate", lambda *given: honest(*given) | {NAME: 1.5})
    answer = site.handle(Instruction("train", Round(1, 2), parts.model))
    assert answer.error == "egress: metric auprc: outside 0 to 1" and answer.update is None


def test_of_more_classes_it_is_none(plugin):
    assert NAME not in tasks.load("digits").metrics and NAME in tasks.load("heart").metrics


def test_a_second_metric_of_a_name_is_refused(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "OTHER", metric.Metric("auc", each=lambda cases: np.ones(1)), raising=False)
    metric._found.cache_clear()
    with pytest.raises(UserError, match="metric 'auc' is defined twice: in fairflare.tasks.metrics and in"):
        metric.metrics()
    monkeypatch.undo()
    metric._found.cache_clear()
