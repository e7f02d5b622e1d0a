# SPDX-License-Identifier: Apache-2.0
"""Benefits out of fold, the hierarchical model from sums, safe combinations and bets, each computed otherwise."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate, stats

from fairflare.decision.estimands import Folds
from fairflare.decision.mix import right_part
from fairflare.decision.regression import Hospital
from fairflare.functional import decision, slopes
from fairflare.functional.decision import Doubt, Hospitals, Normals
from fairflare.inference import monitor

PLAIN = SimpleNamespace(kappa=0.0)
"""Folds without a correction for what the own model lacks."""


def site(seed: int = 0, n: int = 60, repeats: int = 3):
    """Labels, own risks and a candidate's."""
    rng = np.random.default_rng(seed)
    own, move = rng.uniform(0.1, 0.9, (repeats, n)), rng.normal(0, 0.05, (repeats, n))
    return (rng.random(n) < own[0]).astype(float), own, np.clip(own + move, 0.001, 0.999)


def federation(sites: int = 8, seed: int = 1):
    """Estimates, their variances, covariates and s0."""
    rng = np.random.default_rng(seed)
    n = rng.integers(30, 500, sites)
    variances = 0.05 / n * rng.uniform(0.7, 1.4, sites)
    values = 0.01 + rng.normal(0, 0.02, sites) + rng.normal(0, np.sqrt(variances))
    return values, variances, 100 / n - 1, math.sqrt(sites / (1 / variances).sum())


def of_all(values, variances, x, s0):
    terms = [decision.terms(*one, s0) for one in zip(values, variances, x)]
    return Hospitals(s0, sum(terms)), terms


def test_smoothed_variances_are_a_ridge_regression_of_logarithms():
    rng = np.random.default_rng(0)
    n = rng.integers(30, 500, 9)
    variances = 0.3 * n**-0.4 * np.exp(rng.normal(0, 0.3, 9))
    smooth = decision.Smoothed(sum(decision.moments(v, [k]) for v, k in zip(variances, n)))
    x, y = np.log(n) - np.log(n).mean(), np.log(variances)
    slope = (x @ y) / (x @ x + 2)
    residual = ((y - y.mean() - slope * x) ** 2).sum() / 7
    assert smooth.at([100]) == pytest.approx(
        math.exp(y.mean() + slope * (math.log(100) - np.log(n).mean()) + residual / 2)
    )


def test_the_average_counts_every_hospital_once():
    e, v = np.array([0.01, -0.02, 0.03, 0.0]), np.array([1e-4, 2e-4, 1e-4, 3e-4])
    found = decision.average(np.array([4, e.sum(), (e**2).sum(), v.sum()]))
    half = stats.t.ppf(0.975, 3) * math.sqrt(max(e.var(ddof=1), v.mean()) / 4)
    assert found == pytest.approx((e.mean(), e.mean() - half, e.mean() + half))


def direct(values, variances, x, s0, which, luck=0.0):
    """The normal model's posterior of one hospital from all hospitals' own values, by matrices."""
    design = np.stack([np.ones_like(x), x], axis=1)
    logs, means, sds = [], [], []
    for tau in decision.spreads() * s0:
        w = 1 / (variances + tau**2)
        a = design.T @ (w[:, None] * design) + np.diag([0, 1 / (decision.SLOPE_SD * s0) ** 2])
        b = np.linalg.solve(a, design.T @ (w * values))
        fit = (w * (values - design @ b) ** 2).sum() + (b[1] / (decision.SLOPE_SD * s0)) ** 2
        logs.append(0.5 * np.log(w).sum() - 0.5 * np.linalg.slogdet(a)[1] - 0.5 * fit)
        shrunk, row = variances[which] / (variances[which] + tau**2), design[which]
        means.append((1 - shrunk) * values[which] + shrunk * row @ b)
        variance = (1 - shrunk) * variances[which] + shrunk**2 * row @ np.linalg.solve(a, row) + luck
        sds.append(math.sqrt(variance))
    weights = np.exp(np.array(logs) - max(logs))
    return Normals(weights / weights.sum(), np.array(means), np.array(sds))


def test_from_sums_and_own_terms_each_hospital_has_the_posterior_of_all_values():
    values, variances, x, s0 = federation()
    everyone, terms = of_all(values, variances, x, s0)
    for k in range(len(values)):
        mine = everyone.without(terms[k]).given(values[k], variances[k], x[k], 1e-5)
        theirs = direct(values, variances, x, s0, k, 1e-5)
        assert mine.mean == pytest.approx(theirs.mean, abs=1e-6)
        assert mine.interval() == pytest.approx(theirs.interval(), abs=1e-6)
        assert mine.below(-0.002) == pytest.approx(theirs.below(-0.002), abs=1e-6)


def test_the_grid_over_the_spread_is_the_integral():
    values, variances, x, s0 = federation(6)
    x = np.zeros_like(x)
    everyone, terms = of_all(values, variances, x, s0)

    def weight(tau):
        w = 1 / (variances + tau**2)
        centre = (w @ values) / w.sum()
        return math.sqrt(np.prod(w * s0**2) / (w.sum() * s0**2)) * math.exp(-0.5 * w @ (values - centre) ** 2)

    def harm(tau):
        w = 1 / (variances + tau**2)
        shrunk = w[0] * variances[0]
        mean = (1 - shrunk) * values[0] + shrunk * (w @ values) / w.sum()
        sd = math.sqrt((1 - shrunk) * variances[0] + shrunk**2 / w.sum())
        return stats.norm.cdf(-mean / sd)

    def over_prior(f):
        return integrate.quad(lambda q: f(s0 * q / (1 - q)), 0, 1 - 1e-9, limit=200)[0]

    expected = over_prior(lambda tau: weight(tau) * harm(tau)) / over_prior(weight)
    found = everyone.without(terms[0]).given(values[0], variances[0], 0.0).below(0.0)
    assert found == pytest.approx(expected, abs=2e-3)


def test_in_doubt_a_hospital_is_pulled_towards_what_others_do_not_say():
    values, variances, x, s0 = federation(10)
    everyone, terms = of_all(values, variances, x, s0)
    own = (values[0], variances[0], x[0])
    plain, doubted = (everyone.without(terms[0]).given(*own, doubt=of) for of in (None, Doubt(0.2, -0.1, 0.05)))
    assert doubted.mean < plain.mean and doubted.below(0.0) > plain.below(0.0)
    assert doubted.weights.sum() == pytest.approx(1)


def test_doubt_is_a_mixture_of_two_priors_integrated_over_the_value():
    others = Hospitals(1.0, of_all(*federation(7)[:3], 1.0)[0].total)
    value, variance, doubt = 0.4, 0.3, Doubt(0.2, -1.0, 0.7)
    like = others.new(0.0)

    def joint(theta):
        prior = 0.8 * like.weights @ stats.norm.pdf(theta, like.means, like.sds)
        prior += 0.2 * stats.norm.pdf(theta, doubt.mean, doubt.sd)
        return prior * stats.norm.pdf(value, theta, math.sqrt(variance))

    whole, below = (integrate.quad(joint, -30, end, limit=500, points=(0.0,))[0] for end in (30, 0.1))
    assert others.given(value, variance, 0.0, doubt=doubt).below(0.1) == pytest.approx(below / whole, abs=1e-4)


def test_equal_sizes_do_not_break_the_slope():
    values, variances, _, s0 = federation(5)
    everyone, terms = of_all(values, variances, np.full(5, -0.5), s0)
    found = everyone.without(terms[0]).given(values[0], variances[0], -0.5)
    assert np.isfinite(found.interval()).all() and found.weights.sum() == pytest.approx(1)


def test_a_new_hospital_is_less_certain_than_the_mean_of_those_that_are_known():
    values, variances, x, s0 = federation(10)
    everyone, _ = of_all(values, variances, x, s0)
    of = everyone.new(0.0, 1e-5)
    low, high = of.interval(stretch=decision.stretch(10))
    plain = of.interval()
    assert low < plain[0] < plain[1] < high
    assert decision.stretch(10) == pytest.approx(stats.t.ppf(0.975, 8) / stats.norm.ppf(0.975))
    assert of.below(of.quantile(0.3)) == pytest.approx(0.3, abs=1e-6)
    assert everyone.spread > 0


def test_a_mixture_knows_its_moments_and_quantiles():
    of = Normals(np.array([0.3, 0.7]), np.array([-1.0, 2.0]), np.array([0.5, 1.0]))
    draws = np.random.default_rng(0).normal(
        *np.where(np.random.default_rng(1).random(400_000) < 0.3, [[-1.0], [0.5]], [[2.0], [1.0]])
    )
    assert (of.mean, of.sd) == pytest.approx((draws.mean(), draws.std()), abs=0.02)
    assert of.quantile(0.9) == pytest.approx(np.quantile(draws, 0.9), abs=0.02)
    assert of.scaled(2.0, 1.0).mean == pytest.approx(2 * of.mean + 1)


def part_right(y, own, moved, design):
    return right_part(Hospital.of(np.ones((len(y), 1)), y), own, moved, design)


def test_the_gain_of_a_share_is_quadratic_and_harms_beyond_twice_the_right_part():
    y, own, other = site()
    part = part_right(y, own, other, PLAIN)
    for share in (0.2, 0.7, 1.0):
        mixed = own + share * (other - own)
        gain = ((y - own) ** 2 - (y - mixed) ** 2).mean()
        assert part.q * (2 * share * part.a - share**2) == pytest.approx(gain)
        of = Normals(np.ones(1), np.array([part.a]), np.array([0.1]))
        told = slopes.gain(of, part.q, share)
        assert told.mean == pytest.approx(gain)
        assert slopes.harm(of, part.q, share) == pytest.approx(float(told.below(0.0)))
        assert slopes.harm(of, part.q, share, 0.002) == pytest.approx(float(told.below(-0.002)))


def test_a_candidate_equal_to_the_own_model_says_nothing():
    y, own, _ = site()
    part = part_right(y, own, own, Folds())
    assert part.a == 0 and part.variance > 1


@pytest.mark.parametrize("margin", [0.0, 0.002])
def test_the_safe_share_gains_most_among_those_that_seldom_harm(margin):
    of = Normals(np.array([0.6, 0.4]), np.array([0.5, 0.9]), np.array([0.25, 0.1]))
    found = slopes.safe_share(of, 0.004, margin)
    allowed = [s for s in slopes.SHARES[1:] if float(of.scaled(2 * s * 0.004, -0.004 * s * s).below(-margin)) <= 0.05]
    assert found == max(allowed, key=lambda s: 2 * s * of.mean - s * s)
    assert slopes.safe_share(Normals(np.ones(1), np.array([-0.1]), np.array([0.3])), 0.004, 0.0) == 0


def bets_on(stream, bets):
    for x in stream:
        bets.see(float(x))
    return bets


@pytest.mark.parametrize("bound", [0.99, 1.01])  # of a certificate and an alarm at a margin of 0.01
def test_capital_seldom_reaches_its_mark_where_the_hypothesis_holds(bound):
    rng, false = np.random.default_rng(3), 0
    for _ in range(300):
        lost = rng.random(400) < 0.3
        x = np.where(lost, -0.2, 0.2 * 0.3 / 0.7)
        false += bets_on(x, monitor.Bets(bound)).reached > 0
    assert false / 300 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)
    with pytest.raises(ValueError, match="expected at least"):
        monitor.Bets(bound).see(-bound - 0.1)


def test_bets_tell_a_gain_and_go_on_from_what_was_kept():
    x = np.random.default_rng(0).normal(0.02, 0.1, 1500).clip(-0.9, 0.9)
    whole = bets_on(x, monitor.Bets(0.99))
    half = bets_on(x[:700], monitor.Bets(0.99))
    again = bets_on(x[700:], monitor.Bets(**dataclasses.asdict(half)))
    assert 0 < whole.reached < 1500
    assert again == whole


def test_the_first_stakes_are_of_pseudo_patients_alone():
    bets = bets_on([0.5], monitor.Bets(0.99))
    assert bets.log_capital == 0
    bets.see(0.5)
    m, square = 0.5 / 11, (10 * 0.02 + 0.25) / 11
    assert bets.log_capital == pytest.approx(math.log1p(min(m / square, 0.5 / 0.99) * 0.5))
