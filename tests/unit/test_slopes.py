# SPDX-License-Identifier: Apache-2.0
"""A hospital's regression about the federation's: derivatives, evidence and posterior, each computed otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize
from scipy.special import expit

from fairflare.functional import slopes
from fairflare.functional.decision import Normals
from fairflare.functional.slopes import Others


def hospital(n: int = 80, seed: int = 0, beta=(-0.3, 0.6, -0.4)):
    rng = np.random.default_rng(seed)
    x = np.hstack([np.ones((n, 1)), rng.normal(size=(n, len(beta) - 1))])
    return x, (rng.random(n) < expit(x @ np.array(beta))).astype(float)


OTHERS = Others(np.array([-0.2, 0.5, -0.5]), 0.01 * np.eye(3), 9)


def log_likelihood(x, y, at):
    return float((y * (x @ at) - np.logaddexp(0, x @ at)).sum())


def test_each_pull_has_the_mode_of_its_posterior_and_laplaces_evidence():
    x, y = hospital()
    found = slopes.fitted(x, y, OTHERS)
    for m, precision in enumerate(OTHERS.precisions()):

        def loss(at, precision=precision):
            away = at - OTHERS.centre
            return away @ precision @ away / 2 - log_likelihood(x, y, at)

        best = optimize.minimize(loss, OTHERS.centre, tol=1e-10)
        assert found.at[m] == pytest.approx(best.x, abs=1e-4)
        inner = slopes.derivatives(x, y, best.x)[1]
        assert found.cov[m] == pytest.approx(np.linalg.inv(inner + precision), abs=1e-5)
        logs = np.linalg.slogdet(precision)[1] - np.linalg.slogdet(inner + precision)[1]
        assert found.evidence[m] == pytest.approx(-best.fun + logs / 2, abs=1e-4)


def test_a_hospital_takes_its_own_patients_out_of_the_regression_of_all():
    parts = [hospital(150, seed) for seed in range(6)]
    x, y = (np.concatenate(one) for one in zip(*parts))
    ridge = 0.1 * np.eye(3)

    def regression(x, y):
        best = optimize.minimize(lambda at: at @ ridge @ at / 2 - log_likelihood(x, y, at), np.zeros(3), tol=1e-10)
        return best.x

    whole = regression(x, y)
    total = slopes.derivatives(x, y, whole)[1] + ridge
    others = Others.of_all(whole, total, 6, *parts[0])
    assert others.centre == pytest.approx(regression(x[150:], y[150:]), abs=0.01)
    assert others.sites == 5
    assert others.cov == pytest.approx(np.linalg.inv(total - slopes.derivatives(*parts[0], whole)[1]))


def test_hospitals_that_differ_little_pull_more():
    def weights(sd):
        rng = np.random.default_rng(1)
        betas = np.array([-0.2, 0.5, -0.5]) + rng.normal(0, sd, (15, 3))
        evidence = np.stack([slopes.fitted(*hospital(300, k, b), OTHERS).evidence for k, b in enumerate(betas)])
        found = np.full(len(slopes.PULLS), 1 / len(slopes.PULLS))
        for _ in range(slopes.EM_STEPS):
            found = slopes.em_step(slopes.shares(evidence, found).sum(axis=0), len(evidence))
        return found

    alike, differing = weights(0.02) @ np.log(slopes.PULLS), weights(0.8) @ np.log(slopes.PULLS)
    assert alike > np.log(30) and differing < np.log(10)


def test_the_part_that_is_right_is_that_of_draws_from_the_posterior():
    x, y = hospital(120)
    of = slopes.Slopes.of(slopes.fitted(x, y, OTHERS), np.full(len(slopes.PULLS), 1 / len(slopes.PULLS)))
    own, moved = expit(x @ np.array([0.1, 0.9, -0.1])), of.risks(x)
    part = slopes.Regressed.of_models(of, x, own, moved)
    rng = np.random.default_rng(0)
    which = rng.choice(len(of.weights), 20_000, p=of.weights)
    drawn = of.at[which] + np.einsum("kij,kj->ki", np.linalg.cholesky(of.cov)[which], rng.normal(size=(20_000, 3)))
    true = expit(drawn @ x.T)
    a = ((true - own) @ (moved - own)) / len(x) / part.q
    assert (part.of.mean, part.of.sd) == pytest.approx((a.mean(), a.std()), rel=0.05)
    gain = ((own - true) ** 2).mean(axis=1) - ((own + 0.4 * (moved - own) - true) ** 2).mean(axis=1)
    assert slopes.gain(part.of, part.q, 0.4).mean == pytest.approx(gain.mean(), abs=0.05 * gain.std())


def test_deviations_are_widened_and_patients_out_of_fold_move():
    part = slopes.Regressed(0.01, Normals(np.array([0.5, 0.5]), np.array([0.6, 1.0]), np.array([0.2, 0.1])))
    wide = part.widened().of
    assert (wide.mean, wide.sd) == pytest.approx((part.of.mean, slopes.WIDER * part.of.sd))
    rights = [slopes.Right(100, 0.3, 0.05, 0.01)] * 10
    shift, variance = slopes.misfit(sum(slopes.misfit_terms(one, part.of.mean, 1.75) for one in rights))
    precision = 10 / (1.75 * 0.05)
    assert shift == pytest.approx(-0.5 * precision / (precision + 0.15**-2))
    assert variance == pytest.approx(1 / (precision + 0.15**-2))
    assert slopes.misfit(np.zeros(2)) == pytest.approx((0.0, 0.15**2))
    moved = part.widened(shift, variance).of
    assert moved.mean == pytest.approx(part.of.mean + shift) and moved.sd > wide.sd


def test_separated_outcomes_and_constant_features_stay_finite():
    x, _ = hospital(40)
    x[:, 2] = 0
    found = slopes.fitted(x, (x[:, 1] > 0).astype(float), OTHERS)
    assert np.isfinite(found.at).all() and np.isfinite(found.cov).all() and np.isfinite(found.evidence).all()
