# SPDX-License-Identifier: Apache-2.0
"""``fairflare join``: folds as a setting of a run, the answer from risks out of fold, its page and its command."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from scipy.special import expit

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import DataError, UserError
from fairflare.decision.regression import Hospital, train
from fairflare.engine.setup import tasks
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.functional import slopes
from fairflare.functional.decision import Design, own_risks
from fairflare.functional.exchange import Direction
from fairflare.report.join import Deployed, OutOfFold, answers, page
from fairflare.studies.candidates import SHARES, federation_odds, log_odds, moved, on_fold
from fairflare.studies.folders import is_complete
from fairflare.studies.join import Question, measure_join
from fairflare.tasks.folds import dealt, everyone, folded, untestable

DESIGN = Design(5, 2)


def test_every_patient_is_tested_once_in_a_deal_and_else_trains():
    task = tasks.load("heart", "full")
    whole = everyone(task.site_data("VA"))
    seen = np.zeros(len(whole), dtype=int)
    for fold in range(5):
        data = folded(task, f"{fold}/5/1").site_data("VA")
        place = dealt(whole.labels.numpy(), 5, 1, "VA")
        assert (data.size("train"), data.size("val"), data.size("test")) == (
            (place != fold).sum(),
            0,
            (place == fold).sum(),
        )
        assert (data.splits["test"].inputs == whole.inputs[place == fold]).all()
        assert data.class_counts.sum() == data.size("train")
        seen += place == fold
    assert (seen == 1).all()
    other = dealt(whole.labels.numpy(), 5, 2, "VA")
    assert (other != dealt(whole.labels.numpy(), 5, 1, "VA")).any()


def test_a_folded_task_is_still_that_task_and_is_dealt_once_however_it_is_asked():
    task = tasks.load("heart", "full")
    made = folded(task, "0/5/0")
    assert isinstance(made, type(task)) and made.sites() == task.sites() and folded(task, "") is task
    assert (made.local_data("VA", None).splits["test"].inputs == made.site_data("VA").splits["test"].inputs).all()


def test_training_parts_have_two_of_each_class_or_the_site_is_refused():
    labels = np.array([1] * 2 + [0] * 40)
    with pytest.raises(DataError, match="expected at least 2 patients of a class"):
        dealt(labels, 5, 0, "a")
    labels = np.array([1] * 5 + [0] * 40)
    for deal in range(20):
        place = dealt(labels, 5, deal, "a")
        assert all(labels[place != fold].sum() >= 2 for fold in range(5))


@each("labels", [[0, 1] * 14, [1] * 4 + [0] * 40, [0] * 60, []])
def test_a_site_of_too_few_patients_is_not_tested(labels):
    assert "expected at least" in untestable(np.array(labels))
    assert not untestable(np.array([0] * 25 + [1] * 5))


def test_the_fold_is_part_of_a_configuration_and_unsaid_without_one():
    config = make_config("fedavg", "heart:full")
    assert "fold" not in config.to_json()
    one = dataclasses.replace(config, fold="2/5/0")
    assert RunConfig.from_json(one.to_json()) == one
    assert one.sha256() != config.sha256()
    for wrong in ("2", "a/5/0", "2/5/0/1", 3):
        with pytest.raises(UserError, match="fold"):
            RunConfig.from_json({**config.to_json(), "fold": wrong})
    with pytest.raises(UserError, match="F from 0 to K - 1"):
        folded(tasks.load("heart", "full"), "5/5/0")


def hospitals(sites: int, gain: float, seed: int = 0, sizes: tuple[int, int] = (200, 500)) -> dict[str, OutOfFold]:
    """Own models that are off by noise, and a candidate that takes away the part ``gain`` of it, or adds to it."""
    rng, found = np.random.default_rng(seed), {}
    for k in range(sites):
        n = int(rng.integers(*sizes))
        logits = rng.normal(0, 1.2, n)
        noise = rng.normal(0, 2.0, (2, n))
        labels = (rng.random(n) < expit(logits)).astype(float)
        found[f"site-{k}"] = OutOfFold(labels, np.stack([expit(logits + noise), expit(logits + (1 - gain) * noise)]))
    return found


def test_whose_privacy_each_candidate_keeps_is_known(monkeypatch):
    monkeypatch.delattr("fairflare.studies.join.build_parts")  # no data is read for it
    seeded, private, site = (
        "fedavg:trainer=dp-sgd,draws=seed",
        "fedavg:trainer=dp-sgd,epsilon=3",
        "fedavg:site_epsilon=2",
    )
    for labels, kept in {
        ("fedavg", seeded): {},
        (private,): {private: {"record": {"epsilon": 3.0, "delta": 1e-5}}},
        (site,): {site: {"hospital": {"epsilon": 2.0, "delta": 1e-5}}},
    }.items():
        values = {"secure_sum": "masks"} if labels == (site,) else {}
        assert Question(labels, "heart", choices={"values": values}).privacy() == kept


def test_gainers_and_losers_are_told():
    found = answers(hospitals(8, 0.8), ["fedavg"], DESIGN, 0.002)
    assert all(row["answer"].startswith("Join (") for row in found["sites"].values())
    assert all(row["mix"]["share"] > 0.5 and row["mix"]["p_harm"] <= 0.05 for row in found["sites"].values())
    assert found["candidates"]["fedavg"]["new_hospital"]["p_gain"] > 0.9
    lost = answers(hospitals(8, -0.8), ["fedavg"], DESIGN, 0.0)
    assert all(row["answer"].startswith("Stay alone") for row in lost["sites"].values())
    assert all(row["mix"]["share"] == 0 for row in lost["sites"].values())
    json.dumps([found, lost], allow_nan=False)


def test_a_candidate_like_the_own_model_makes_no_difference_that_matters():
    found = answers(hospitals(6, 0.0), ["fedavg"], DESIGN, 0.002)
    assert all(row["answer"].startswith("No difference that matters") for row in found["sites"].values())


def test_few_patients_are_told_how_many_more():
    found = answers(hospitals(6, 0.3, sizes=(35, 45)), ["fedavg"], DESIGN, 0.002)
    unclear = [row for row in found["sites"].values() if row["answer"].startswith("Cannot be told")]
    assert unclear and all(" needs " in row["answer"] for row in unclear)


def test_fewer_than_four_hospitals_speak_for_themselves():
    found = answers(hospitals(2, 0.8, sizes=(400, 500)), ["fedavg"], DESIGN, 0.002)
    assert "average" not in found["candidates"]["fedavg"] and found["note"]
    assert all(row["candidates"]["fedavg"]["verdict"] == "gains" for row in found["sites"].values())


def regressed_hospitals(sites: int, seed: int = 0) -> dict[str, OutOfFold]:
    """Alike hospitals of 60 patients; the own model is off by chance, and the candidate knows the truth."""
    rng, found = np.random.default_rng(seed), {}
    truth = np.array([-0.4, 0.8, -0.6, 0.5])
    for k in range(sites):
        x = np.hstack([np.ones((60, 1)), rng.normal(size=(60, 3))])
        own = truth + rng.normal(0, 0.4, 4)
        risks = np.stack([expit(x @ own), expit(x @ truth)])
        labels = (rng.random(60) < expit(x @ truth)).astype(float)
        found[f"site-{k}"] = OutOfFold(labels, np.stack([risks, risks], axis=1), Deployed(x, labels, risks))
    return found


def test_a_hospitals_regression_tells_more_than_its_outcomes():
    tested = regressed_hospitals(10)
    told = answers(tested, ["fedavg"], DESIGN, 0.0)["sites"]
    plain = answers({s: dataclasses.replace(t, deployed=None) for s, t in tested.items()}, ["fedavg"], DESIGN, 0.0)
    assert {row["by"] for row in told.values()} == {"regression"}
    assert {row["by"] for row in plain["sites"].values()} == {"outcomes"}

    def gainers(rows):
        return sum(row["candidates"]["fedavg"]["verdict"] == "gains" for row in rows.values())

    assert gainers(told) > gainers(plain["sites"])
    assert all(row["mix"]["share"] >= plain["sites"][site]["mix"]["share"] for site, row in told.items())


def test_what_the_regression_says_is_that_of_slopes():
    tested = regressed_hospitals(6)
    found = answers(tested, ["fedavg"], DESIGN, 0.002)["sites"]
    training = train([Hospital.of(t.deployed.x, t.labels) for t in tested.values()])
    total = training.coefficients, training.hessian, len(tested)
    fits = [
        slopes.fitted(t.deployed.x, t.labels, slopes.Others.of_all(*total, t.deployed.x, t.labels))
        for t in tested.values()
    ]
    weights = np.full(len(slopes.PULLS), 1 / len(slopes.PULLS))
    for _ in range(slopes.EM_STEPS):
        weights = slopes.em_step(sum(slopes.shares(fit.evidence, weights) for fit in fits), len(fits))
    parts, known, sums = [], [], np.zeros(2)
    for t, fit in zip(tested.values(), fits):
        of = slopes.Slopes.of(fit, weights)
        row = t.at_hand().row
        parts.append(Direction.along(row, np.ones(1), row.seconds[0]).part_right(DESIGN))
        known.append(slopes.Regressed.of_models(of, t.deployed.x, *t.deployed.risks, parts[-1].q))
        sums += slopes.misfit_terms(parts[-1], known[-1].of.mean, DESIGN)
    for row, part, one in zip(found.values(), parts, known):
        one = one.widened(*slopes.misfit(sums))
        told = row["candidates"]["fedavg"]
        assert told["p_harm"] == pytest.approx(slopes.harm(one.of, part.q))
        gain = slopes.gain(one.of, one.q)
        assert (told["shrunken"], told["low"]) == pytest.approx((gain.mean, gain.interval()[0]))
        assert row["mix"]["share"] == slopes.safe_share(one.of, part.q, 0.002)


def test_hospitals_of_few_patients_or_with_trees_are_told_by_their_outcomes():
    tested = regressed_hospitals(6)
    some = {**tested, "site-0": dataclasses.replace(tested["site-0"], deployed=None)}
    rows = answers(some, ["fedavg"], DESIGN, 0.002)["sites"]
    assert [row["by"] for row in rows.values()] == ["outcomes", *["regression"] * 5]
    wide = {
        site: dataclasses.replace(t, deployed=Deployed(np.tile(t.deployed.x, 11), t.labels, t.deployed.risks))
        for site, t in tested.items()
    }
    assert {row["by"] for row in answers(wide, ["fedavg"], DESIGN, 0.002)["sites"].values()} == {"outcomes"}


@each("sites", [2, 6])
def test_the_page_has_a_sheet_for_each_hospital_and_escapes_names(sites):
    tested = {f"<b>{name}": one for name, one in hospitals(sites, 0.5).items()}
    found = answers(tested, ["fedavg"], DESIGN, 0.002)
    text = page({**found, "title": "A & B", "new_size": 100, "refused": {"small": "expected at least 30 patients"}})
    assert text.count("break-before: page") >= sites
    assert "<b>site" not in text and "A &amp; B" in text and "small: expected at least 30" in text


def test_the_own_model_is_the_better_of_two():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    line, corner = (rng.random(400) < expit(2 * x[:, 0])), (x[:, 0] * x[:, 1] > 0) ^ (rng.random(400) < 0.05)
    for y, kind in ((line, "regression"), (corner, "trees")):
        risks, found = own_risks(x[:300], y[:300].astype(float), x[300:])
        assert found == kind
        assert ((risks - y[300:]) ** 2).mean() < 0.2
    assert own_risks(x[:30], np.array([1.0] * 2 + [0.0] * 28), x[:5])[1] == "regression"


def test_own_class_shares_are_bayes_theorem_and_change_nothing_where_they_are_the_federations():
    config = on_fold(make_config("fedavg", "heart:full"), "all")
    parts = build_parts(config, at_site=True)
    odds, label = federation_odds(parts, config, 1), config.method
    everybody = np.concatenate([everyone(parts.task.site_data(site)).labels.numpy() for site in parts.task.sites()])
    assert odds == pytest.approx(np.log(everybody.mean() / (1 - everybody.mean())))
    logits, alike = np.linspace(-2, 2, len(everybody)), everybody.astype(float)
    assert moved(parts, config, label, logits, alike, odds)[label + SHARES] == pytest.approx(0, abs=1e-12)
    assert label + SHARES not in moved(parts, config, label, logits, alike)
    # features that say the same of each class, and a hospital with more of the event
    share, ratio, labels = everybody.mean(), np.exp(logits), np.array([1.0] * 30 + [0.0] * 10)
    by = moved(parts, config, label, np.linspace(-1, 1, 40), labels, odds)[label + SHARES]
    pooled, bayes = share * ratio / (share * ratio + 1 - share), 0.75 * ratio / (0.75 * ratio + 0.25)
    assert expit(np.log(pooled / (1 - pooled)) + by) == pytest.approx(bayes) and by == log_odds(labels) - odds


def test_shares_are_a_candidate(tmp_path):
    question = Question(("fedavg",), "heart:full", Design(2, 1), choices={"rounds": 1}, shares=True)
    found = measure_join(question, tmp_path)
    assert list(found["weights"]) == ["fedavg", "fedavg + intercept", "fedavg" + SHARES]


JOIN = ["join", "fedavg", "ditto", "--task", "heart:full", "--folds", "2", "--repeats", "1", "--rounds", "2"]


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def test_the_command_answers_every_hospital_and_goes_on_where_it_was_stopped(tmp_path, capsys):
    out = tmp_path / "join"
    arguments = [*JOIN, "--workers", "1", "--out", str(out)]
    assert run(arguments) == 0
    first, said = json.loads((out / "join.json").read_text()), capsys.readouterr()
    assert list(first["sites"]) == ["Cleveland", "Hungary", "Switzerland", "VA"]
    assert list(first["weights"]) == ["fedavg", "fedavg + intercept", "ditto"]
    assert "Switzerland: " in said.out and "4 federated trainings" in " ".join(said.err.split())
    assert sum(row["n"] for row in first["sites"].values()) == 920
    assert {row["by"] for row in first["sites"].values()} == {"regression"}
    assert first["not_validated"] == [] and set(first["decision"]["sites"]) == set(first["sites"])
    assert "Alone, use, or join:" in said.out and "Alone, use, or join" in (out / "join.html").read_text()
    removed = next(path for path in out.iterdir() if path.name.startswith("ditto-fold1"))
    (removed / "model.safetensors").unlink()
    (removed / "report.json").unlink()
    assert run(arguments) == 0
    assert json.loads((out / "join.json").read_text()) == first
    assert "finished before, reused" in capsys.readouterr().err
    assert not list(out.rglob("report.html")) and run(["verify", str(removed)]) == 0
    assert run(["report", str(removed)]) == 0 and (removed / "report.html").is_file()
    assert run(["verify", str(removed)]) == 0
    (removed / "report.html").unlink()
    assert not is_complete(removed)  # its log records a page now


@each(
    "change, words",
    [
        (["--no-harm", "much"], "expected strict or a loss"),
        (["--no-harm", "nan"], "expected strict or a loss"),
        (["--folds", "1"], "--folds"),
        (["--task", "ctg"], "expected a task of two classes"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(change, words, tmp_path, capsys):
    assert run([*JOIN, "--out", str(tmp_path / "new"), *change]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@each("method", ["solo", "fedbn"])
def test_a_method_without_one_shared_model_is_refused(method, tmp_path, capsys):
    arguments = ["join", method, *JOIN[3:], "--out", str(tmp_path / "new")]
    assert run(arguments) in (1, 2)
    assert capsys.readouterr().err.startswith("fairflare: ")
