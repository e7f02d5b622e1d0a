# SPDX-License-Identifier: Apache-2.0
"""Calibration and clinical use: bins of enough patients, sums that are kept, and values as others compute them."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from fairflare.core.schema import IN_USE, Instruction
from fairflare.core.types import Round
from fairflare.engine.after.base import Cases, plain
from fairflare.engine.clinical import ClinicalAtSite, View, bins_of
from fairflare.engine.setup.assembly import build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.functional import calibration as maths
from fairflare.functional.intervals import resamples
from fairflare.report.clinical import net_benefit, wilson

SEXES = View(cells=("female", "male"), of_group=(0, 1))


def drawn(n, seed=0, slope=0.7, members=None):
    """Cases of two classes whose risks are too extreme by 1 / slope and too low."""
    generator = np.random.default_rng(seed)
    z = generator.normal(-0.3, 1.5, n)
    outcomes = generator.random(n) < 1 / (1 + np.exp(-(0.4 + slope * z)))
    outputs = torch.tensor(np.stack([np.zeros(n), z], axis=1))
    groups = np.full(n, -1) if members is None else members
    return Cases(outputs, torch.tensor(outcomes.astype(np.int64)), torch.tensor(groups))


def risks_of(cases):
    return cases.outputs.softmax(1)[:, 1].numpy(), cases.targets.numpy().astype(float)


@st.composite
def patients(draw):
    n = draw(st.integers(0, 120))
    risks = draw(st.lists(st.floats(0, 1), min_size=n, max_size=n))
    outcomes = draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n))
    return np.array(risks), np.array(outcomes), draw(st.integers(1, 12))


@settings(max_examples=200, deadline=None)
@given(patients())
def test_every_bin_holds_enough_of_either_outcome(found):
    risks, outcomes, least = found
    starts = maths.merged(risks, outcomes, least)
    if min(outcomes.sum(), len(outcomes) - outcomes.sum()) < least:
        assert not len(starts)
        return
    bins = maths.binned(risks, outcomes, starts)
    assert bins.starts[0] == 0 and (np.diff(bins.starts) > 0).all()
    assert (bins.positives >= least).all() and (bins.n - bins.positives >= least).all()
    assert bins.n.sum() == len(risks) and bins.positives.sum() == outcomes.sum()
    assert bins.risk.sum() == pytest.approx(risks.sum())
    assert (bins.risk >= bins.edges[:-1] * bins.n - 1e-9).all() and (bins.risk <= bins.edges[1:] * bins.n + 1e-9).all()


@settings(max_examples=100, deadline=None)
@given(patients(), st.integers(1, 12))
def test_a_coarser_curve_is_of_the_same_patients(found, most):
    risks, outcomes, least = found
    starts = maths.merged(risks, outcomes, least)
    if not len(starts):
        return
    fine = maths.binned(risks, outcomes, starts)
    coarse = maths.coarser(fine, most)
    assert set(coarse.starts) <= set(fine.starts) and coarse.starts[0] == 0 and len(coarse.n) <= most
    for name in ("n", "positives", "risk"):
        assert getattr(coarse, name).sum() == pytest.approx(getattr(fine, name).sum())
    assert (coarse.n >= coarse.n.sum() / most - 1e-6).all()


@settings(max_examples=100, deadline=None)
@given(patients())
def test_the_bins_of_the_ece_hold_enough_patients(found):
    risks, outcomes, least = found
    if len(risks) < least:
        return
    bins = maths.binned(risks, outcomes, maths.crowded(risks, least))
    assert (bins.n >= min(max(least, len(risks) / maths.CURVE_BINS), len(risks))).all() and bins.n.sum() == len(risks)
    assert len(bins.n) <= maths.CURVE_BINS and 0 <= maths.calibration_error(bins) <= 1


def test_a_curve_is_scikit_learns():
    risks, outcomes = risks_of(drawn(20_000))
    bins = maths.binned(risks, outcomes, np.arange(maths.CELLS))
    share, mean = calibration_curve(outcomes, risks, n_bins=maths.CELLS)
    assert bins.positives / bins.n == pytest.approx(share) and bins.risk / bins.n == pytest.approx(mean)
    weights = bins.n / bins.n.sum()
    assert maths.calibration_error(bins) == pytest.approx(float((weights * np.abs(share - mean)).sum()))


def test_means_line_and_rates_are_those_of_others():
    cases = drawn(900)
    risks, outcomes = risks_of(cases)
    found = ClinicalAtSite(View()).of_model(cases)
    assert found["brier"] == pytest.approx(brier_score_loss(outcomes, risks), abs=1e-5)
    assert found["calibration"] == pytest.approx(risks.mean() - outcomes.mean(), abs=1e-5)
    z = np.log(risks / (1 - risks))
    line = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(z[:, None], outcomes)
    assert found["slope"] == pytest.approx(line.coef_[0, 0], abs=1e-4)
    assert found["intercept"] == pytest.approx(line.intercept_[0], abs=1e-4)
    flags = risks >= 0.5
    assert (found["flagged"], found["true_positives"]) == (flags.sum(), (flags & (outcomes == 1)).sum())
    for name in ("brier", "calibration", "ece", "slope", "intercept"):
        assert found[f"{name}.low"] < found[name] < found[f"{name}.high"]


def test_a_slopes_interval_covers_as_often_as_it_says():
    """1,000 draws, 95 % +- 2."""
    inside = 0
    for seed in range(1000):
        risks, outcomes = risks_of(drawn(150, seed, slope=1.0))
        line, errors = maths.line_with_interval(risks, outcomes)
        inside += abs(line.slope - 1.0) <= maths.Z * errors[1]
    assert 930 <= inside <= 975


def test_net_benefit_is_that_of_the_patients():
    risks, outcomes = risks_of(drawn(600))
    bins = maths.binned(risks, outcomes, maths.merged(risks, outcomes, 10))
    thresholds, values, errors = net_benefit(bins, maths.GRID[bins.starts])
    assert len(thresholds) > 3 and (errors > 0).all()
    for t, value, error in zip(thresholds, values, errors):
        each = np.where(risks >= t, np.where(outcomes == 1, 1.0, -t / (1 - t)), 0.0)
        assert value == pytest.approx(each.mean()) and error == pytest.approx(each.std() / np.sqrt(600))


def test_wilsons_interval_is_scipys():
    from scipy.stats import binomtest

    for right, n in ((0, 10), (3, 17), (40, 40), (55, 110)):
        exact = binomtest(right, n).proportion_ci(method="wilson")
        assert wilson(right, n) == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize("separated", [np.arange(40) >= 20, np.zeros(40, bool)])
def test_outcomes_that_a_line_separates_have_none(separated):
    risks = np.linspace(0.1, 0.9, 40)
    assert maths.line_with_interval(risks, separated.astype(float)) is None
    assert maths.line_with_interval(np.full(40, 0.3), (np.arange(40) % 2).astype(float)) is None


def test_what_is_of_few_patients_stays():
    """Too few at all; too few of one outcome; too few on one side of the threshold; no minimum, which lets nothing."""
    assert ClinicalAtSite(View()).of_model(drawn(9)) == {}
    assert ClinicalAtSite(View(), None).of_model(drawn(200)) == {}
    few = drawn(60)
    targets = torch.zeros(60, dtype=torch.int64)
    targets[:9] = 1
    found = ClinicalAtSite(View()).of_model(Cases(few.outputs, targets, few.members))
    assert {name.partition(".")[0] for name in found} == {"n", "brier", "calibration", "ece"}
    found = ClinicalAtSite(View(threshold=0.999)).of_model(drawn(300))
    assert "positives" in found and "flagged" not in found and bins_of(found) is not None


def test_no_group_leaves_from_which_few_follow():
    members = np.array([0] * 100 + [1] * 100)
    both = ClinicalAtSite(SEXES).of_model(drawn(200, members=members))
    assert {"n/female", "n/male", "slope/female", "flagged/male"} <= set(both)
    members = np.array([0] * 191 + [1] * 9)
    one = ClinicalAtSite(SEXES).of_model(drawn(200, members=members))
    assert not any("/" in name for name in one) and "positives" in one


def test_a_groups_few_of_one_outcome_do_not_follow_from_the_others():
    """The men's 5 who died are the site's less the women's."""
    cases = drawn(200, members=np.array([0] * 120 + [1] * 80))
    targets = cases.targets.clone()
    targets[120:] = 0
    targets[120:125] = 1
    found = ClinicalAtSite(SEXES).of_model(Cases(cases.outputs, targets, cases.members))
    assert {"n/female", "brier/male", "positives"} <= set(found)
    assert not any(name.startswith(("positives/", "flagged/", "slope/")) for name in found)


@settings(max_examples=60, deadline=None)
@given(st.integers(10, 150), st.integers(0, 99), st.integers(1, 15), st.sampled_from([None, 1]))
def test_what_a_site_says_is_accepted(n, seed, least, event):
    """By its own check, and by the server's."""
    generator = np.random.default_rng(seed)
    view = View(event=event, cells=("a", "b", "c"), of_group=(0, 1, 2))
    site = ClinicalAtSite(view, least)
    cases = drawn(n, seed, members=generator.integers(-1, 3, n))
    found = site.of_model(cases)
    assert view.checked(found, n, least) == found
    changed = np.stack([np.full(n, 0.6), np.full(n, 0.4)], axis=1)
    assert view.checked(site.after(cases, changed, None), n, least, as_binned=False)["n"] == n if found else True


def test_with_more_classes_the_likeliest_is_looked_at_or_the_one_of_interest():
    generator = np.random.default_rng(1)
    logits = torch.tensor(generator.normal(0, 2, (400, 4)))
    targets = torch.tensor(generator.integers(0, 4, 400))
    cases = Cases(logits, targets, torch.full((400,), -1))
    p = logits.softmax(1).numpy()
    top = ClinicalAtSite(View(event=None)).of_model(cases)
    right = (p.argmax(1) == targets.numpy()).astype(float)
    assert top["brier"] == pytest.approx(brier_score_loss(right, p.max(1)), abs=1e-5) and "flagged" not in top
    one = ClinicalAtSite(View(event=2)).of_model(cases)
    assert one["positives"] == (targets == 2).sum() and one["flagged"] == (p[:, 2] >= 0.5).sum()
    assert one["calibration"] == pytest.approx(p[:, 2].mean() - (targets == 2).double().mean().item(), abs=1e-5)


def test_a_model_that_overflows_says_nothing():
    cases = drawn(100)
    outputs = cases.outputs.clone()
    outputs[3, 1] = torch.inf
    assert ClinicalAtSite(View()).of_model(Cases(outputs, cases.targets, cases.members)) == {}


def test_numbers_do_not_depend_on_who_else_is_asked():
    cases = drawn(100)
    assert ClinicalAtSite(View(), seed=3, name="a").of_model(cases) == ClinicalAtSite(
        View(), seed=3, name="a"
    ).of_model(cases)
    other = ClinicalAtSite(View(), seed=4, name="a").of_model(cases)
    assert other["brier"] == ClinicalAtSite(View(), seed=3, name="b").of_model(cases)["brier"]


def test_resamples_of_calibration_are_of_patients():
    """Each of a patient's cases as often as the patient is drawn."""
    values = np.random.default_rng(0)
    residuals, places = values.normal(size=37), values.integers(0, 5, 37)
    once = maths.resampled(residuals**2, residuals, places, 1, 50)
    drawn, bins = np.concatenate(list(resamples(37, 50, 1))), places[:, None] == np.arange(5)
    off = np.abs((drawn * residuals) @ bins).sum(axis=1) / 37
    for found, expected in zip(once, (drawn @ residuals**2 / 37, drawn @ residuals / 37, off), strict=True):
        assert found == pytest.approx(expected)
    copies = [np.repeat(one, 3) for one in (residuals**2, residuals, places)]
    assert np.stack(maths.resampled(*copies, 1, 50, np.repeat(np.arange(37), 3))) == pytest.approx(np.stack(once))


def test_a_site_looks_at_its_test_cases_once():
    """For their metrics and for what it says of calibration, which is what a pass of its own would find."""
    config = make_config("fedavg", "support2", rounds=1)
    parts = build_parts(config)
    site = build_site(config, parts, "site-1")
    asked = Instruction("evaluate", Round(1, 1), dict(parts.model), {IN_USE: 1.0})
    passed = []
    hook = parts.network.register_forward_hook(lambda module, inputs, outputs: passed.append(len(outputs)))
    answer = site.handle(asked)
    hook.remove()
    assert sum(passed) == site.data.size("val") + site.data.size("test")
    parts.network.load_state_dict(parts.model)
    assert answer.clinical and answer.clinical == site.exchanges["clinical"].of_model(
        Cases(*site.predict("test", plain))
    )
    assert site.handle(dataclasses.replace(asked, orders={})).clinical == {}
