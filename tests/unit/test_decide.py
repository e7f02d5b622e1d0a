# SPDX-License-Identifier: Apache-2.0
"""Alone, use, or join: the models against independent fits, the estimates and rules against hand-computed cases."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import norm

from cases import each
from fairflare.core.errors import UserError
from fairflare.decision import decide as deciding
from fairflare.decision import regression, sums, validation, verdicts
from fairflare.decision.estimands import (
    Estimate,
    Folds,
    estimates,
    loss_difference,
    margin,
    mean_over_patients,
    net_benefit_difference,
)
from fairflare.decision.heterogeneity import average, posteriors
from fairflare.decision.mix import NO_MIX, right_part, safe_mix
from fairflare.decision.own import maker
from fairflare.decision.regression import MEMBER, OUTSIDE, OWN, Hospital
from fairflare.decision.study import content, numbers, on_components, row_from, row_of, sentence, smallest_sample, told
from fairflare.decision.study import folds_of as dealing
from fairflare.decision.sums import EM_AT, FOLDS_AT, REFITS_AT, Plan
from fairflare.decision.verdicts import (
    ADDS,
    ALONE,
    COSTS,
    JOIN,
    SAME,
    UNTOLD,
    USE,
    USE_OR_JOIN,
    Others,
    Reason,
    Verdict,
    too_few,
    verdict,
    withheld,
)
from fairflare.functional.decision import Normals
from fairflare.report.decision import checklist
from fairflare.tasks.folds import dealt
from fairflare.tasks.metrics import auc

FEATURES = 4
PLAN = Plan(5, 2, 0.3)
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


def decide(hospitals, dealt_to=None, plan=PLAN, **how):
    return deciding.decide(hospitals, folds_of(hospitals) if dealt_to is None else dealt_to, plan, **how)


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


def test_few_patients_with_large_differences_leave_fewer_degrees_of_freedom():
    """Box's, by the kurtosis; of normal differences about n, and 2 of one patient's alone. D has n - 1."""
    one, rng = hospital(0, n=2000), np.random.default_rng(0)
    normal = mean_over_patients(rng.normal(size=(1, 2000)), one, 1.0)
    assert normal.degrees == pytest.approx(2000, rel=0.1)
    single = mean_over_patients(np.eye(1, 2000), one, 1.0)
    assert single.degrees == pytest.approx(2, abs=0.01) and single.interval()[1] > 2 * single.standard_error
    rare = mean_over_patients((np.arange(2000) % 40 == 0)[None].astype(float), one, 1.0)
    assert rare.degrees == pytest.approx(2 * 50, rel=0.1)  # twice the patients who differ
    risks = {OWN: expit(rng.normal(size=(2, 2000))), OUTSIDE: np.full((2, 2000), 0.4), MEMBER: np.full((2, 2000), 0.5)}
    found = estimates(one, risks, Folds(5, 2), 0.1)
    assert found["U"].degrees < 2000 and found["D"].degrees is None


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
    at = net_benefit_difference(one, first, second, 0.3)  # a risk of the threshold itself is flagged
    assert at.value == pytest.approx((1 + 3 / 7 - 3 / 7) / 4)
    curve = validation.decision_curve(one.y, second, np.array([0.2, 0.3, 0.9]))
    assert curve == pytest.approx([(2 - 0.25) / 4, (2 - 3 / 7) / 4, 0.0])


def test_others_pull_a_noisy_hospital_more_than_a_large_one():
    values = {f"h{k}": Estimate(0.01, 0.04, 400, 1.75) for k in range(8)}
    values |= {"small": Estimate(0.10, 0.04, 40, 1.75), "large": Estimate(0.10, 0.04, 4000, 1.75)}
    found = posteriors(values, "D")
    assert found["small"].mean < 0.08 < 0.095 < found["large"].mean < 0.101
    one = average([0.0, 1.0, 2.0, 3.0], [0.01] * 4)
    assert one.mean == pytest.approx(1.5) and one.low < 0 < 3 < one.high


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
    assert found.p_false < 0.01 and found.reason is None


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
    outside, features = regression.train(others).coefficients, Others.of(others)

    def slope_of(hospital):
        return validation.calibration(hospital, hospital.x @ outside).slope

    def code(hospital, estimates=fine, columns=None):
        found = withheld(hospital, features, slope_of(hospital), estimates, columns)
        return found and found.code

    assert code(one) is None
    x = one.x.copy()
    x[:, 2] = 0.5
    lactate = withheld(Hospital.of(x, one.y), features, (1, 0.01), fine, {2: "lactate"})
    assert lactate == Reason("never_measured", 2) and lactate.words({2: "lactate"}).startswith("lactate has one value")
    assert code(Hospital.of(x, one.y), columns={1: "age"}) is None
    assert code(hospital(9, n=150, sign=-1.0)) == "reversed"
    few = one.y * (np.cumsum(one.y) <= 7)
    assert withheld(Hospital.of(one.x, few), features, (1, 0.01), fine) == Reason("few_events", 7)
    heavy = {**fine, "J": Estimate(0, 1, 80, 1.75, largest_share=0.6)}
    assert withheld(one, features, (1, 0.01), heavy) == Reason("one_patient", 0.6)
    assert too_few(Hospital.of(one.x[:29], one.y[:29])) == Reason("few_patients", 29)
    assert too_few(Hospital.of(one.x, one.y * (np.cumsum(one.y) <= 4))) == Reason("few_outcomes", 4)
    assert too_few(one) is None


@each("share, n, told", [(0.5, 40, True), (0.9, 200, True), (0.99, 40, False), (0.0, 40, False)])
def test_a_column_was_never_measured_unless_its_value_is_likely(share, n, told):
    """Elsewhere a share of the values is 0, as at this hospital; 0.0: the column is constant elsewhere, too."""
    rng = np.random.default_rng(0)
    elsewhere = np.where(rng.random(4000) < share, 0.0, rng.choice([-1.0, 1.0], 4000)) if share else np.ones(4000)
    others = Hospital.of(np.stack([np.ones(4000), elsewhere], axis=1), np.zeros(4000))
    here = Hospital.of(np.stack([np.ones(n), np.zeros(n) if share else np.ones(n)], axis=1), np.zeros(n))
    assert bool(verdicts.never_measured(here, Others.of([others]))) == told


def newton_sums(known):
    """Places of the sums that trained, and those that refit."""
    refits = [place for place in known.sums if REFITS_AT <= place < FOLDS_AT]
    return [place for place in known.sums if place < EM_AT], refits


def test_one_training_answers_everybody():
    """No hospital has more than REFIT_SHARE of the rows; for a larger one the others train once more, without it."""
    hospitals = federation()
    found = decide(hospitals)
    trained, refit = newton_sums(found.known)
    assert 3 <= len(trained) <= 10 and not refit and set(found.answers) == set(hospitals)
    reference = regression.train(list(hospitals.values()))
    assert found.training.coefficients == pytest.approx(reference.coefficients, abs=1e-9)
    more = hospitals | {"large": hospital(20, n=900)}
    found = decide(more)
    trained, refit = newton_sums(found.known)
    assert found.known.refits == ("large",) and 3 <= len(refit) <= 10 and min(refit) == REFITS_AT
    outside = found.answers["large"].assessment.outside
    assert outside == pytest.approx(regression.train(list(hospitals.values())).coefficients, abs=1e-6)
    told_alike = decide(more, tell_apart=False)
    assert not told_alike.known.refits and not newton_sums(told_alike.known)[1]


def test_sums_give_the_posteriors_of_all_values_at_hand():
    hospitals = federation()
    found = decide(hospitals)
    for key in ("U", "D", "EJ"):
        values = {name: one.assessment.estimates[key] for name, one in found.answers.items()}
        for name, of in posteriors(values, key).items():
            assert found.answers[name].by_outcomes[key].interval() == pytest.approx(of.interval(), abs=1e-9)
        variances = [one.variance / one.n for one in values.values()]
        assert found.averages[key].average == pytest.approx(average([one.value for one in values.values()], variances))


def test_tiny_hospitals_take_part_and_stop_nobody():
    hospitals = federation()
    tiny = {f"tiny{n}": Hospital.of(hospital(30 + n, n=30).x[:n], hospital(30 + n, n=30).y[:n]) for n in (1, 6, 29)}
    found = decide(hospitals | tiny, folds_of(hospitals))
    for name in tiny:
        assert found.answers[name].verdict == Verdict(UNTOLD, UNTOLD, reason=too_few(tiny[name]))
    assert all(found.answers[name].assessment is not None for name in hospitals)
    without = decide(hospitals)
    assert not np.array_equal(found.training.coefficients, without.training.coefficients)


def test_a_reversed_hospital_speaks_by_no_ones_regression():
    hospitals = federation()
    assert all(one.by_regression for one in decide(hospitals).answers.values())
    hospitals["odd"] = hospital(9, n=150, sign=-1.0)
    found = decide(hospitals)
    assert not any(one.by_regression for one in found.answers.values())
    assert found.answers["odd"].verdict.reason.code == "reversed"


def test_with_three_hospitals_each_speaks_for_itself():
    hospitals = federation(sites=3)
    found = decide(hospitals)
    assert not found.averages
    for one in found.answers.values():
        assert not one.by_regression and isinstance(one.distribution("U"), Estimate)


def test_hospitals_whose_variances_differ_too_much_speak_for_themselves(monkeypatch):
    """A smoothed variance of variances ten thousand times apart gave intervals wider than the score's range."""
    hospitals = federation()
    residuals = [decide(hospitals).known._smoothed(k).residual for k in range(2)]
    assert 0 < max(residuals) < sums.MAX_RESIDUAL
    monkeypatch.setattr(sums, "MAX_RESIDUAL", max(residuals) / 2)
    found = decide(hospitals)
    assert found.known.assessed == 6 and not found.known.pooled and not found.averages
    assert all(isinstance(one.distribution("U"), Estimate) for one in found.answers.values())


def test_a_worse_net_benefit_withholds_a_verdict(monkeypatch):
    hospitals = federation()
    monkeypatch.setattr(deciding, "verdict", lambda *a: Verdict(USE, SAME, 0.01))
    found = decide(hospitals, plan=Plan(5, 2, 0.4))
    codes = {one.verdict.reason.code for one in found.answers.values() if one.verdict.answer == UNTOLD}
    assert codes == {"net_benefit"}
    generous = decide(hospitals, plan=Plan(5, 2, 0.4, 1.0))
    assert all(one.verdict.answer == USE for one in generous.answers.values())


def test_a_mix_is_safe_by_what_is_known_of_the_part_that_is_right():
    """The share is the largest gain among those that harm in 5 % at most; a move that is wrong has none."""
    right, wrong = Normals(np.ones(1), np.array([0.9]), np.array([0.1])), Normals(np.ones(1), np.zeros(1), np.ones(1))
    mix = safe_mix(0.01, right, 0.0)
    assert 0.8 < mix.share <= 1 and mix.p_harm <= 0.05 and mix.low < mix.benefit < mix.high
    assert safe_mix(0.01, wrong, 0.0) == NO_MIX
    one, rng = hospital(3, n=400), np.random.default_rng(1)
    own = np.full((2, 400), one.prevalence)
    truth = expit(one.x @ np.linspace(-1, 1, one.x.shape[1]))
    part = right_part(one, own, own + 0.1 * rng.normal(size=own.shape), Folds(5, 2))
    assert abs(part.a) < 4 * part.variance**0.5 and part.n == 400 and truth.shape == one.y.shape


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
    ((USE, SAME), "use the others' model with your own calibration: joining adds nothing that matters"),
    ((UNTOLD, ADDS), "not clear whether to share; joining adds to using"),
    ((UNTOLD, UNTOLD, "few events: 7"), "not clear whether to share (few events: 7); not clear whether"),
    ((UNTOLD, UNTOLD, verdicts.TOO_FEW + ": 6 patients"), "too few patients to tell: 6 patients"),
]


@each("answer, words", SENTENCES)
def test_sentences(answer, words):
    assert sentence(*answer).startswith(words)


def test_the_numbers_that_a_hospital_tells_are_its_row():
    """Within their declared ranges; from them comes the row again, but for curves."""
    hospitals, plan = federation(), PLAN
    found = decide(hospitals)
    ranges = {one.name: (one.low, one.high) for one in numbers(plan)}
    for answer in found.answers.values():
        row = row_of(answer, plan)
        flat = told(row, plan)
        assert flat.keys() <= ranges.keys() and len(flat) > 60
        assert all(ranges[name][0] <= value <= ranges[name][1] for name, value in flat.items())
        again = row_from(flat, None)
        assert again["sentence"] == row["sentence"] and again["verdict"] == row["verdict"]
        assert again["estimands"] == row["estimands"] and again["outside"] == row["outside"]
        assert again["margin"] == pytest.approx(row["margin"])
    with pytest.raises(ValueError, match="verdict"):
        row_from({"patients": 3.0}, None)


def test_what_joining_gives_to_others_is_the_change_of_their_member_models():
    """One Newton step against refits without each hospital; not told of two hospitals, nor under secure sums."""
    hospitals = federation()
    found, dealt_to = decide(hospitals), {name: deals[0] for name, deals in folds_of(hospitals).items()}

    def tested(other, left):
        """Brier score at a hospital of the member model without another."""
        one, losses = hospitals[other], []
        rest = [of for key, of in hospitals.items() if key not in (left, other)]
        for train in (dealt_to[other] != fold for fold in range(5)):
            model = regression.train([*rest, Hospital.of(one.x[train], one.y[train])]).coefficients[None]
            at = regression.updated(one.x, one.y, train[None].astype(float), model)[0]
            losses.append((one.y - expit(one.x @ at))[~train] ** 2)
        return float(np.concatenate(losses).mean())

    member = {name: tested(name, "") for name in hospitals}
    exact = [np.mean([tested(of, name) - member[of] for of in hospitals.keys() - {name}]) for name in hospitals]
    given = [found.answers[name].gives for name in hospitals]
    assert np.corrcoef(exact, [one.mean for one in given])[0, 1] > 0.9
    assert [one.mean for one in given] == pytest.approx(exact, abs=7e-4)
    assert all(one.low < value < one.high for one, value in zip(given, exact, strict=True))
    two = dict(list(hospitals.items())[:2])
    assert not any(one.gives for one in decide(two).answers.values())
    assert not any(one.gives for one in decide(hospitals, tell_apart=False).answers.values())


def test_gains_of_one_training_are_those_of_refits():
    """U and J within .0001, by a training without the hospital, and one without each of its folds."""
    hospitals = {f"h{k}": hospital(k, n=300, level=0.3 * (k % 3 - 1)) for k in range(10)}
    deal = {name: deals[:1] for name, deals in folds_of(hospitals).items()}
    plan = Plan(5, 1)
    found = decide(hospitals, deal, plan)
    for name in ("h0", "h5", "h9"):
        one, rest = hospitals[name], [of for key, of in hospitals.items() if key != name]
        masks = np.stack([deal[name][0] != fold for fold in range(5)]).astype(float)
        outside = np.tile(regression.train(rest).coefficients, (5, 1))
        parts = [Hospital.of(one.x[mask > 0], one.y[mask > 0]) for mask in masks]
        member = np.stack([regression.train([*rest, part]).coefficients for part in parts])
        risks = {OWN: found.answers[name].assessment.risks[OWN]}
        for key, models in ((OUTSIDE, outside), (MEMBER, member)):
            at = regression.updated(one.x, one.y, masks, models) @ one.x.T
            risks[key] = np.take_along_axis(expit(at), deal[name], axis=0)
        exact = estimates(one, risks, plan.design, 0.1)
        for key in ("U", "J", "D"):
            assert found.answers[name].assessment.estimates[key].value == pytest.approx(exact[key].value, abs=1e-4), key


def test_internal_external_validation_tells_each_hospital_and_their_spread():
    """Of the others' model, never updated: numbers of a refit; decision curves of every model and of treating all."""
    hospitals = federation(sites=10)
    found = decide(hospitals)
    rows = {name: row_of(answer, PLAN) for name, answer in found.answers.items()}
    for name, one in hospitals.items():
        others = regression.train([of for key, of in hospitals.items() if key != name])
        logits, told_of = one.x @ others.coefficients, rows[name]["outside"]
        assert told_of["auc"] == pytest.approx(auc(logits, one.y > 0.5), abs=0.01)
        assert told_of["brier"] == pytest.approx(((expit(logits) - one.y) ** 2).mean(), abs=0.002)
        exact = validation.calibration(one, logits)
        for key in sums.CALIBRATION:
            of = told_of[key]
            assert of["mean"] == pytest.approx(getattr(exact, key)[0], abs=0.05) and of["low"] < of["mean"] < of["high"]
        curves = {key: of["net_benefit_curve"] for key, of in rows[name]["models"].items()}
        assert {OWN, OUTSIDE, MEMBER, "treat all"} <= curves.keys() and {len(each) for each in curves.values()} == {19}
        assert told_of["net_benefit"] <= one.prevalence
    spread = content(PLAN, rows, found.known)["calibration"]
    for key in sums.CALIBRATION:
        of = spread[key]
        assert of["tau"] > 0 and of["next_low"] < of["low"] < of["mean"] < of["high"] < of["next_high"]
    assert spread["slope"]["next_low"] < 1 < spread["slope"]["next_high"]


def test_the_checklist_has_nineteen_items_and_counts_those_that_stay_blank():
    hospitals = federation()
    found = decide(hospitals)
    rows = {name: row_of(answer, PLAN) for name, answer in found.answers.items()}
    text = checklist({"title": "study", "versions": "1", **content(PLAN, rows, found.known)})
    cells = re.findall(r"<tr>\s*<t[hd][^>]*>(\d+)[a-h]?</t[hd]>.*?<td[^>]*>([^<]*)</td>\s*</tr>", text, re.DOTALL)
    assert {int(item) for item, _ in cells} == set(range(1, 20)) and len(cells) == 37
    blank = sum(said.strip() == "–" for _, said in cells)
    assert f"{blank} of 37 parts of the 19 items stay blank" in text and 10 <= blank <= 20
    assert all(name in text for name in hospitals)


def test_the_smallest_sample_is_told_before_the_first_round():
    hospitals = federation()
    said = smallest_sample(hospitals)
    needed = validation.minimum_patients(
        0.8, np.concatenate([one.y for one in hospitals.values()]).mean(), FEATURES + 1
    )
    assert f"needs {needed:,} patients" in said and "enough of their own: none" in said
    assert "the others of each together: 600 or more" in said
    large = smallest_sample(hospitals | {"large": hospital(20, n=900)})
    assert "enough of their own: large" in large


def test_the_walk_of_a_question_passes_at_most_twelve_files():
    """From hospitals' rows to their answers."""
    hospitals, passed = federation(), set()
    folds = folds_of(hospitals)

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and "fairflare" in path.parts:
            passed.add("/".join(path.parts[-2:]))

    sys.setprofile(note)
    try:
        deciding.decide(hospitals, folds, PLAN)
    finally:
        sys.setprofile(None)
    assert {"decision/decide.py", "decision/verdicts.py", "decision/mix.py"} <= passed and len(passed) <= 12, passed


def test_patients_at_several_hospitals_are_in_one_fold_of_the_whole_federation():
    """No model that tests a patient has seen this patient elsewhere, and the models are those of refits."""
    hospitals = {
        name: dataclasses.replace(one, identities=np.arange(len(one.y)).astype(np.uint64) + 40 * k)
        for k, (name, one) in enumerate(federation().items())
    }
    plan = Plan(3, 1, 0.3, shared_patients=True)
    folds = {name: dealing(name, one, plan) for name, one in hospitals.items()}
    of = {}
    for name, one in hospitals.items():
        for identity, fold in zip(one.identities, folds[name][0], strict=True):
            assert of.setdefault(int(identity), fold) == fold
    found = decide(hospitals, folds, plan)
    for fold in range(3):
        kept = {n: Hospital.of(h.x[folds[n][0] != fold], h.y[folds[n][0] != fold]) for n, h in hospitals.items()}
        without = regression.train(list(kept.values()))
        assert found.known.without_folds[fold].coefficients == pytest.approx(without.coefficients, abs=1e-5)
        outside = regression.train([one for name, one in kept.items() if name != "h3"]).coefficients
        tested = folds["h3"][0] == fold
        logits = found.answers["h3"].assessment.logits[tested]
        assert logits == pytest.approx((hospitals["h3"].x @ outside)[tested], abs=0.05)
    assert not found.known.refits and plan.design.stretch(0.1) == 1
    with pytest.raises(UserError, match="h0: expected a table with the column patient"):
        dealing("h0", hospital(0), plan)


CONSTANT = """
import numpy as np


class Constant:
    def fit(self, x, y):
        self.share = y.mean()

    def predict_proba(self, x):
        return np.tile([1 - self.share, self.share], (len(x), 1))


class Other:
    pass
"""
"""A brought model that knows nothing but the share of the outcome."""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "constant.py").write_text(CONSTANT)
    monkeypatch.setenv("FAIRFLARE_CODE", str(tmp_path / "constant.py"))


@each("kind", ["trees", "constant.Constant"])
def test_another_own_model_is_fitted_to_training_parts_alone(kind, code):
    hospitals = federation()
    plan = Plan(5, 1, own_model=kind)
    folds = {name: deals[:1] for name, deals in folds_of(hospitals).items()}
    found, ridge = decide(hospitals, folds, plan), decide(hospitals, folds, Plan(5, 1))
    for name, answer in found.answers.items():
        one, other = answer.assessment, ridge.answers[name].assessment
        assert one.estimates["D"] == other.estimates["D"] and one.estimates["U"] != other.estimates["U"]
        assert one.risks["ridge"] == pytest.approx(other.risks[OWN]) and not answer.by_regression
        rows = folds[name][0] != 0
        model = maker(kind)()
        model.fit(hospitals[name].x[rows][:, 1:], hospitals[name].y[rows].astype(int))
        expected = model.predict_proba(hospitals[name].x[~rows][:, 1:])[:, 1]
        assert one.risks[OWN][0][~rows] == pytest.approx(expected)


@each("name, words", [("forest", "module.Name"), ("constant.Other", "fit and predict_proba"), ("os.path", "imported")])
def test_what_is_no_own_model_is_refused(name, words, code):
    with pytest.raises(UserError, match=words):
        maker(name)


def test_wide_features_are_decided_on_components_of_all_rows():
    rng = np.random.default_rng(0)
    loadings, narrow, wide = rng.normal(size=(FEATURES, 300)), federation(), {}
    for name, one in narrow.items():
        x = one.x[:, 1:] @ loadings + 0.1 * rng.normal(size=(len(one.y), 300))
        wide[name] = dataclasses.replace(one, x=np.hstack([one.x[:, :1], x]))
    moved, count, _ = on_components(wide)
    x = np.concatenate([one.x[:, 1:] for one in wide.values()])
    u, s, _ = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    scores = np.concatenate([one.x[:, 1:] for one in moved.values()])
    assert count == 50 and np.square(scores).mean() == pytest.approx(1)
    alike = np.corrcoef(scores.T, (u * s)[:, :count][:, ::-1].T)[:count, count:].diagonal()
    assert np.abs(alike) == pytest.approx(np.ones(count), abs=1e-6)
    assert on_components(narrow)[:2] == (narrow, 0)
    of_all, of_few = (decide(hospitals).answers for hospitals in (moved, narrow))
    for name in narrow:
        j = [answers[name].assessment.estimates["J"].value for answers in (of_all, of_few)]
        assert j[0] == pytest.approx(j[1], abs=0.03)
