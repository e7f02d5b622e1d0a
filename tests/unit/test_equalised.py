# SPDX-License-Identifier: Apache-2.0
"""FedHEAL's Eq. 10 against a general solver, random weights, and by hand."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fairflare.aggregators.fedheal import FedHEAL
from fairflare.core.types import Info, Reply, Round
from fairflare.functional.directions import equalised


def variance(updates, p):
    """Var_m(||sum_j p_j u_j - u_m||^2) of (K, N) updates, as the equation is printed."""
    return np.var(((p @ updates - updates) ** 2).sum(1))


def solved(updates):
    """The program by SLSQP with its analytic gradient, in units of the updates."""
    products = updates @ updates.T
    apart = np.diag(products)[:, None] - 2 * products
    apart = apart - apart.mean(0)
    apart /= np.abs(apart).max()
    count = len(updates)
    found = minimize(
        lambda p: p @ apart.T @ apart @ p,
        np.full(count, 1 / count),
        jac=lambda p: 2 * apart.T @ apart @ p,
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-18, "maxiter": 200},
    )
    return found.x


def test_weights_are_those_of_a_general_solver_and_no_others_vary_less():
    rng = np.random.default_rng(0)
    for _ in range(20):
        count = int(rng.integers(2, 8))
        updates = rng.normal(size=(count, 30)) * rng.uniform(0.2, 3, (count, 1)) + rng.normal(size=30)
        p = equalised(updates @ updates.T)
        assert p.min() >= 0 and p.sum() == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(p, solved(updates), atol=1e-8)
        least = variance(updates, p)
        others = rng.dirichlet(np.ones(count), 1000)
        assert all(variance(updates, other) >= least * (1 - 1e-9) for other in others)


def test_by_hand():
    # U = p u_1 + (1 - p) u_2 has the same distance from both in the middle.
    np.testing.assert_allclose(equalised(np.array([[1.0, 0.0], [0.0, 9.0]])), [0.5, 0.5])
    np.testing.assert_allclose(equalised(np.zeros((3, 3))), np.full(3, 1 / 3))
    with pytest.raises(ValueError, match="finite"):
        equalised(np.full((2, 2), np.nan))


def test_the_rule_steps_by_these_weights():
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(4, 6)) + 1
    replies = [
        Reply(f"s{k}", {"w": torch.from_numpy(u)}, 10, trainable=frozenset({"w"})) for k, u in enumerate(updates)
    ]
    model = {"w": torch.zeros(6, dtype=torch.float64)}
    for parts in ("fael", "both"):
        rule = FedHEAL(parts=parts, variant="exact")
        outcome = rule.aggregate(model, replies, {}, Info(Round(1, 3)))
        weights = np.array(list(outcome.weights.values()))
        np.testing.assert_allclose(weights, equalised((u := updates.astype(np.float32)) @ u.T), atol=1e-5)
    fael = FedHEAL(parts="fael", variant="exact").aggregate(model, replies, {}, Info(Round(1, 3)))
    assert torch.allclose(fael.model["w"], torch.from_numpy(weights @ updates))
