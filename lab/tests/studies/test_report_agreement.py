# SPDX-License-Identifier: Apache-2.0
"""Contribution shares and their agreement, by hand and against numpy.

Hand-derived. Two sites, U() = 0, U(a) = 1, U(b) = 2, U(ab) = 4: phi_a = (1 + 2) / 2 = 1.5, phi_b = (2 + 3) / 2 = 2.5.
"""

import math
from itertools import chain, combinations, permutations

import numpy as np
import pytest
from scipy.stats import spearmanr

from fairflare_lab.report import contribution as agreement
from fairflare_lab.report.agreements import agreement as agreement_of


def game(sites, utility):
    teams = chain.from_iterable(combinations(sites, size) for size in range(len(sites) + 1))
    return {frozenset(team): utility(team) for team in teams}


def test_agreement_is_that_of_numpy():
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    found = agreement_of(dict(enumerate(a)), dict(reversed(list(enumerate(b)))))
    assert found["pearson_x100"] == pytest.approx(100 * np.corrcoef(a, b)[0, 1], abs=1e-10)
    assert found["euclid"] == pytest.approx(np.linalg.norm(a - b), abs=1e-14)
    assert found["cosine"] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-14)


def test_a_vector_agrees_with_itself():
    a = {"x": 0.2, "y": 0.3, "z": 0.5}
    assert agreement_of(a, a) == pytest.approx({"pearson_x100": 100, "euclid": 0, "cosine": 1})


def test_ranks_agree_as_in_scipy():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 4, 9).astype(float), rng.normal(size=9)
    found = agreement.agreements(dict(enumerate(a)), dict(enumerate(b)))
    assert found["spearman"] == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    assert set(found) == {"pearson_x100", "euclid", "cosine", "spearman"}
    for a, b in (({"x": 1.0, "y": 1.0}, {"x": 1.0, "y": 2.0}), ({}, {})):
        assert agreement.agreements(a, b)["spearman"] is None


def test_sampled_values_are_those_of_all_orders():
    """Over all orders the sampling is the rule itself; over some each order still sums to U(all) - U(none)."""
    values = {"a": 1.0, "b": 2.0, "c": 4.0}
    table = game("abc", lambda team: sum(map(values.__getitem__, team)) ** 1.5)
    orders = [list(order) for order in permutations("abc")]
    found, exact = agreement.sampled_shapley(orders, table), agreement.shapley(table)
    assert {site: one["value"] for site, one in found.items()} == pytest.approx(exact)
    some = agreement.sampled_shapley(orders[1:3], table)
    assert sum(one["value"] for one in some.values()) == pytest.approx(table[frozenset("abc")])
    gains = [table[frozenset("a")], table[frozenset("ab")] - table[frozenset("b")]]
    assert some["a"]["value"] == pytest.approx(np.mean(gains))
    assert some["a"]["se"] == pytest.approx(np.std(gains, ddof=1) / 2**0.5)
    assert agreement.sampled_shapley(orders[:1], table)["a"]["se"] is None and agreement.sampled_shapley([], {}) == {}
    with pytest.raises(ValueError, match="expected all coalitions"):
        agreement.sampled_shapley(orders[:1], {})


def test_what_is_undefined_is_none():
    equal, other = {"x": 0.1, "y": 0.1, "z": 0.1}, {"x": 0.2, "y": 0.3, "z": 0.5}
    assert agreement_of(equal, other)["pearson_x100"] is None
    assert agreement_of(dict.fromkeys("xyz", 0.0), other)["cosine"] is None
    assert agreement_of({}, {}) == {"pearson_x100": None, "euclid": None, "cosine": None}
    assert agreement_of({"x": 1.0}, {"x": 1.0})["pearson_x100"] is None


def test_shares_of_different_sites_are_refused():
    with pytest.raises(ValueError, match="the same sites"):
        agreement_of({"x": 1.0}, {"y": 1.0})


def test_leave_one_out_shares():
    """Drops 3, -1 and 1: the gain counts as nothing."""
    assert agreement.clipped_shares({"a": 3, "b": -1, "c": 1}) == pytest.approx({"a": 0.75, "b": 0, "c": 0.25})
    assert agreement.clipped_shares({"a": 0, "b": -1}) == {"a": 0.5, "b": 0.5}
    assert agreement.clipped_shares({}) == {}
    with pytest.raises(ValueError, match="b: expected a finite number"):
        agreement.clipped_shares({"a": 1.0, "b": math.nan})


def test_shapley_by_hand():
    found = agreement.shapley({frozenset(): 0, frozenset("a"): 1, frozenset("b"): 2, frozenset("ab"): 4})
    assert found == {"a": 1.5, "b": 2.5}


def test_shapley_laws():
    """Efficiency, symmetry, and nothing for a site that adds nothing."""
    worth = {"a": 1.0, "b": 1.0, "c": 3.0, "idle": 0.0}
    table = game(worth, lambda team: 0.2 + sum(worth[site] for site in team) ** 1.5)
    found = agreement.shapley(table)
    assert sum(found.values()) == pytest.approx(table[frozenset(worth)] - table[frozenset()])
    assert found["a"] == pytest.approx(found["b"])
    assert found["idle"] == pytest.approx(0, abs=1e-15)
    additive = agreement.shapley(game(worth, lambda team: sum(worth[site] for site in team)))
    assert additive == pytest.approx(worth)


def test_shapley_needs_every_coalition():
    with pytest.raises(ValueError, match="expected all coalitions"):
        agreement.shapley({frozenset(): 0.0, frozenset("ab"): 1.0})
    assert agreement.shapley({}) == agreement.shapley({frozenset(): 1.0}) == {}
