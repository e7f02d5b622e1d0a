# SPDX-License-Identifier: Apache-2.0
"""Sums of log-likelihoods over sites, and Newton steps on them, against statsmodels' fit of the pooled patients."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import later
from fairflare.functional import likelihood
from fairflare.functional.likelihood import aliased, bernoulli, newton_step, own_intercept, profiled, sums

sm = later("statsmodels.api")


def patients(n, p, seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, p))
    y = (random.random(n) < 1 / (1 + np.exp(-x @ random.normal(size=p) - 0.3))).astype(float)
    return torch.from_numpy(x), torch.from_numpy(y)


def fitted(x, y):
    return sm.GLM(y.numpy(), x.numpy(), family=sm.families.Binomial()).fit(tol=1e-14, maxiter=100)


def rounds(parts, p, own, number=10):
    """Newton's steps on the sums of all parts; coefficients, information and log-likelihood at the last ones."""
    beta = torch.zeros(p, dtype=torch.float64)
    for _ in range(number):
        found = []
        for x, y in parts:
            if own:
                found.append(profiled(bernoulli, x, y, beta, own_intercept(bernoulli, x @ beta, y)))
            else:
                found.append(sums(bernoulli, x, y, beta))
        score, information = sum(one.score for one in found), sum(one.information for one in found)
        value = sum(float(one.value) for one in found)
        beta = beta + newton_step(score, information, torch.zeros(p, dtype=torch.bool))
    return beta, information, value


@pytest.mark.parametrize("own", [False, True])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_sites_sums_give_the_pooled_fit(own, seed):
    x, y = patients(300, 3, seed)
    site = torch.arange(300) % 4
    if own and any(len(set(y[site == k].tolist())) < 2 for k in range(4)):
        return
    beta, information, value = rounds([(x[site == k], y[site == k]) for k in range(4)], 3, own)
    dummies = torch.nn.functional.one_hot(site).double()
    pooled = fitted(torch.cat((x, dummies), 1) if own else x, y)
    errors = torch.linalg.inv(information).diagonal().sqrt().numpy()
    assert np.allclose(beta.numpy(), pooled.params[:3], rtol=0, atol=1e-8)
    assert np.allclose(errors, pooled.bse[:3], rtol=0, atol=1e-8) and value == pytest.approx(pooled.llf, abs=1e-8)


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_a_site_whose_outcomes_are_alike_has_no_intercept(outcome):
    assert own_intercept(bernoulli, torch.randn(20, dtype=torch.float64), torch.full((20,), outcome)) is None


def test_an_intercept_is_found_from_far_away():
    predictor = 30 * torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outcome = (torch.arange(50) % 2).double()
    found = own_intercept(bernoulli, predictor, outcome)
    assert abs(float((outcome - (predictor + found).sigmoid()).sum())) < 1e-8


def test_a_coefficient_that_follows_from_others_is_left_out_and_the_intercept_is_kept():
    x, y = patients(200, 2, 0)
    level = torch.arange(200) % 3
    design = torch.cat((x, torch.nn.functional.one_hot(level).double(), torch.ones(200, 1)), 1)
    found = sums(bernoulli, design, y, torch.zeros(6, dtype=torch.float64))
    assert aliased(found.information, first=5).tolist() == [False, False, False, False, True, False]
    assert aliased(found.information).tolist() == [False] * 5 + [True]
    dropped = aliased(found.information, first=5)
    assert newton_step(found.score, found.information, dropped)[4] == 0


def test_a_direction_that_one_patient_alone_tells_gives_no_estimate():
    """Two columns differ in one patient: they part without bound, and neither has an estimate; another one has."""
    random = np.random.default_rng(3)
    x = np.c_[random.normal(size=300), np.zeros((300, 2)), np.ones(300)]
    x[:80, 1], x[1:80, 2] = 1.0, 1.0
    y = (random.random(300) < 1 / (1 + np.exp(-x[:, 0]))).astype(float)
    y[0] = 0.0
    found = likelihood.fitted(partial(sums, bernoulli, torch.from_numpy(x), torch.from_numpy(y)), 4, first=3)
    assert found is not None and found[0].isnan().tolist() == found[1].isnan().tolist() == [False, True, True, False]
    wanted = sm.GLM(y[1:], x[1:][:, [0, 1, 3]], family=sm.families.Binomial()).fit(tol=1e-14)
    assert float(found[0][0]) == pytest.approx(wanted.params[0], abs=1e-5)
    assert float(found[1][0]) ** 0.5 == pytest.approx(wanted.bse[0], abs=1e-5)
