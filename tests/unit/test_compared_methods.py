# SPDX-License-Identifier: Apache-2.0
"""What methods bring beside the own model: classes by the Brier score, times by the C-index, masks by Dice."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit

from fairflare.core.errors import UserError
from fairflare.decision.estimands import Folds
from fairflare.decision.methods import C_INDEX, DICE, GAINS, LOSES, SAME, _c_shares, compared
from fairflare.decision.regression import Hospital
from fairflare.decision.sums import Plan
from fairflare.decision.verdicts import UNTOLD
from fairflare.functional.survival import concordance, concordance_error
from fairflare.studies import candidates
from fairflare.studies.join import Question, measure

DESIGN = Folds(4, 2)


def patients(n, seed=0):
    """Times and events (n, 2), features whose first moves the hazard, and four folds (2, n)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    times, lost = rng.exponential(np.exp(-x[:, 0])), rng.exponential(2.0, n)
    targets = np.stack([np.minimum(times, lost).round(1), times <= lost], axis=1).astype(float)
    return targets, x, np.stack([rng.permutation(n) % 4 for _ in range(2)])


def test_the_c_index_counts_pairs_within_folds_and_its_variance_is_the_jackknifes():
    targets, x, folds = patients(200)
    found, pairs, wins = _c_shares(targets, np.stack([x[:, 0]] * 2), folds), 0.0, 0.0
    for row in folds:
        for fold in range(4):
            some = row == fold
            for i in np.flatnonzero(some & (targets[:, 1] == 1)):
                later = some & (
                    (targets[:, 0] > targets[i, 0]) | ((targets[:, 0] == targets[i, 0]) & (targets[:, 1] == 0))
                )
                wins += ((x[i, 0] > x[later, 0]) + (x[i, 0] == x[later, 0]) / 2).sum()
                pairs += later.sum()
    assert found.mean() == pytest.approx(wins / pairs, abs=0.01)  # of equal deals: means of ratios
    alone = _c_shares(targets, x[None, :, 0], np.zeros((1, 200)))
    assert alone.mean() == pytest.approx(concordance(*targets.T, x[:, 0], np.ones((1, 200)))[0])
    error = concordance_error(*targets.T, x[:, 0])
    assert alone.std(ddof=1) / np.sqrt(200) == pytest.approx(error, rel=0.01)


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


def made(sites, gain, seed=0):
    """Own models that are off by noise, and a candidate that takes away the part ``gain`` of it, or adds to it."""
    rng, hospitals, own, new = np.random.default_rng(seed), {}, {}, {}
    for k in range(sites):
        n = int(rng.integers(200, 500))
        logits, noise = rng.normal(0, 1.2, n), rng.normal(0, 2.0, (2, n))
        y = (rng.random(n) < expit(logits)).astype(float)
        name = f"site-{k}"
        hospitals[name] = Hospital.of(np.stack([np.ones(n), logits], axis=1), y)
        own[name], new[name] = expit(logits + noise), expit(logits + (1 - gain) * noise)
    folds = {name: np.zeros(one.shape, dtype=np.int64) for name, one in own.items()}
    return hospitals, own, {"m": new}, folds


def verdicts_of(sites, gain):
    found = compared(*made(sites, gain), DESIGN)["m"]
    return [row["verdict"] for row in found["sites"].values()], found


def test_gainers_and_losers_are_told():
    assert verdicts_of(6, 0.8)[0] == [GAINS] * 6 and verdicts_of(6, -0.8)[0] == [LOSES] * 6
    assert set(verdicts_of(6, 0.001)[0]) == {SAME}
    verdicts, found = verdicts_of(3, 0.8)
    assert "average" not in found, "fewer than four hospitals speak for themselves"
    row = found["sites"]["site-0"]
    assert (row["own_low"], row["own_high"]) == (row["low"], row["high"]) and set(verdicts) <= {GAINS, UNTOLD}


def test_a_group_is_told_only_where_none_of_its_attribute_is_small():
    hospitals, own, new, folds = made(1, 0.5)
    n = len(hospitals["site-0"].y)
    attributes = {"sex": ["f"] * 100 + ["m"] * (n - 100), "ward": ["icu"] * 20 + [""] * (n - 20), "one": [""] * n}
    found = compared(hospitals, own, new, folds, DESIGN, attributes={"site-0": attributes})
    assert list(found["m"]["sites"]["site-0"]["groups"]) == ["sex=f", "sex=m"]


def test_times_and_masks_are_plain_differences():
    targets, x, folds = patients(120)
    one = Hospital(np.ones((120, 1)), targets, np.arange(120))
    rows = compared(
        {"a": one}, {"a": np.stack([x[:, 1]] * 2)}, {"m": {"a": np.stack([x[:, 0]] * 2)}}, {"a": folds}, DESIGN, C_INDEX
    )
    assert rows["m"]["sites"]["a"]["value"] > 0.1 and rows["m"]["sites"]["a"]["verdict"] == GAINS
    dice = np.random.default_rng(0).random((2, 120))
    rows = compared({"a": one}, {"a": dice}, {"m": {"a": dice + 0.03}}, {"a": folds}, DESIGN, DICE)
    assert rows["m"]["sites"]["a"]["value"] == pytest.approx(0.03) and rows["m"]["sites"]["a"]["verdict"] == GAINS


def test_use_and_participation_are_not_answered_of_times(tmp_path):
    question = Question("support2-survival", (), Plan(2, 1), choices={"values": {"output": "cox"}})
    with pytest.raises(UserError, match="or METHODs, whose J alone is told of times and masks, got 'none'"):
        measure(question, tmp_path / "join")
    assert not (tmp_path / "join").exists()


@pytest.mark.slow
def test_a_join_answers_of_times(tmp_path):
    choices = {"rounds": 1, "values": {"output": "cox"}}
    found = measure(Question("support2-survival", ("fedavg",), Plan(2, 1), choices=choices), tmp_path)
    assert found["score"] == found["not_validated"] == C_INDEX and found["sites"] == {}
    rows = found["methods"]["fedavg"]["sites"]
    assert rows and all(np.isfinite(row["low"]) for row in rows.values())
    page = (tmp_path / "join.html").read_text()
    assert "is not validated" in page and all(site in page for site in rows) and "Brier" not in page


@pytest.mark.slow
def test_a_join_answers_of_masks(tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "RATES", (1.0,))
    options = {"n_sites": 2, "images": 80, "site_test_images": 0, "size": 32, "epochs": 1}
    choices = {"rounds": 1, "values": options}
    found = measure(Question("fundus-phantom:small", ("fedavg",), Plan(2, 1), choices=choices), tmp_path)
    rows = found["methods"]["fedavg"]["sites"]
    assert found["score"] == DICE and len(rows) == len(found["refused"]) == 1
    assert all(row["low"] < row["value"] < row["high"] for row in rows.values())
