# SPDX-License-Identifier: Apache-2.0
"""The benefit of joining for each site: metrics under resamples, what leaves, the own model, whole runs."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, brier_score_loss, roc_auc_score
from sklearn.utils import resample

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.core.metric import named
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare.engine.benefit import Pair, measured, reports
from fairflare.engine.exchanges.base import Ended
from fairflare.engine.exchanges.benefit import BenefitAtServer
from fairflare.engine.files import read_model, read_tensors
from fairflare.engine.setup import tasks
from fairflare.engine.setup.assembly import build_site
from fairflare.engine.setup.config import RunConfig, asks_by_itself, make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.site import Site
from fairflare.engine.straggler_policy import EarlyEnd
from fairflare.functional.intervals import percentile_interval, resamples, weighted_auc, weighted_mean, weighted_recall
from fairflare.report.benefit import VERDICTS, over_methods, sentence
from fairflare.report.compare import compare
from fairflare.report.compare_tables import comparison_tables
from fairflare.report.values import answer, signed
from fairflare.tasks.kind import resampled
from fairflare.tasks.kinds import masks
from fairflare.tasks.kinds.classes import CLASSES
from run_folders import Dies, call

HEART = ["--task", "heart:full", "--rounds", "3", "--set", "group_by=sex", "--workers", "1"]
SITES = ("Cleveland", "Hungary", "Switzerland", "VA")
BENEFIT = "Benefit of joining"
TASK = tasks.load("heart", "full")
PARTS = build_parts(make_config("fedavg", "heart:full"))


def drawn(n, seed=0, classes=2):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, classes, generator=rng).round(decimals=1), torch.randint(classes, (n,), generator=rng)


class TestUnderResamples:
    def test_with_every_case_once_a_metric_is_that_of_the_evaluation(self):
        for headline, classes in (("accuracy", 2), ("auc", 2), ("balanced_accuracy", 2), ("balanced_accuracy", 4)):
            outputs, targets = drawn(57, classes=classes)
            found, cases = TASK.evaluate(outputs, targets), CLASSES.cases(outputs, targets, "abcd"[:classes])
            for metric in CLASSES.of_benefit(headline, cases.classes):
                value = resampled(metric, cases, np.ones((1, 57)))[0]
                assert value == pytest.approx(found[metric.name], abs=1e-12), metric.name

    def test_of_masks_it_is_the_mean_over_cases(self):
        task = tasks.load("brain-seg", "small")
        outputs, targets = masks.condensed(torch.randn(9, 1, 4, 4), (torch.rand(9, 1, 4, 4) > 0.5).float())
        values = task.measured(outputs, targets, np.ones((1, 9)))
        assert values["dice"][0] == pytest.approx(task.evaluate(outputs, targets)["dice"], abs=1e-12)

    def test_under_counts_it_is_scikit_learns_under_weights(self):
        outputs, targets = drawn(40, seed=3)
        counts = next(resamples(40, 5, 1))
        cases, p, y = CLASSES.cases(outputs, targets, ("no", "yes")), outputs.double().softmax(1)[:, 1], targets
        names = ("accuracy", "balanced_accuracy", "auc", "brier_loss")
        values = {name: resampled(named(name), cases, counts) for name in names}
        for b, weights in enumerate(counts):
            assert values["accuracy"][b] == pytest.approx(accuracy_score(y, p > 0.5, sample_weight=weights))
            right = balanced_accuracy_score(y, p > 0.5, sample_weight=weights)
            assert values["balanced_accuracy"][b] == pytest.approx(right)
            assert values["auc"][b] == pytest.approx(roc_auc_score(y, p, sample_weight=weights))
            assert values["brier_loss"][b] == pytest.approx(brier_score_loss(y, p, sample_weight=weights))

    def test_what_a_resample_leaves_undefined_is_nan(self):
        counts = np.array([[2.0, 0.0], [1.0, 1.0]])
        assert math.isnan(weighted_auc(np.array([0.1, 0.9]), np.array([False, True]), counts)[0])
        assert weighted_auc(np.array([0.1, 0.9]), np.array([False, True]), counts)[1] == 1.0
        assert math.isnan(weighted_mean(np.array([1.0]), np.zeros((1, 1)))[0])
        right, classes = np.array([1.0, 0.0, 1.0]), np.array([0, 1, 2])
        found = weighted_recall(right, classes, np.array([[3.0, 0, 0], [0, 2, 0], [1, 2, 0], [0, 0, 0], [1, 1, 1]]))
        assert np.array_equal(found, [math.nan, math.nan, 0.5, math.nan, 2 / 3], equal_nan=True)

    def test_resamples_hold_as_many_cases_and_follow_from_the_seed(self):
        found = np.concatenate(list(resamples(7, 300, 5)))
        assert found.shape == (300, 7) and set(found.sum(axis=1)) == {7.0}
        assert (found == np.concatenate(list(resamples(7, 300, 5)))).all()
        assert abs(found.mean() - 1) < 1e-12 and 0.5 < (found > 0).mean() < 0.75

    def test_an_interval_lies_between_percentiles_of_what_is_defined(self):
        values = np.array([*range(101), *[float("nan")] * 101], dtype=float)
        assert percentile_interval(values, 0.9) == pytest.approx((5.0, 95.0))
        assert percentile_interval(np.append(values, np.nan), 0.9) is None


def pair(n, off=0.0, members=None):
    outputs, targets = drawn(n)
    members = torch.zeros(n, dtype=torch.int64) if members is None else torch.tensor(members)
    return Pair(
        (outputs + off * (2 * targets[:, None] - 1) * torch.tensor([-1, 1]), targets, members),
        (outputs, targets, members),
    )


def test_what_leaves_is_declared_and_a_better_model_gains():
    found = measured(pair(80, off=2.0), TASK, ("all",), 10, 0, "A")
    known = {n.name: n for n in reports(TASK.measures, TASK.group_measures, ("all",))}
    assert set(found) <= set(known) and {"auc", "brier_loss"} < set(TASK.measures)
    assert all(known[name].low <= value <= known[name].high for name, value in found.items())
    assert found["low.accuracy"] > 0 and found["high.brier_loss/all"] < 0
    assert found["n"] == found["n/all"] == 80 and found["federated.accuracy"] == found["federated.accuracy/all"]


def test_two_equal_models_differ_by_nothing():
    found = measured(pair(30), TASK, (), 10, 0, "A")
    assert {found[f"{end}.{name}"] for end in ("low", "high") for name in TASK.measures} == {0.0}


def test_a_site_of_one_class_neither_gains_nor_loses_balanced_accuracy():
    """Calling everybody ill would be right there, whatever the model knows."""
    own, ill = drawn(30)[0], torch.ones(30, dtype=torch.int64)
    members, task = torch.zeros(30, dtype=torch.int64), tasks.load("classification", None, labels="2")
    found = measured(Pair((own, ill, members), (torch.tensor([[0.0, 1.0]] * 30), ill, members)), task, (), 10, 0, "A")
    assert "balanced_accuracy" in task.measures and not [name for name in found if "balanced" in name or "auc" in name]


def test_few_patients_say_nothing():
    assert measured(pair(9), TASK, ("a", "b"), 10, 0, "A") == {}
    found = measured(pair(30, members=[0] * 25 + [1] * 5), TASK, ("a", "b"), 10, 0, "A")
    assert found["n"] == 30 and not [name for name in found if "/" in name]
    found = measured(pair(30, members=[0] * 15 + [1] * 15), TASK, ("a", "b"), None, 0, "A")
    assert not [name for name in found if "/" in name]


def test_a_model_that_has_diverged_has_no_numbers():
    one = pair(30)
    outputs = one.solo[0].clone()
    outputs[3, 0] = float("nan")
    assert measured(Pair(one.federated, (outputs, *one.solo[1:])), TASK, (), 10, 0, "A") == {"n": 30.0}


def test_the_resamples_follow_from_the_predictions_too():
    assert pair(30).seed(0, "A") == pair(30).seed(0, "A") != pair(30, off=1.0).seed(0, "A")


GOOD = {"n": 40.0, "federated.accuracy": 0.8, "solo.accuracy": 0.7, "low.accuracy": 0.0, "high.accuracy": 0.2}


WAITS = EarlyEnd()


class Sites:
    """A transport: what each site says by exchange, one after the other."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    def sites(self):
        return sorted(self.answers)

    def exchange(self, instructions):
        for site, one in sorted(instructions.items()):
            self.asked.append((site, one.task))
            said = self.answers[site][one.task].pop(0)
            if said is not None:
                yield Answer(site, said.pop("round", 3), **said)


def says(*rounds, **benefit):
    return {"solo": [{"benefit": {"rounds": float(n)}} for n in rounds], "benefit": [{"benefit": dict(benefit)}]}


def asked(transport, early_end=WAITS):
    benefit = BenefitAtServer(reports(("accuracy",), (), ("a",)), "sgd", ("accuracy",), (), early_end)
    models = dict.fromkeys(transport.answers, {})
    return benefit.run(Ended(transport, None, models, {}, Round(3, 3), dict.fromkeys(models, 100)))


def test_a_site_that_needs_longer_is_asked_again_while_it_gets_on():
    transport = Sites(a=says(3, **GOOD), b=says(1, 2, 3, **GOOD), c=says(1, 1, **GOOD))
    found, rejections = asked(transport)
    assert set(found["sites"]) == {"a", "b"} and [(r.site, r.code) for r in rejections] == [("c", "no_progress")]
    assert [task for site, task in transport.asked if site == "b"] == ["solo", "solo", "solo", "benefit"]


@each(
    "bad, code",
    [
        ({"solo": [None]}, "no_answer"),
        ({"benefit": [None]}, "no_answer"),
        ({"solo": [{"error": "OutOfMemory"}]}, "site_error"),
        ({"solo": [{"benefit": {"rounds": 4.0}}]}, "count_mismatch"),
        ({"solo": [{"benefit": {"rounds": 2.5}}]}, "count_mismatch"),
        ({"benefit": [{"round": 2, "benefit": GOOD}]}, "stale"),
        ({"benefit": [{"benefit": {**GOOD, "age": 91.0}}]}, "scalar_unknown"),
        ({"benefit": [{"benefit": {**GOOD, "solo.accuracy": 1.5}}]}, "scalar_range"),
        ({"benefit": [{"benefit": {**GOOD, "low.accuracy": math.nan}}]}, "scalar_nonfinite"),
        ({"benefit": [{"benefit": {**GOOD, "low.accuracy": 0.3}}]}, "scalar_range"),
        ({"benefit": [{"benefit": {**GOOD, "n": 1001.0}}]}, "count_mismatch"),
        ({"benefit": [{"benefit": {**GOOD, "n/a": 41.0}}]}, "count_mismatch"),
    ],
)
def test_one_bad_site_costs_the_others_nothing(bad, code):
    found, rejections = asked(Sites(a=says(3, **GOOD), b={**says(3, **GOOD), **bad}))
    assert found["sites"] == {"a": GOOD} and [(r.site, r.code) for r in rejections] == [("b", code)]
    assert "91" not in rejections[0].detail


@pytest.mark.parametrize("task", ["solo", "benefit"])
def test_a_site_without_which_the_question_ended_is_late(task):
    said = {**says(3, **GOOD), task: [None]}
    transport = Sites(a=says(3, **GOOD), b=says(3, **GOOD), c=said)
    found, rejections = asked(transport, EarlyEnd(2))
    assert set(found["sites"]) == {"a", "b"}
    detail = "the question ended with the answers of 2 of 3 sites"
    assert [(r.site, r.code, r.detail) for r in rejections] == [("c", "late", detail)]
    assert ("c", "benefit") not in transport.asked or task == "benefit"
    transport = Sites(a=says(3, **GOOD), b=says(3, **GOOD), c={**says(3, **GOOD), task: [None]})
    assert [r.code for r in asked(transport, EarlyEnd(3))[1]] == ["no_answer"], "the deadline passed"


def alone(folder):
    site = build_site(
        make_config("fedavg", "heart:full", rounds=4, values={"solo": True}), PARTS, "VA", folder / "VA.safetensors"
    )
    half = site.exchanges["benefit"]
    return half.alone, half.by_itself(site).handle


def test_training_alone_is_kept_on_the_way_and_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("fairflare.engine.alone.KEPT_AFTER", 0.0)
    whole, train = alone(tmp_path / "whole")
    assert whole.advance(PARTS.model, train) == 4
    torn, train = alone(tmp_path / "torn")

    def until_the_third(instruction):
        if instruction.round.number == 3:
            raise KeyboardInterrupt
        return train(instruction)

    with pytest.raises(KeyboardInterrupt):
        torn.advance(PARTS.model, until_the_third)
    again, train = alone(tmp_path / "torn")
    asked_for = []
    assert again.advance(PARTS.model, lambda one: asked_for.append(one.round.number) or train(one)) == 4
    assert asked_for == [3, 4]
    assert all(torch.equal(value, again.model[key]) for key, value in whole.model.items())


def run(folder, *chosen, method="fedavg"):
    assert call("run", method, *HEART, *chosen, "--out", folder) == 0
    return folder


def section(folder):
    return json.loads((folder / "report.json").read_text())["detail"]["benefit"]


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "joined")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "bare", "--no-solo")


def test_the_federations_model_is_that_of_the_run_without_it(joined, bare):
    assert (joined / "model.safetensors").read_bytes() == (bare / "model.safetensors").read_bytes()
    assert section(bare) is None and not list(bare.rglob("*.solo.safetensors"))
    assert "solo" not in json.loads((bare / "config.json").read_text())
    assert call("verify", joined) == 0


def test_the_models_trained_alone_are_those_of_the_method_solo(joined, tmp_path):
    folder = run(tmp_path / "solo", method="solo")
    models = read_tensors(folder / "checkpoint.safetensors")["models"]
    for site in SITES:
        own = read_model(joined / "sites" / f"{site}.solo.safetensors")
        assert own.keys() == models[site].keys() and all(torch.equal(own[key], models[site][key]) for key in own)


def probabilities(model, data):
    """By hand: the linear model's risk of the second class."""
    (weight, bias), x = sorted(model.values(), key=lambda value: -value.dim()), data.inputs.double().numpy()
    z = x @ weight.double().numpy().T + bias.double().numpy()
    return 1 / (1 + np.exp(z[:, 0] - z[:, 1])) if z.shape[1] == 2 else 1 / (1 + np.exp(-z[:, 0]))


def test_the_benefit_is_that_of_scikit_learn_from_the_saved_models(joined):
    """Values to rounding; intervals to what other resamples give."""
    scores = {
        "accuracy": lambda y, p: accuracy_score(y, p > 0.5),
        "auc": roc_auc_score,
        "brier_loss": lambda y, p: -brier_score_loss(y, p),
    }
    found, federated = section(joined)["metrics"], read_model(joined / "model.safetensors")
    assert set(found) == set(scores)
    for site in SITES:
        (batch,) = TASK.site_data(site).fixed("test", 1000)
        y = batch.targets.numpy()
        ours, own = (
            probabilities(m, batch) for m in (federated, read_model(joined / "sites" / f"{site}.solo.safetensors"))
        )
        for metric, score in scores.items():
            (row,) = [row for row in found[metric]["sites"] if row["site"] == site]
            assert row["n"] == len(y)
            assert row["benefit"] == pytest.approx(score(y, ours) - score(y, own), abs=1e-6)
            if site != "Cleveland":
                continue
            draws = (resample(np.arange(len(y)), random_state=b) for b in range(400))
            low, high = np.quantile([score(y[i], ours[i]) - score(y[i], own[i]) for i in draws], (0.025, 0.975))
            near = 0.02 + 0.2 * (row["high"] - row["low"])
            assert row["low"] == pytest.approx(low, abs=near) and row["high"] == pytest.approx(high, abs=near)


def test_the_report_says_by_the_interval_who_gains(joined):
    found = section(joined)
    assert found["metric"] == "accuracy" and found["sentences"][0].startswith("Joining (accuracy): ")
    for one in found["metrics"].values():
        for row in one["sites"]:
            sides = (row["low"] > 0) - (row["high"] < 0)
            assert row["verdict"] == {1: "gains", -1: "loses", 0: "cannot be told"}[sides]
            assert row["low"] <= row["benefit"] + 1e-9 and row["benefit"] - 1e-9 <= row["high"]
        assert sum(one["counts"].values()) == 4
    assert {row["group"] for row in found["metrics"]["brier_loss"]["groups"]} == {"female", "male"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["solo", "benefit"])
def test_a_run_that_is_killed_there_goes_on_to_the_same(joined, tmp_path, monkeypatch, task):
    folder, original = tmp_path / "run", Site.prepare

    def dies(self, instruction):
        if instruction.task == task and self.name == "Switzerland":
            raise Dies
        return original(self, instruction)

    with monkeypatch.context() as patch, pytest.raises(Dies):
        patch.setattr(Site, "prepare", dies)
        main(["run", "fedavg", *HEART, "--out", str(folder)])
    assert call("resume", folder) == 0
    assert section(folder) == section(joined) and call("verify", folder) == 0
    assert {path.name for path in (folder / "sites").glob("*.solo*.safetensors")} == {
        f"{site}.solo.safetensors" for site in SITES
    }


def site_of(config, folder=None):
    return build_site(config, build_parts(config), "VA", memory=folder and folder / "VA.safetensors")


@pytest.mark.parametrize("values", [{}, {"local_steps": 3}, {"optimizer": "adam", "keep_optimizer": "true"}])
def test_training_alone_in_parts_and_over_a_restart_is_the_same(tmp_path, values):
    config = make_config("fedavg", "heart:full", rounds=3, values={"solo": "true", **values})
    ask = Instruction("solo", Round(3, 3), build_parts(config).model)
    whole = site_of(config)
    assert whole.handle(ask).benefit == {"rounds": 3.0}
    for rounds in (1, 2, 3):
        part = site_of(config, tmp_path)
        part.exchanges["benefit"].alone.seconds = 0.0
        assert part.handle(ask).benefit == {"rounds": rounds}
    parted, model = (site.exchanges["benefit"].alone.model for site in (part, whole))
    assert all(torch.equal(parted[key], value) for key, value in model.items())


def test_a_personal_model_is_what_the_site_would_use(tmp_path):
    folder = run(tmp_path / "run", method="ditto")
    sites = json.loads((folder / "report.json").read_text())["sites"]
    for metric, one in section(folder)["metrics"].items():
        own = {site: row["personal_metrics"][metric] for site, row in sites.items()}
        assert {row["site"]: row["federated"] for row in one["sites"]} == pytest.approx(own)
    assert section(folder)["trainer"] == "sgd"


def test_it_is_in_the_configuration_where_it_is_asked_for_alone():
    asks = make_config("fedavg", "heart", values={"solo": "true"})
    assert RunConfig.from_json(asks.to_json()) == asks and asks.to_json()["solo"] is True
    assert "solo" not in make_config("fedavg", "heart").to_json()


@pytest.mark.parametrize(
    "method, words", [("solo", "is what the others are held against"), ("pooled", "train on data of their own")]
)
def test_references_have_no_benefit(method, words):
    with pytest.raises(UserError, match=words):
        make_config(method, "support2", values={"solo": "true"})


def test_what_is_not_quick_is_asked_for():
    by_itself = {
        task: asks_by_itself(make_config("fedavg", task))
        for task in ("heart", "ist", "support2", "digits", "brain-seg")
    }
    assert by_itself == {"heart": True, "ist": True, "support2": True, "digits": False, "brain-seg": False}
    assert not asks_by_itself(make_config("solo", "heart"))
    assert not asks_by_itself(make_config("fedism", "heart", values={"secure_sum": "masks"}))


def row(site, benefit, low, high):
    verdict = (
        None if benefit is None else "gains" if (low or 0) > 0 else "loses" if (high or 0) < 0 else "cannot be told"
    )
    return {"site": site, "benefit": benefit, "low": low, "high": high, "verdict": verdict}


def test_the_sentence_names_those_who_lose_most_first():
    rows = [
        row("A", 0.05, 0.01, 0.09),
        row("B", -0.1, -0.2, -0.05),
        row("C", -0.3, -0.4, -0.2),
        row("D", 0.0, None, None),
    ]
    assert sentence([*rows, row("E", None, None, None)], "AUC").replace("\N{MINUS SIGN}", "-") == (
        "Joining (AUC): 1 of 5 sites gains (A: +0.050 [+0.010, +0.090]), 2 lose (C: -0.300 [-0.400, -0.200]; "
        "B: -0.100 [-0.200, -0.050]), 1 with too few patients to tell, 1 without an answer."
    )


def test_the_page_says_it_first_and_shows_it(joined):
    page = (joined / "report.html").read_text()
    first = section(joined)["sentences"][0]
    assert page.index(first) < page.index("<h2>") and "The benefit of joining for each site" in page
    assert 'id="benefit-' in page


def test_a_comparison_counts_who_gains_and_loses(joined, bare, tmp_path):
    runs = [json.loads((folder / "report.json").read_text())["detail"] for folder in (joined, bare)]
    found = compare([runs[0]])
    assert over_methods(found) == [f"FedAvg: {section(joined)['sentences'][0]}"]
    (table,) = [table for table in comparison_tables(found) if table["label"].startswith(BENEFIT)]
    cells = {row["title"]: row["cells"][0][0] for row in table["rows"]}
    for one in section(joined)["metrics"].values():
        told = {kind: cells[f"{one['label']}, sites: {answer(kind)}"] for kind in VERDICTS}
        assert told == {kind: f"{one['counts'][kind]:.1f}" for kind in VERDICTS}
        least = min(row["benefit"] for row in one["sites"])
        assert cells[f"{one['label']}, least benefit of a site"] == signed(least)
    without = compare([runs[1]])
    assert over_methods(without) == []
    assert not any(table["label"].startswith(BENEFIT) for table in comparison_tables(without))
