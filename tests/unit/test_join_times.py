# SPDX-License-Identifier: Apache-2.0
"""Joins of times (C-index) and masks (Dice): plain differences from each hospital's patients alone."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from markupsafe import escape

from cases import each
from fairflare.core.errors import UserError
from fairflare.functional.decision import Design
from fairflare.functional.survival import concordance, concordance_error
from fairflare.report.join import LANGUAGES, OutOfFold, page, texts
from fairflare.studies import candidates
from fairflare.studies.candidates import read_join
from fairflare.studies.join import Question, measure_join
from fairflare.studies.joined import c_index_benefit, differences, sheets_of


def patients(n, seed=0):
    """Times and events (n, 2), features whose first moves the hazard, and four folds (2, n)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    times, lost = rng.exponential(np.exp(-x[:, 0])), rng.exponential(2.0, n)
    targets = np.stack([np.minimum(times, lost).round(1), times <= lost], axis=1).astype(float)
    return targets, x, np.stack([rng.permutation(n) % 4 for _ in range(2)])


def test_the_c_index_counts_pairs_within_folds_and_its_interval_is_the_jackknifes():
    targets, x, folds = patients(200)
    new, own = np.stack([x[:, 0]] * 2), np.stack([x[:, 1]] * 2)
    found, pairs, wins = c_index_benefit(targets, own, new, folds), 0.0, 0.0
    for row in folds:
        for fold in range(4):
            some = row == fold
            for i in np.flatnonzero(some & (targets[:, 1] == 1)):
                later = some & (
                    (targets[:, 0] > targets[i, 0]) | ((targets[:, 0] == targets[i, 0]) & (targets[:, 1] == 0))
                )
                for risks, sign in ((x[:, 0], 1), (x[:, 1], -1)):
                    wins += sign * ((risks[i] > risks[later]) + (risks[i] == risks[later]) / 2).sum()
                pairs += later.sum()
    assert found.mean == pytest.approx(wins / pairs, abs=0.01) and found.mean > 0.1  # of equal deals: means of ratios
    one = np.zeros((1, 200))
    alone = c_index_benefit(targets, one, new[:1], one)
    share = concordance(*targets.T, x[:, 0], np.ones((1, 200)))[0]
    assert alone.mean == pytest.approx(share - 0.5)
    error = concordance_error(*targets.T, x[:, 0])
    assert np.sqrt(alone.variance / 200) == pytest.approx(error, rel=0.01)


def test_the_own_model_is_coxs_ridge_regression(monkeypatch):
    from lifelines import CoxPHFitter

    targets, x, _ = patients(150)
    table = pd.DataFrame(x, columns=["a", "b", "c"]).assign(time=targets[:, 0], event=targets[:, 1])
    monkeypatch.setattr(candidates, "PENALTIES", np.array([20.0]))
    fit = CoxPHFitter(penalizer=20 / table.std().to_numpy()[:3] ** 2 / len(x)).fit(table, "time", "event")
    assert candidates.own_log_risks(x, targets, np.eye(3)) == pytest.approx(fit.params_.to_numpy(), abs=1e-5)


def test_the_penalty_is_chosen_by_what_held_out_patients_say(monkeypatch):
    targets, x, _ = patients(150)
    noise = np.random.default_rng(1).permutation(targets)
    monkeypatch.setattr(candidates, "PENALTIES", np.array([1.0, 1e4]))
    assert abs(candidates.own_log_risks(x, targets, np.eye(3))[0]) > 0.5
    assert np.abs(candidates.own_log_risks(x, noise, np.eye(3))).max() < 0.02


def told():
    """Of four hospitals in which the candidate alone knows the risks."""
    found = {}
    for k in range(4):
        targets, x, folds = patients(120, k)
        found[f"site-{k}"] = OutOfFold(targets, np.stack([[x[:, 1]] * 2, [x[:, 0]] * 2]), folds=folds.astype(float))
    return differences(found, ["fedavg"], Design(4, 2))


def test_what_is_said_of_them_is_no_brier_score_and_has_no_mix():
    found = told()
    assert found["score"] == "C-index" and "not validated" in found["note"]
    assert all(row["candidates"]["fedavg"]["verdict"] == "gains" for row in found["sites"].values())
    assert all("mix" not in row["answer"].lower() for row in found["sites"].values())
    html = page({**found, "title": "Deaths", "refused": {}})
    assert "C-index less the own model" in html and "Brier" not in html


def test_a_dice_is_a_paired_difference():
    dice = np.random.default_rng(0).uniform(0.6, 0.9, 50)
    one = OutOfFold(np.zeros((50, 1, 8, 8)), np.stack([dice, dice - 0.1])[:, None], folds=np.zeros((1, 50)))
    row = differences({"a": one}, ["fedavg"], Design(4, 1))["sites"]["a"]["candidates"]["fedavg"]
    assert row["verdict"] == "loses" and row["low"] == pytest.approx(row["high"]) == pytest.approx(-0.1)


@each("language", LANGUAGES)
def test_there_is_no_mix_of_them_and_the_sheet_says_so(language, tmp_path):
    found, words = {**told(), "methods": ["fedavg"], "title": "Deaths", "task": "ist-survival"}, texts(language)
    (tmp_path / "join.json").write_text(json.dumps(found))
    with pytest.raises(UserError, match="Brier score"):
        read_join(tmp_path)
    sheet = sheets_of(tmp_path, ["site-0"], language)[0].read_text()
    for said in (words["plain"], words["plain_benefit"]):
        assert str(escape(said.format(score="C-index"))) in sheet
    assert "Brier" not in sheet and words["no_mix"] not in sheet and words["columns"]["together"] not in sheet
    assert 'class="candidates"' not in sheet, "a phone shows the one benefit that there is"


@pytest.mark.slow
def test_a_join_answers_of_times(tmp_path):
    question = Question(
        ("fedavg",), "support2-survival", Design(2, 1), choices={"rounds": 1, "values": {"output": "cox"}}
    )
    found = measure_join(question, tmp_path)
    assert found["not_validated"] == [found["score"]] and found["sites"]
    assert all(set(kinds) == {"cox"} for kinds in found["own_models"].values())
    assert all(np.isfinite(row["candidates"]["fedavg"]["low"]) for row in found["sites"].values())


@pytest.mark.slow
def test_a_join_answers_of_masks(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "RATES", (1.0,))
    options = {"n_sites": 2, "images": 80, "site_test_images": 0, "size": 32, "epochs": 1}
    question = Question(("fedavg",), "fundus-phantom:small", Design(2, 1), choices={"rounds": 1, "values": options})
    found = measure_join(question, tmp_path)
    assert found["score"] == "Dice" and found["not_validated"] == ["Dice"] and "not validated" in found["note"]
    assert list(found["candidates"]) == ["fedavg"] and len(found["sites"]) == len(found["refused"]) == 1
    for site, row in found["sites"].items():
        sheet = (tmp_path / "sheets" / f"{site}.html").read_text()
        assert row["candidates"]["fedavg"]["low"] < row["candidates"]["fedavg"]["benefit"] < 1
        assert "Dice of the other model less that of the own model" in sheet and "not validated" in sheet
        assert "Brier" not in sheet and "mix with" not in sheet
