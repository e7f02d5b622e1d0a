# SPDX-License-Identifier: Apache-2.0
"""Alone, use, or join: the models against independent fits, the estimates and rules against hand-computed cases."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm

from cases import each
from fairflare.decision import decide as deciding
from fairflare.decision import regression, validation, verdicts
from fairflare.decision.decide import decide
from fairflare.decision.estimands import (
    Estimate,
    Folds,
    estimates,
    loss_difference,
    margin,
    mean_over_patients,
    net_benefit_difference,
)
from fairflare.decision.heterogeneity import between, posteriors
from fairflare.decision.regression import MEMBER, OUTSIDE, OWN, Hospital
from fairflare.decision.study import sentence
from fairflare.decision.verdicts import (
    ADDS,
    ALONE,
    COSTS,
    JOIN,
    SAME,
    UNTOLD,
    USE,
    USE_OR_JOIN,
    Verdict,
    too_few,
    verdict,
    withheld,
)
from fairflare.functional.decision import Normals
from fairflare.tasks.folds import dealt
from fairflare.tasks.metrics import auc

FEATURES = 4
TRUE = np.array([-0.5, 0.8, -0.6, 0.4, 0.0])


def hospital(seed, n=150, level=0.0, sign=1.0, visits=False):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(n), rng.integers(1, 5, n)) if visits else None
    rows = n if owner is None else len(owner)
    x = np.hstack([np.ones((rows, 1)), rng.normal(size=(rows, FEATURES))])
    logits = sign * (x[:, 1:] @ (TRUE[1:] + rng.normal(0, 0.1, FEATURES))) + TRUE[0] + level
    if owner is not None:
        logits = logits + rng.normal(0, 1.5, n)[owner]
    return Hospital.of(x, (rng.random(rows) < expit(logits)).astype(float), owner)


def federation(sites=6, **more):
    return {f"h{k}": hospital(k, n=80 + 20 * k, level=0.3 * (k % 3 - 1), **more) for k in range(sites)}


def folds_of(hospitals):
    named = {name: one.patient if one.grouped else None for name, one in hospitals.items()}
    return {
        name: np.stack([dealt(one.y.astype(int), 5, deal, name, named[name]) for deal in range(2)])
        for name, one in hospitals.items()
        if not too_few(one)
    }


def loss(at, x, y):
    return float(np.logaddexp(0, x @ at).sum() - y @ (x @ at))


def refit(hospitals, penalty=1.0):
    """An independent fit of all rows at once, by a general optimiser."""
    x, y = (np.concatenate([getattr(one, key) for one in hospitals]) for key in ("x", "y"))
    ridge = np.append(1e-3, np.full(x.shape[1] - 1, penalty))
    found = minimize(lambda at: loss(at, x, y) + (ridge * at) @ at / 2, np.zeros(x.shape[1]), method="BFGS", tol=1e-9)
    return found.x


def boxed(training, one):
    centre, q = training.others(one)
    return centre, q[None]


def test_fits_that_a_plain_newton_step_would_throw_about_are_found():
    """A start far from the maximum, with few events and a small penalty."""
    rng = np.random.default_rng(1)
    x = np.hstack([np.ones((60, 1)), rng.normal(size=(60, FEATURES))])
    y = (np.arange(60) < 4).astype(float)
    start, precision = np.full(FEATURES + 1, 4.0), 0.01 * np.eye(FEATURES + 1)[None]
    found = regression.penalised(x, y, np.ones((1, 60)), np.zeros(FEATURES + 1), precision, start)[0]
    assert (y - expit(x @ found)) @ x == pytest.approx(0.01 * found, abs=1e-3)


def test_one_training_is_the_fit_of_all_rows_at_once():
    hospitals = list(federation().values())
    assert regression.train(hospitals).coefficients == pytest.approx(refit(hospitals), abs=1e-4)


def test_the_outside_model_is_near_a_refit_without_the_hospital():
    """The step's error is a twentieth of its length, or less, at up to a third of all rows (decide.md, section 2)."""
    hospitals = federation(sites=10)
    training = regression.train(list(hospitals.values()))
    for name, one in hospitals.items():
        step, exact = training.others(one)[0], refit([other for key, other in hospitals.items() if key != name])
        moved = np.abs(expit(one.x @ exact) - expit(one.x @ training.coefficients)).mean()
        assert np.abs(expit(one.x @ step) - expit(one.x @ exact)).mean() < 0.05 * moved + 1e-5


def test_the_member_model_without_a_fold_is_near_a_refit_without_it():
    hospitals = federation()
    training = regression.train(list(hospitals.values()))
    one = hospitals["h4"]
    kept = (np.arange(len(one.y)) % 5 != 0).astype(float)
    found = regression.penalised(one.x, one.y, kept[None], *boxed(training, one), training.coefficients)[0]
    part = Hospital.of(one.x[kept > 0], one.y[kept > 0])
    exact = refit([part if other is one else other for other in hospitals.values()])
    moved = np.abs(expit(one.x @ exact) - expit(one.x @ training.coefficients)).mean()
    assert np.abs(expit(one.x @ found) - expit(one.x @ exact)).mean() < 0.05 * moved
    everyone = np.ones((1, len(one.y)))
    whole = regression.penalised(one.x, one.y, everyone, *boxed(training, one), training.coefficients)[0]
    assert whole == pytest.approx(training.coefficients, abs=1e-4)


def test_the_own_model_is_the_ridge_regression_that_its_cross_validation_chooses():
    one = hospital(3, n=200)
    found = regression.own_models(one, np.ones((1, 200)), np.zeros(FEATURES + 1))[0]
    inner = np.random.default_rng(0).permutation(200) % 5
    losses = {}
    for penalty in regression.PENALTIES:
        parts = [(Hospital.of(one.x[inner != k], one.y[inner != k]), inner == k) for k in range(5)]
        errors = [((expit(one.x[test] @ refit([part], penalty)) - one.y[test]) ** 2).sum() for part, test in parts]
        losses[penalty] = sum(errors)
    assert found == pytest.approx(refit([one], min(losses, key=losses.get)), abs=1e-3)


def test_the_update_moves_the_intercept_always_and_the_slope_where_the_likelihood_ratio_asks_for_it():
    one = hospital(5, n=400)
    rows, right = np.ones((1, 400)), refit([one], 1e-3)
    shifted = regression.updated(one.x, one.y, rows, (right + np.append(2.0, np.zeros(FEATURES)))[None])[0]
    assert shifted[1:] == pytest.approx(right[1:]) and abs(shifted[0] - right[0]) < 0.1
    steep = regression.updated(one.x, one.y, rows, 3 * right[None])[0]
    assert steep[1:] == pytest.approx(right[1:], rel=0.1, abs=0.02)
    kept = regression.updated(one.x, one.y, rows, 3 * right[None], slope=False)[0]
    assert kept[1:] == pytest.approx(3 * right[1:])
    two = np.stack([np.ones(400), 3 * (one.x @ right)], axis=1)
    a, b = minimize(lambda t: loss(t + [0, 1], two, one.y) + (0.5 * t[0] ** 2 + t[1] ** 2) / 2, [0.0, -1.0]).x
    assert steep == pytest.approx((1 + b) * 3 * right + np.append(a, np.zeros(FEATURES)), abs=1e-3)


def test_loss_differences_by_hand():
    y, first, second = np.array([1.0, 0.0]), np.array([[0.6, 0.5]]), np.array([[0.8, 0.1]])
    assert loss_difference(y, first, second) == pytest.approx(np.array([[0.16 - 0.04, 0.25 - 0.01]]))
    corrected = loss_difference(y, first, second, kappa=0.1)
    assert corrected == pytest.approx(np.array([[1.9 * 0.4 * 0.2 - 0.04, 1.9 * 0.5 * 0.4 - 0.16]]))
    assert margin(0.5) == pytest.approx(0.005) and margin(0.03) == pytest.approx(0.000582)


def test_variances_are_by_patient_and_the_factor_has_a_floor():
    one = Hospital.of(np.ones((4, 1)), np.array([0.0, 1.0, 0.0, 1.0]), np.array([7, 7, 9, 11]))
    found = mean_over_patients(np.array([[1.0, 3.0, 2.0, 6.0]]), one, 2.0)
    sums = np.array([1 + 3 - 2 * 3.0, 2 - 3.0, 6 - 3.0])
    assert found.n == 3 and found.value == pytest.approx(3.0)
    assert found.variance / 3 == pytest.approx(3 / 2 * (sums**2).sum() / 16)
    assert found.standard_error == pytest.approx(math.sqrt(2 * found.variance / 3))
    assert found.largest_share == pytest.approx((sums**2).max() / (sums**2).sum())
    low, high = found.interval()
    assert (high - low) / 2 == pytest.approx(4.3026527 * found.standard_error)
    assert found.below(low) == pytest.approx(0.025)
    assert Folds(5, 1).factor == pytest.approx(2.25) and Folds(10, 20).factor == 1.75
    assert Folds(5, 2).stretch(0.0) == pytest.approx(1.25) and Folds(5, 2).stretch(1.0) == pytest.approx(1.0)


def test_participation_is_stretched_to_all_patients_and_joining_is_corrected_for_learning():
    one, rng = hospital(1), np.random.default_rng(0)
    names = (OWN, OUTSIDE, MEMBER, regression.ENSEMBLE)
    risks = {name: rng.uniform(0.2, 0.8, (2, 150)) for name in names}
    found = estimates(one, risks, Folds(5, 2), share=0.2)
    plain = ((one.y - risks[OUTSIDE]) ** 2 - (one.y - risks[MEMBER]) ** 2).mean()
    assert found["D"].value == pytest.approx(1.25 * (1 - 0.04) * plain)
    q, kappa = risks[MEMBER] - risks[OWN], 1 - 0.8**0.7
    assert found["J"].value == pytest.approx(((2 - kappa) * (one.y - risks[OWN]) * q - q**2).mean())


def test_net_benefit_by_hand():
    one = Hospital.of(np.ones((4, 1)), np.array([1.0, 1.0, 0.0, 0.0]))
    first, second = np.array([[0.1, 0.3, 0.3, 0.1]]), np.array([[0.3, 0.3, 0.1, 0.3]])
    found = net_benefit_difference(one, first, second, 0.2)
    assert found.value == pytest.approx((1 + 0.25 - 0.25) / 4)
    differences = np.array([1, 0, 0.25, -0.25])
    assert found.variance == pytest.approx(differences.var(ddof=1) + (0.5 + 0.5 / 16) / 4)
    curve = validation.decision_curve(one.y, second, np.array([0.2, 0.9]))
    assert curve == pytest.approx([(2 - 0.25) / 4, 0.0])


def test_others_pull_a_noisy_hospital_more_than_a_large_one():
    values = {f"h{k}": Estimate(0.01, 0.04, 400, 1.75) for k in range(8)}
    values |= {"small": Estimate(0.10, 0.04, 40, 1.75), "large": Estimate(0.10, 0.04, 4000, 1.75)}
    found = posteriors(values, with_size=False)
    assert found["small"].mean < 0.08 < 0.095 < found["large"].mean < 0.101
    one = between([0.0, 1.0, 2.0, 3.0], [0.01] * 4)
    assert one.average.mean == pytest.approx(1.5) and one.prediction[0] < 0 < 3 < one.prediction[1]
    assert 0.8 < one.tau < 2.5


def test_calibration_of_true_and_of_steep_risks():
    rng = np.random.default_rng(4)
    logits = rng.normal(0, 1, 20_000)
    one = Hospital.of(np.ones((20_000, 1)), (rng.random(20_000) < expit(logits)).astype(float))
    true, steep = validation.calibration(one, logits), validation.calibration(one, 2 * logits + 1)
    for (value, variance), right in zip((true.intercept, true.slope, true.log_ratio), (0, 1, 0), strict=True):
        assert abs(value - right) < 3 * math.sqrt(variance) and variance < 0.001
    assert steep.slope[0] == pytest.approx(true.slope[0] / 2, rel=1e-3)
    assert steep.log_ratio[0] == pytest.approx(math.log(one.y.sum() / expit(2 * logits + 1).sum()))
    assert auc(logits, one.y > 0.5) == pytest.approx(auc(expit(logits), one.y > 0.5))
    twice = Hospital.of(np.ones((4, 1)), np.array([1.0, 0, 1, 0]))
    assert auc(np.array([3.0, 1, 2, 2]), twice.y > 0.5) == pytest.approx(3.5 / 4)


def test_the_smallest_sample_is_that_of_the_published_tool():
    """pmsampsize(type = "b", cstatistic = 0.89, parameters = 24, prevalence = 0.174): 662, by simulation."""
    assert validation.minimum_patients(0.89, 0.174, 24) == pytest.approx(662, abs=5)
    assert validation.minimum_patients(0.6, 0.5, 1) >= math.ceil((1.96 / 0.05) ** 2 / 4)
    with pytest.raises(ValueError, match="AUC"):
        validation.minimum_patients(0.5, 0.2, 3)


def near(mean, sd=0.0001):
    return Normals(np.ones(1), np.array([mean]), np.array([sd]))


M = 0.005
RULES = [
    ((0.020, 0.020, 0.000), USE_OR_JOIN, SAME),
    ((0.020, 0.030, 0.010), JOIN, ADDS),
    ((-0.02, 0.020, 0.040), JOIN, ADDS),
    ((0.020, -0.02, -0.04), USE, COSTS),
    ((-0.02, 0.000, 0.020), ALONE, ADDS),
    ((0.000, 0.000, 0.000), ALONE, SAME),
]


@each("means, answer, participation", RULES)
def test_verdicts(means, answer, participation):
    found = verdict(*map(near, means), M, pooled=True)
    assert (found.answer, found.participation) == (answer, participation)
    assert found.p_false < 0.01 and found.reason == ""


def test_levels_of_verdicts():
    """ "Use or join" needs .025, as "joining costs"; from own patients alone neither is said, and all need .025."""

    def sure(p, mean=0.01):
        """Above 0 with probability 1 - p."""
        return near(mean, -mean / norm.ppf(p))

    assert verdict(sure(0.03), sure(0.03), near(0), M, True).answer == USE  # not "use or join"
    assert verdict(sure(0.02), sure(0.02), near(0), M, True).answer == USE_OR_JOIN
    assert verdict(sure(0.02), sure(0.02), near(0), M, False).answer == USE
    assert verdict(sure(0.03), sure(0.03), near(0), M, False).answer == UNTOLD
    assert verdict(sure(0.06), sure(0.06), near(0), M, True).answer == UNTOLD
    assert verdict(near(0.02), sure(0.04), sure(0.04), M, True).answer == JOIN
    costly = near(-0.02, 0.02 / norm.ppf(0.97))
    assert verdict(near(0.001, 1), near(0.001, 1), costly, M, True).participation == UNTOLD
    assert verdict(near(0.001, 1), near(0.001, 1), near(-0.02, 0.005), M, True).participation == COSTS
    assert verdict(near(0.001, 1), near(0.001, 1), near(-0.02, 0.005), M, False).participation == UNTOLD
    told = verdict(sure(0.02), near(0.02), near(0), M, True)
    assert told.p_false == pytest.approx(0.02, abs=1e-6)


def test_detectors_say_why_nothing_is_told():
    hospitals = federation()
    others = list(hospitals.values())[1:]
    one = hospitals["h0"]
    fine = {"U": Estimate(0, 1, 80, 1.75), "J": Estimate(0, 1, 80, 1.75)}
    outside = regression.train(others).coefficients
    assert withheld(one, others, outside, fine) == ""
    x = one.x.copy()
    x[:, 2] = 0.5
    assert withheld(Hospital.of(x, one.y), others, outside, fine, {2: "lactate"}).startswith("lactate has one value")
    assert withheld(Hospital.of(x, one.y), others, outside, fine, {1: "age"}) == ""
    assert "reversed" in withheld(hospital(9, n=150, sign=-1.0), others, outside, fine)
    few = one.y * (np.cumsum(one.y) <= 7)
    assert withheld(Hospital.of(one.x, few), others, outside, fine).startswith("few events: 7")
    heavy = {**fine, "J": Estimate(0, 1, 80, 1.75, largest_share=0.6)}
    assert withheld(one, others, outside, heavy) == "one patient makes 60% of the variance"
    assert too_few(Hospital.of(one.x[:29], one.y[:29])).startswith("too few patients to tell: 29")
    assert too_few(Hospital.of(one.x, one.y * (np.cumsum(one.y) <= 4))).startswith("too few patients to tell: 4")
    assert too_few(one) == ""


def test_one_training_answers_everybody(monkeypatch):
    """No hospital has more than REFIT_SHARE of the rows; a larger one costs one more training, without it."""
    calls = []
    train = regression.train
    monkeypatch.setattr(deciding.regression, "train", lambda some: calls.append(len(some)) or train(some))
    hospitals = federation()
    found = decide(hospitals, folds_of(hospitals), threshold=0.3)
    assert calls == [6]
    assert set(found.verdicts) == set(hospitals) and len(found.by_outcomes["D"]) == 6
    calls.clear()
    more = hospitals | {"large": hospital(20, n=900)}
    decide(more, folds_of(more))
    assert calls == [7, 6]


def test_tiny_hospitals_take_part_and_stop_nobody():
    hospitals = federation()
    tiny = {f"tiny{n}": Hospital.of(hospital(30 + n, n=30).x[:n], hospital(30 + n, n=30).y[:n]) for n in (1, 6, 29)}
    found = decide(hospitals | tiny, folds_of(hospitals))
    for name in tiny:
        assert found.verdicts[name].reason.startswith("too few patients to tell")
        assert found.verdicts[name].answer == UNTOLD
    assert all(not found.verdicts[name].reason.startswith("too few") for name in hospitals)
    without = decide(hospitals, folds_of(hospitals))
    assert not np.array_equal(found.training.coefficients, without.training.coefficients)


def test_a_reversed_hospital_speaks_by_no_ones_regression():
    hospitals = federation()
    assert decide(hospitals, folds_of(hospitals)).by_regression
    hospitals["odd"] = hospital(9, n=150, sign=-1.0)
    found = decide(hospitals, folds_of(hospitals))
    assert not found.by_regression and "reversed" in found.verdicts["odd"].reason


def test_with_three_hospitals_each_speaks_for_itself():
    hospitals = federation(sites=3)
    found = decide(hospitals, folds_of(hospitals))
    assert not found.averages and not found.by_regression
    assert all(isinstance(found.distribution("U", name), Estimate) for name in hospitals)


def test_a_worse_net_benefit_withholds_a_verdict(monkeypatch):
    hospitals = federation()
    monkeypatch.setattr(deciding, "verdict", lambda *a: Verdict(USE, SAME, 0.01))
    found = decide(hospitals, folds_of(hospitals), threshold=0.4, worthwhile=0.0)
    reasons = [one.reason for one in found.verdicts.values() if one.answer == UNTOLD]
    assert reasons and all("net benefit" in reason for reason in reasons)
    generous = decide(hospitals, folds_of(hospitals), threshold=0.4, worthwhile=1.0)
    assert all(one.answer == USE for one in generous.verdicts.values())


def test_by_row_the_intervals_of_repeat_visits_fail(monkeypatch):
    """The same visits by patient and by row, in six simulated federations of ten hospitals."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from decision_coverage import REGIMES, rows_of, summary

    held = {}
    for regime in ("visits", "visits by row"):
        rows = pd.DataFrame([row for number in range(6) for row in rows_of(number, REGIMES[regime], 0)])
        table = summary(rows.assign(regime=regime)).set_index(["what", "by"])["held"]
        held[regime] = {key: table[key, "own"] for key in "UJ"}
        assert ((rows["what"] == "U") & (rows["by"] == "regression")).any() == (regime == "visits by row")
    assert min(held["visits"].values()) > 88 and max(held["visits by row"].values()) < 85, held


SENTENCES = [
    (Verdict(USE, SAME), "use the others' model with your own calibration: joining adds nothing that matters"),
    (Verdict(UNTOLD, ADDS), "cannot be told whether to share; joining adds to using"),
    (
        Verdict(UNTOLD, UNTOLD, reason="few events: 7"),
        "cannot be told whether to share (few events: 7); what joining adds",
    ),
    (Verdict(UNTOLD, UNTOLD, reason=verdicts.TOO_FEW + ": 6 patients"), "too few patients to tell: 6 patients"),
]


@each("answer, words", SENTENCES)
def test_sentences(answer, words):
    assert sentence(answer).startswith(words)
