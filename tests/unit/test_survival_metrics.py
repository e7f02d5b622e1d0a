# SPDX-License-Identifier: Apache-2.0
"""Kaplan-Meier, concordance and errors of survival: against lifelines, pair by pair, and where nothing is defined."""

import time

import numpy as np
import pytest
import torch

from cases import each, later
from fairflare.functional import survival as maths
from fairflare.tasks.kind import interval_of, value_of
from fairflare.tasks.kinds.survival import Cox, Hazards
from fairflare.tasks.metrics_survival import (
    CONCORDANT,
    HARRELL_C,
    INTEGRATED_BRIER,
    RESTRICTED_MEAN,
    SURVIVAL_CALIBRATION,
    UNO_C,
)
from fairflare.testing import check_metric

lifelines = later("lifelines")
ENDS = (3.0, 6.0, 9.0, 12.0)
ALL = (HARRELL_C, UNO_C, INTEGRATED_BRIER, SURVIVAL_CALIBRATION, RESTRICTED_MEAN)


def drawn(seed, n=60, ties=True, censored=0.5):
    """Times with ties, events and risks with ties."""
    rng = np.random.default_rng(seed)
    times = rng.exponential(8, n)
    times = np.floor(times) if ties else times
    risks = rng.integers(0, 8, n).astype(float) if ties else rng.standard_normal(n)
    return times, (rng.random(n) > censored).astype(float), risks


def cases(times, events, outputs, kind=None):
    kind = kind or Hazards(ends=ENDS)
    return kind.cases(torch.as_tensor(outputs), torch.as_tensor(np.stack((times, events), 1)).float(), ())


def once(n):
    return np.ones((1, n))


@each("seed", range(12))
def test_kaplan_meier_and_concordance_are_those_of_lifelines(seed):
    times, events, risks = drawn(seed, n=3 + 9 * seed, ties=seed % 3 != 0, censored=0.2 * (seed % 4))
    if not events.any():
        return
    fitted = lifelines.KaplanMeierFitter().fit(times, events)
    when = np.linspace(0, times.max(), 17)
    curve = maths.kaplan_meier(times, events, once(len(times)))
    assert maths.curve_at(*curve, when)[0] == pytest.approx(
        fitted.survival_function_at_times(when).to_numpy(), abs=1e-12
    )
    horizon = 0.7 * times.max()
    ours = maths.restricted_mean(*curve, horizon)[0]
    assert ours == pytest.approx(lifelines.utils.restricted_mean_survival_time(fitted, t=horizon), abs=1e-9)
    found = maths.concordance(times, events, risks, once(len(times)))[0]
    try:
        assert found == pytest.approx(lifelines.utils.concordance_index(times, -risks, events), abs=1e-12)
    except ZeroDivisionError:  # lifelines: no admissible pairs
        assert np.isnan(found)


def pairs(times, events, risks, weights):
    """Harrell's and Uno's C, pair by pair."""
    won = whole = 0.0
    for i, j in np.ndindex(len(times), len(times)):
        if events[i] and (times[i] < times[j] or (times[i] == times[j] and not events[j])):
            whole += weights[i]
            won += weights[i] * (1.0 if risks[i] > risks[j] else 0.5 if risks[i] == risks[j] else 0.0)
    return won / whole


def observed(times, events):
    """t -> the chance not to be lost until t, or just before it; scikit-survival has the first for events, too."""
    at, free = maths.kaplan_meier(times, events, once(len(times)), of_censoring=True)
    return lambda t, until=True: maths.curve_at(at, free, np.array([t if until else t - 1e-9]))[0, 0]


def graf(times, events, survival, ends):
    """The score of Graf et al., 1999, in loops."""
    g, found = observed(times, events), []
    for k, end in enumerate(ends):
        total = 0.0
        for t, event, predicted in zip(times, events, survival[:, k], strict=True):
            if t <= end and event:
                total += predicted**2 / g(t, until=False)
            elif t > end:
                total += (1 - predicted) ** 2 / g(end)
        found.append(total / len(times))
    return found


@each("seed", range(8))
def test_weights_for_censoring_are_applied_pair_by_pair_and_patient_by_patient(seed):
    times, events, risks = drawn(seed, n=50)
    weights = maths.uno_weights(times, events, once(50), ENDS[-1])
    g = observed(times, events)
    own = [event / g(t, until=False) ** 2 if t < ENDS[-1] else 0 for t, event in zip(times, events, strict=True)]
    assert weights[0] == pytest.approx(own, rel=1e-12)
    expected = pairs(times, events, risks, own)
    assert maths.concordance(times, events, risks, once(50), weights)[0] == pytest.approx(expected, abs=1e-12)
    survival = np.sort(np.random.default_rng(seed).random((50, 4)), axis=1)[:, ::-1]
    found = maths.brier(times, events, survival, np.array(ENDS), once(50))[0]
    assert found == pytest.approx(graf(times, events, survival, ENDS), abs=1e-12)


def test_an_event_weighs_what_had_not_been_lost_just_before_it():
    """Of four, one dies at 1 as another is lost, one dies at 2: the last one stands for 1.5, the dead for 1 and 1.5."""
    times, events = np.array([1.0, 1, 2, 3]), np.array([1.0, 0, 1, 0])
    assert maths.uno_weights(times, events, once(4), 3.0)[0] == pytest.approx([1, 0, 1.5**2, 0])
    for seed in range(8):  # weights make up for who is lost: of nobody's knowledge the score is a quarter
        times, events, _ = drawn(seed, n=50)
        found = maths.brier(times, events, np.full((50, 4), 0.5), np.array(ENDS), once(50))
        assert found == pytest.approx(np.full((1, 4), 0.25), abs=1e-12)


@each("metric", ALL)
def test_a_resample_is_the_metric_of_the_repeated_patients(metric):
    """Counts weigh patients exactly as if each stood there so often, in every metric and in the weights."""
    times, events, _ = drawn(3, n=40)
    outputs = np.random.default_rng(1).standard_normal((40, 4))
    counts = np.random.default_rng(2).integers(0, 4, (5, 40)).astype(float)
    last = int(times.argmax())
    counts[:, last] = 1 + counts[:, last]  # which ends can be judged is a matter of the last time
    found = metric.weighted(cases(times, events, outputs), counts)
    for row, value in zip(counts.astype(int), found, strict=True):
        rows = np.repeat(np.arange(40), row)
        assert value == pytest.approx(value_of(metric, cases(times[rows], events[rows], outputs[rows])), abs=1e-10)


def test_the_metrics_keep_the_contract():
    times, events, _ = drawn(5, n=80)
    found = cases(times, events, np.random.default_rng(0).standard_normal((80, 4)))
    for metric in (*ALL, CONCORDANT):
        check_metric(metric.name, found)


def test_where_nothing_can_be_compared_nothing_is_defined():
    rng = np.random.default_rng(0)
    outputs, times = rng.standard_normal((20, 4)), rng.uniform(1, 20, 20)
    for events, at in ((np.zeros(20), times), (np.ones(20), np.full(20, 5.0))):
        found = cases(at, events, outputs)
        assert value_of(HARRELL_C, found) is None and value_of(UNO_C, found) is None
    assert all(value_of(metric, cases(times, np.zeros(20), outputs)) is None for metric in ALL)
    assert all(value_of(m, cases(times, np.ones(20), outputs[:, :1], Cox(ends=ENDS))) is None for m in ALL[2:])
    early = cases(np.full(20, 1.0), np.ones(20), outputs)  # nobody is observed until the first end
    assert all(value_of(metric, early) is None for metric in ALL[2:])
    assert value_of(HARRELL_C, cases(times[:1], np.ones(1), outputs[:1])) is None


def test_a_good_model_is_told_from_a_bad_one():
    rng = np.random.default_rng(0)
    hazard = np.exp(rng.standard_normal(3000))
    death, end = rng.exponential(12 / hazard), rng.uniform(2, 30, 3000)
    steps = np.diff((0.0, *ENDS))
    right = np.log(np.expm1(hazard[:, None] / 12 * steps))  # softplus of it is the cumulative hazard of the interval
    true = cases(np.minimum(death, end), (death <= end).astype(float), right)
    wrong = cases(np.minimum(death, end), (death <= end).astype(float), right[::-1].copy())
    good, bad = ([value_of(metric, one) for metric in ALL] for one in (true, wrong))
    assert good[0] > 0.7 and good[1] > 0.7 and abs(bad[0] - 0.5) < 0.03
    assert good[2] < bad[2] - 0.05 and good[3] < 0.02 and good[4] < 0.02


def test_each_patients_share_is_that_of_its_pairs():
    times, events, risks = drawn(4, n=30)
    found = maths.concordant_share(times, events, risks)
    for i in range(30):
        own = [
            1.0 if risks[a] > risks[b] else 0.5 if risks[a] == risks[b] else 0.0
            for a, b in np.ndindex(30, 30)
            if i in (a, b) and events[a] and (times[a] < times[b] or (times[a] == times[b] and not events[b]))
        ]
        assert found[i] == pytest.approx(np.mean(own) if own else 0.5)


def test_twenty_thousand_patients_take_seconds():
    times, events, risks = drawn(0, n=20_000, ties=False)
    began = time.monotonic()
    found = maths.concordance(times, events, risks, once(20_000), maths.uno_weights(times, events, once(20_000), 20.0))
    assert time.monotonic() - began < 5
    assert found[0] == pytest.approx(0.5, abs=0.02)


def cohort(rng, n):
    """Patients of a log hazard of which the risk is a rounded share, half of them censored."""
    risk = rng.standard_normal(n)
    death, end = rng.exponential(12 / np.exp(0.8 * risk)), rng.uniform(1, 30, n)
    times, events = np.minimum(death, end), (death <= end).astype(float)
    return cases(times, events, risk.round(1)[:, None], Cox(ends=(15.0,)))


def test_the_error_of_a_concordance_is_the_derivative_by_how_often_a_patient_counts():
    found = cohort(np.random.default_rng(0), 40)
    up, down = (np.ones((40, 40)) + step * np.eye(40) for step in (1e-5, -1e-5))
    slope = (HARRELL_C.weighted(found, up) - HARRELL_C.weighted(found, down)) / 2e-5
    error = maths.concordance_error(found.times, found.events, found.risks)
    assert error == pytest.approx(np.sqrt((slope**2).sum()), rel=1e-6)


@each("metric", (HARRELL_C, UNO_C))
def test_an_interval_of_a_concordance_covers_as_the_bootstrap_does(metric):
    rng = np.random.default_rng(1)
    truth = metric.weighted(cohort(rng, 20_000), once(20_000))[0]
    draws = [cohort(rng, 60) for _ in range(150)]
    ends = np.array([interval_of(metric, one, 0.95) for one in draws])
    assert 0.91 <= ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean() <= 0.99  # 400 of them: .945
    widths = np.diff(ends)[:12, 0]
    resampled = [metric.weighted(one, rng.multinomial(60, [1 / 60] * 60, 200).astype(float)) for one in draws[:12]]
    bootstrap = [np.diff(np.quantile(values, (0.025, 0.975)))[0] for values in resampled]
    assert widths.mean() == pytest.approx(np.mean(bootstrap), rel=0.1)


def test_without_two_events_or_of_perfect_order_a_concordance_has_no_interval():
    times, outputs = np.arange(1.0, 21), -np.arange(20.0)[:, None]
    kind = Cox(ends=ENDS)
    assert value_of(HARRELL_C, cases(times, np.ones(20), outputs, kind)) == 1
    for events, risks in ((np.ones(20), outputs), (np.eye(20)[3], outputs), (np.ones(20), 0 * outputs)):
        assert interval_of(HARRELL_C, cases(times, events, risks, kind), 0.95) is None
    assert interval_of(UNO_C, cases(times, np.zeros(20), outputs, kind), 0.95) is None


@each("metric", ALL)
def test_where_it_is_not_defined_a_metric_says_what_it_needs(metric):
    assert ("compared" if metric in (HARRELL_C, UNO_C) else "beyond the first horizon") in metric.needs
