# SPDX-License-Identifier: Apache-2.0
"""Intervals of a site's metrics over its own test patients: their arithmetic, what leaves, and what reports say."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, norm
from sklearn.metrics import roc_auc_score

from fairflare.build import tasks
from fairflare.core.types import INTERVALS
from fairflare.federation import intervals
from fairflare.federation.gate import inspect_evaluation
from fairflare.federation.messages import Answer
from fairflare.functional.resampling import exact_interval, left_out, logit_interval
from fairflare.privacy.egress import Egress, EgressRefused
from fairflare.report.personal import personal_section
from fairflare.report.rows import intervals_of, site_rows
from fairflare.report.trail import read_trail
from run_folders import call

TASK = tasks.load("heart", "full")
METRICS = TASK.metrics
RANGES = {"accuracy": (0.0, 1.0), "auc": (0.0, 1.0), "loss": (0.0, 1e6)}


def over_patients(found, task, min_count, beside=METRICS):
    return intervals.over_patients(found, task, min_count, beside)


def patients(n, seed=0):
    """Predictions with an AUC of .88 in the long run."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.4).astype(int)
    z = rng.normal(size=n) + 0.84 * (2 * y - 1)
    return torch.tensor(np.stack([-z, z], axis=1)), torch.tensor(y), torch.zeros(n)


class TestArithmetic:
    def test_of_a_share_it_is_scipys_exact_one(self):
        for k, n in ((0, 12), (7, 12), (12, 12), (480, 500)):
            expected = binomtest(k, n).proportion_ci(0.95, method="exact")
            assert exact_interval(k / n, n, 0.95) == pytest.approx((expected.low, expected.high), abs=1e-12)

    def test_of_an_auc_its_error_is_delongs(self):
        outputs, targets, _ = patients(120)
        scores, positive = outputs.softmax(1)[:, 1].numpy(), targets.numpy() == 1
        wins = (scores[positive][:, None] > scores[~positive]).astype(float)
        delong = np.sqrt(wins.mean(1).var(ddof=1) / positive.sum() + wins.mean(0).var(ddof=1) / (~positive).sum())
        ends = over_patients(patients(120), TASK, 10)[INTERVALS]["auc"]
        auc = roc_auc_score(positive, scores)
        half = norm.ppf(0.975) * delong / (auc * (1 - auc))
        logit = np.log(auc / (1 - auc)) + np.array([-half, half])
        assert [ends["low"], ends["high"]] == pytest.approx(list(1 / (1 + np.exp(-logit))), abs=0.004)

    def test_the_jackknife_of_a_mean_is_its_standard_error(self):
        values = np.random.default_rng(1).random(50)
        (counts,) = left_out(50)
        found = logit_interval(values.mean(), counts @ values / counts.sum(axis=1), 0.95)
        half = norm.ppf(0.975) * values.std(ddof=1) / np.sqrt(50) / (values.mean() * (1 - values.mean()))
        centre = np.log(values.mean() / (1 - values.mean()))
        assert found == pytest.approx(tuple(1 / (1 + np.exp(-(centre + np.array([-half, half]))))), abs=1e-12)

    def test_of_many_cases_groups_are_left_out_and_every_case_once(self):
        rows = np.concatenate(list(left_out(2501, most=50)))
        assert rows.shape == (50, 2501) and ((rows == 0).sum(axis=0) == 1).all()
        assert set((rows == 0).sum(axis=1)) == {50, 51}

    @pytest.mark.parametrize("n", [25, 100])
    def test_as_many_as_they_say_hold_the_true_value(self, n):
        true = {"accuracy": 0.7995, "auc": 0.8825}
        outputs, targets, _ = patients(400_000, 7)
        found = TASK.evaluate(outputs, targets)
        assert {name: found[name] for name in true} == pytest.approx(true, abs=0.002)
        drawn = [over_patients(patients(n, seed), TASK, 10)[INTERVALS] for seed in range(300)]
        for name, value in true.items():
            ends = [one[name] for one in drawn if name in one]
            held = np.mean([end["low"] <= value <= end["high"] for end in ends])
            assert len(ends) > 285 and 0.92 <= held <= 0.995, (name, held)


class TestWhatLeaves:
    def test_none_of_few_patients_of_no_minimum_or_of_a_diverged_model(self):
        assert over_patients(patients(9), TASK, 10) == {} == over_patients(patients(50), TASK, None)
        outputs, targets, members = patients(50)
        outputs[3, 0] = float("inf")
        assert over_patients((outputs, targets, members), TASK, 10) == {}
        empty = (torch.empty(0), torch.empty(0), torch.empty(0))
        assert over_patients(empty, TASK, 0) == {}

    def test_only_beside_a_metric_that_leaves_too(self):
        assert set(over_patients(patients(50), TASK, 10, {"auc": 0.9, "loss": 0.1})[INTERVALS]) == {"auc"}
        assert over_patients(patients(50), TASK, 10, {}) == {}

    def test_it_does_not_depend_on_the_order_of_the_patients(self):
        """Nor on any chance that a server could foresee: their outcomes cannot be solved for one by one."""
        outputs, targets, members = patients(60)
        order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
        one, other = (
            over_patients(found, TASK, 10)
            for found in ((outputs, targets, members), (outputs[order], targets[order], members))
        )
        assert all(one[INTERVALS][name] == pytest.approx(other[INTERVALS][name]) for name in one[INTERVALS])

    def test_a_perfect_score_of_ranks_has_none_and_of_shares_has(self):
        targets = torch.tensor([0, 1] * 20)
        outputs = torch.stack([1.0 - targets, targets.float()], dim=1)
        found = over_patients((outputs, targets, torch.zeros(40)), TASK, 10)[INTERVALS]
        assert "auc" not in found and found["accuracy"]["high"] == 1.0 and 0.9 < found["accuracy"]["low"] < 0.92

    @pytest.mark.parametrize(
        "sent",
        [
            {"accuracy": {"low": 0.1}},
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
    def test_the_server_drops_what_is_no_interval(self, sent):
        good = {"auc": {"low": 0.2, "high": 0.3, "more": 1}}
        mixed = {**sent, **good} if isinstance(sent, dict) else sent
        answer = Answer("site-1", 2, metrics={"test": {"accuracy": 0.5}, INTERVALS: mixed})
        found, refused = inspect_evaluation([answer], 2, metrics=RANGES)
        assert not refused
        expected = {INTERVALS: {"auc": {"low": 0.2, "high": 0.3}}} if isinstance(sent, dict) else {}
        assert intervals.checked({INTERVALS: mixed}, RANGES) == expected
        assert found["site-1"].get(INTERVALS) == expected.get(INTERVALS)

    @pytest.mark.parametrize(
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
    def test_a_site_sends_nothing_else_in_its_place(self, sent):
        egress = Egress({}, (), RANGES, ())
        answer = Answer("site-1", 2, n_examples=30, metrics={"test": {"accuracy": 0.5}})
        good = {"accuracy": {"low": 0.1, "high": 0.2}}
        egress.check("evaluate", dataclasses.replace(answer, metrics={**answer.metrics, INTERVALS: good}))
        with pytest.raises(EgressRefused):
            egress.check("evaluate", dataclasses.replace(answer, metrics={**answer.metrics, INTERVALS: sent}))


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
    assert intervals_of({INTERVALS: {"accuracy": {"low": None, "high": 1.0}}}) == {}
