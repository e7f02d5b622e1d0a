# SPDX-License-Identifier: Apache-2.0
"""Intervals of a site's metrics over its own test patients: their arithmetic, what leaves, and what reports say."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, norm
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score

from cases import each
from fairflare.core.errors import EgressRefused
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import INTERVALS, Round
from fairflare.engine.evaluation import over_patients
from fairflare.engine.gate import checked_intervals, inspect_evaluation
from fairflare.engine.setup import tasks
from fairflare.functional.intervals import MANY, of_auc, of_mean, of_recalls, of_share
from fairflare.privacy.egress import Egress
from fairflare.report.audit_reader import read_trail
from fairflare.report.personal import personal_section
from fairflare.report.sites import intervals_of, site_rows
from helpers import initial_model, make_sites
from run_folders import call

TASK = tasks.load("heart", "full")
RANGES = {"accuracy": (0.0, 1.0), "auc": (0.0, 1.0), "loss": (0.0, 1e6)}


def patients(n, seed=0, prevalence=0.4):
    """Predictions with an AUC of .88 in the long run."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < prevalence).astype(int)
    z = rng.normal(size=n) + 0.84 * (2 * y - 1)
    return torch.tensor(np.stack([-z, z], axis=1)), torch.tensor(y), torch.zeros(n)


def of(found, min_count=10, task=TASK):
    """Metric -> ends of the intervals that leave."""
    return over_patients(found, task, min_count, task.evaluate(*found[:2])).get(INTERVALS, {})


class TestArithmetic:
    def test_of_a_share_it_is_scipys_exact_one(self):
        for k, n in ((0, 12), (7, 12), (12, 12), (480, 500)):
            expected = binomtest(k, n).proportion_ci(0.95, method="exact")
            assert of_share(k, n, 0.95) == pytest.approx((expected.low, expected.high), abs=1e-12)
            zeros_and_ones = np.array([1.0] * k + [0.0] * (n - k))
            assert of_mean(zeros_and_ones, 0.95) == pytest.approx((expected.low, expected.high), abs=0.01)
            assert of_recalls([k], [n], 0.95) == pytest.approx((expected.low, expected.high), abs=0.01)

    def test_of_an_auc_its_error_is_delongs(self):
        outputs, targets, _ = patients(120)
        scores, positive = outputs.softmax(1)[:, 1].numpy().round(2), targets.numpy() == 1  # with ties
        above = scores[positive][:, None] - scores[~positive]
        wins = (above > 0) + (above == 0) / 2
        delong = np.sqrt(wins.mean(1).var(ddof=1) / positive.sum() + wins.mean(0).var(ddof=1) / (~positive).sum())
        area = roc_auc_score(positive, scores)
        assert wins.mean() == pytest.approx(area)
        half = student.ppf(0.975, min(positive.sum(), (~positive).sum()) - 1) * delong / (area * (1 - area))
        expected = 1 / (1 + np.exp(-(np.log(area / (1 - area)) + np.array([-half, half]))))
        assert of_auc(scores, positive, 0.95) == pytest.approx(tuple(expected), abs=1e-12)

    def test_of_many_values_it_goes_over_into_the_usual_one(self):
        values = np.random.default_rng(1).random(5000)
        half = norm.ppf(0.975) * values.std() / np.sqrt(5000)
        assert of_mean(values, 0.95) == pytest.approx((values.mean() - half, values.mean() + half), abs=3e-4)
        few, many = of_mean(values[: MANY - 1], 0.95), of_mean(values[:MANY], 0.95)
        assert few == pytest.approx(many, abs=2e-3)

    @pytest.mark.parametrize(
        ("draw", "true"),
        [
            (lambda rng: of_share(rng.binomial(20, 0.8), 20, 0.95), 0.8),
            (lambda rng: of_mean(np.where(rng.random(12) < 0.1, 0.0, rng.beta(30, 4, 12)), 0.95), 0.9 * 30 / 34),
            (lambda rng: of_mean(np.where(rng.random(1200) < 0.1, 0.0, rng.beta(30, 4, 1200)), 0.95), 0.9 * 30 / 34),
            (lambda rng: of_recalls([rng.binomial(10, 0.7), rng.binomial(90, 0.9)], [10, 90], 0.95), 0.8),
            (lambda rng: of_recalls(rng.binomial(12, 0.6, 8), [12] * 8, 0.95), 0.6),
        ],
    )
    def test_as_many_as_they_say_hold_the_true_value(self, draw, true):
        """As Dice where a tenth of the structures is missed, as balanced accuracy with a class of ten."""
        rng = np.random.default_rng(3)
        ends = [draw(rng) for _ in range(300)]
        assert np.mean([low <= true <= high for low, high in ends]) >= 0.93
        assert max(high - low for low, high in ends) < 0.6

    @pytest.mark.parametrize(("n", "prevalence"), [(100, 0.4), (400, 0.4), (200, 0.1)])
    def test_of_an_auc_too(self, n, prevalence):
        outputs, targets, _ = patients(400_000, 7)
        true = TASK.evaluate(outputs, targets)["auc"]
        drawn = [patients(n, seed, prevalence) for seed in range(300)]
        found = [of_auc(z[:, 1].numpy(), y.numpy() == 1, 0.95) for z, y, _ in drawn if y.sum() >= 10]
        ends = [one for one in found if one is not None]
        assert len(ends) > 280 and 0.92 <= np.mean([low <= true <= high for low, high in ends]) <= 0.995


def test_none_of_few_patients_of_no_minimum_or_of_a_diverged_model():
    assert of(patients(9)) == {} == of(patients(50), None)
    outputs, targets, members = patients(50)
    outputs[3, 0] = float("inf")
    assert over_patients((outputs, targets, members), TASK, 10, {"accuracy": 0.5}) == {}
    empty = (torch.empty(0), torch.empty(0), torch.empty(0))
    assert over_patients(empty, TASK, 0, {"accuracy": 0.5}) == {} == over_patients(patients(50), TASK, 10, {})


def test_what_depends_on_classes_has_none_where_a_class_is_small():
    outputs, targets, members = patients(60)
    targets = torch.tensor([1] * 9 + [0] * 51)
    assert set(of((outputs, targets, members))) == {"accuracy", "brier_loss"}
    targets = torch.tensor([1] * 10 + [0] * 50)
    assert set(of((outputs, targets, members))) == {"accuracy", "brier_loss", "balanced_accuracy", "auc"}


@pytest.mark.parametrize("n", [60, 1500])
def test_it_does_not_depend_on_the_order_of_the_patients(n):
    """Nor on any draw that a server could foresee: their outcomes cannot be solved for one by one."""
    outputs, targets, members = patients(n)
    for order in (torch.randperm(n, generator=torch.Generator().manual_seed(0)), targets.argsort()):
        one, other = of((outputs, targets, members)), of((outputs[order], targets[order], members))
        assert set(one) == set(other) == {"accuracy", "auc", "brier_loss", "balanced_accuracy"}
        assert all(one[name] == pytest.approx(other[name], abs=1e-12) for name in one)


@pytest.mark.parametrize("classes", [2, 3, 5, 7, 10])
def test_of_a_model_that_always_says_the_same_none_has_zero_width(classes):
    task = tasks.load("classification", None, labels=str(classes))
    for n in range(10 * classes, 10 * classes + 30):
        targets = torch.arange(n) % classes
        outputs = torch.zeros(n, classes)
        outputs[:, 0] = 1.0
        found = of((outputs, targets, torch.zeros(n)), task=task)
        assert {"accuracy", "balanced_accuracy"} <= set(found)
        assert all(ends["high"] - ends["low"] > 0.01 for ends in found.values()), (n, found)


def test_a_perfect_score_of_ranks_has_none_and_of_shares_has():
    targets = torch.tensor([0, 1] * 20)
    outputs = torch.stack([1.0 - targets, targets.float()], dim=1)
    found = of((outputs, targets, torch.zeros(40)))
    assert "auc" not in found and found["accuracy"]["high"] == 1.0 and 0.9 < found["accuracy"]["low"] < 0.92
    constant = of((torch.zeros(40, 2), targets, torch.zeros(40)))
    assert "auc" not in constant and constant["accuracy"]["low"] < 0.5 < constant["accuracy"]["high"]


def test_of_masks_it_is_that_of_the_mean_over_cases():
    task = tasks.load("brain-seg", "small")
    draw = torch.Generator().manual_seed(0)
    logits, masks = (torch.randn(30, 1, 8, 8, generator=draw), torch.rand(30, 1, 8, 8, generator=draw) > 0.5)
    outputs, targets = task.condense(logits, masks.float())
    found = of((outputs, targets, torch.zeros(30)), task=task)
    expected = of_mean(task.hits(outputs, targets).numpy(), 0.95)
    assert found["dice"] == pytest.approx({"low": expected[0], "high": expected[1]})


def test_a_metric_of_a_tasks_own_has_none_rather_than_another_ones():
    outputs, targets, members = patients(50)
    own = {"accuracy": TASK.evaluate(outputs, targets)["accuracy"] - 0.01, "brier_loss": 0.9}
    assert over_patients((outputs, targets, members), TASK, 10, own) == {}


def test_a_task_that_cannot_say_loses_nothing_else():
    flat = (torch.rand(30), torch.randint(2, (30,)), torch.zeros(30))
    assert over_patients(flat, TASK, 10, {"accuracy": 0.5}) == {}


@each(
    "sent",
    [
        {"accuracy": {"low": 0.1}},
        {"accuracy": {"low": 0.6, "high": 0.9}},
        {"accuracy": {"low": 0.1, "high": 0.4}},
        {"loss": {"low": 0.1, "high": 0.9}},
        {"accuracy": {"low": 0.9, "high": 0.1}},
        {"accuracy": {"low": -0.1, "high": 0.5}},
        {"accuracy": {"low": 0.1, "high": float("nan")}},
        {"accuracy": {"low": True, "high": "1"}},
        {"accuracy": [0.1, 0.2]},
        {"<script>": {"low": 0.1, "high": 0.2}},
        ["accuracy"],
        7,
    ],
)
def test_the_server_drops_what_is_no_interval(sent):
    good = {"auc": {"low": 0.2, "high": 0.3, "more": 1}}
    values = {"accuracy": 0.5, "auc": 0.25}
    mixed = {**sent, **good} if isinstance(sent, dict) else sent
    answer = Answer("site-1", 2, metrics={"test": values, INTERVALS: mixed})
    found, refused = inspect_evaluation([answer], 2, metrics=RANGES)
    assert not refused
    expected = {INTERVALS: {"auc": {"low": 0.2, "high": 0.3}}} if isinstance(sent, dict) else {}
    assert checked_intervals({INTERVALS: mixed}, values, RANGES) == expected
    assert checked_intervals({INTERVALS: mixed}, values, None) == {}
    assert found["site-1"].get(INTERVALS) == expected.get(INTERVALS)


@each(
    "sent",
    [
        {"age": {"low": 0.1, "high": 0.2}},
        {"accuracy": {"low": 0.1, "patient": 0.2}},
        {"accuracy": {"low": 0.1, "high": 2.0}},
        {"accuracy": {"low": 0.1, "high": float("nan")}},
        {"accuracy": 0.3},
        [0.3],
    ],
)
def test_a_site_sends_nothing_else_in_its_place(sent):
    egress = Egress({}, (), RANGES, ())
    answer = Answer("site-1", 2, n_examples=30, metrics={"test": {"accuracy": 0.5}})
    good = {"accuracy": {"low": 0.1, "high": 0.2}}
    egress.check("evaluate", dataclasses.replace(answer, metrics={**answer.metrics, INTERVALS: good}))
    with pytest.raises(EgressRefused):
        egress.check("evaluate", dataclasses.replace(answer, metrics={**answer.metrics, INTERVALS: sent}))


def test_a_site_sends_them_of_the_final_model_alone():
    site = next(iter(make_sites().values()))
    site.min_count, last = 1, site.training.rounds

    def sent(round):
        return INTERVALS in site.handle(Instruction("evaluate", round, initial_model())).metrics

    assert sent(Round(last, last)) and not sent(Round(1, last)) and not sent(Round(1, 1 if last > 1 else 2))


@pytest.fixture(scope="module")
def ditto(tmp_path_factory):
    """A run whose sites have models of their own."""
    folder = tmp_path_factory.mktemp("intervals") / "run"
    assert call("run", "ditto", "--task", "heart:full", "--rounds", "2", "--workers", "1", "--out", folder) == 0
    return folder


def test_a_run_says_them_of_both_models_and_the_report_shows_those_that_are_used(ditto):
    entries = [json.loads(line) for line in (ditto / "audit.jsonl").read_text().splitlines()]
    sites = next(entry["sites"] for entry in entries if entry["event"] == "evaluation")
    report = json.loads((ditto / "report.json").read_text())
    page = (ditto / "report.html").read_text()
    for site, found in sites.items():
        for results in (found, found["personal"]):
            value, ends = results["test"]["accuracy"], results[INTERVALS]["accuracy"]
            n = results["n"]["test"]
            expected = binomtest(round(value * n), int(n)).proportion_ci(0.95, method="exact")
            assert ends == pytest.approx({"low": expected.low, "high": expected.high}, abs=1e-9)
        assert report["sites"][site]["intervals"] == found[INTERVALS]
        own = found["personal"][INTERVALS]["accuracy"]
        for ends in (found[INTERVALS]["accuracy"], own):
            assert f"{ends['low']:.3f} to {ends['high']:.3f}" in page
    assert "95 % intervals over the site&#39;s test patients" in page


def test_the_page_for_one_hospital_says_that_of_the_model_it_uses(ditto):
    assert call("report", ditto, "--site", "VA") == 0
    found = json.loads((ditto / "editions" / "VA.json").read_text())
    entries = [json.loads(line) for line in (ditto / "audit.jsonl").read_text().splitlines()]
    sites = next(entry["sites"] for entry in entries if entry["event"] == "evaluation")
    ends = sites["VA"]["personal"][INTERVALS]["accuracy"]
    assert found["result"]["intervals"]["accuracy"] == ends
    page = (ditto / "editions" / "VA.html").read_text()
    assert f"95 % interval {ends['low']:.3f} to {ends['high']:.3f} over its test patients" in page


def test_a_log_without_them_is_read_as_before():
    entry = {
        "event": "evaluation",
        "sites": {"a": {"test": {"accuracy": 0.5}, "personal": {"test": {"accuracy": 0.6}}}},
    }
    trail = read_trail([entry])
    assert site_rows(trail, ["a"], {}, "accuracy")[0]["intervals"] == {} == intervals_of({})
    assert personal_section(trail, ["a"], "accuracy", True)["rows"][0]["intervals"] == {}
    for odd in ({"accuracy": {"low": None, "high": 1.0}}, {"accuracy": [0.1, 0.2]}, [0.1]):
        assert intervals_of({INTERVALS: odd}) == {}


def test_an_interval_of_perfect_cases_ends_at_one():
    """The weights' sum may round above 1, and no filter lets such an end leave the site."""
    for n in range(1, 60):
        low, high = of_mean(np.ones(n), 0.95)
        assert low < 1.0 and high == 1.0, n
