# SPDX-License-Identifier: Apache-2.0
"""Group quantities against numbers worked out by hand, laws, and an independent optimiser for the worst mixture.

Hand-derived. Pooled "a": (30 * 0.9 + 10 * 0.5) / 40 = 0.8. Values 0.9, 0.7, 0.5 have squared deviations 0.04, 0, 0.04:
std 0.2 with ddof 1, sqrt(0.08 / 3) with ddof 0.
"""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from cases import each
from fairflare.report import groups

KEYS = ("label", "sex")
CLASSES = ("survived", "died")
V = {"survived, f": 0.9, "survived, m": 0.7, "died, f": 0.5}


def test_pooled_values_weigh_examples_alike():
    told = {
        "site-1": {"a": {"n": 30.0, "value": 0.9}, "b": {"n": 5, "value": 0.2}},
        "site-2": {"a": {"n": 10.0, "value": 0.5}},
        "site-3": {},
    }
    found = groups.pooled(told)
    assert found["a"] == pytest.approx({"n": 40, "value": 0.8})
    assert found["b"] == pytest.approx({"n": 5, "value": 0.2})


@each(
    "cell",
    [{}, {"n": 0, "value": 0.5}, {"n": 5, "value": math.nan}, {"n": None, "value": 1}, {"n": 3}, {"n": -1, "value": 1}],
)
def test_cells_that_hold_nothing_are_passed_over(cell):
    assert groups.pooled({"site-1": {"a": cell}}) == {}


def test_disparity_takes_either_convention():
    assert groups.disparity(V) == pytest.approx(0.2, abs=1e-15)
    assert groups.disparity(V, ddof=0) == pytest.approx(math.sqrt(0.08 / 3), abs=1e-15)
    assert groups.disparity({"a": 0.5}) is None
    assert groups.disparity({"a": 0.5, "b": None}) is None


def test_both_harmonic_forms():
    """1 and 3: 2 * 3 / 4 = 1.5, and half of it."""
    assert groups.harmonic(1, 3) == 1.5
    assert groups.harmonic_printed(1, 3) == 0.75
    assert groups.harmonic(0, 3) == 0
    assert groups.harmonic(0, 0) is groups.harmonic_printed(0, 0) is None
    with pytest.raises(ValueError, match="a, b >= 0"):
        groups.harmonic(-1, 3)


@each(
    ("name", "keys", "expected"),
    [
        ("died, female", ("label", "sex"), ("died", "female")),
        ("died, female, white", ("label", "sex", "race"), ("died", "female, white")),
        ("female, died", ("sex", "label"), ("died", "female")),
        ("died, in hospital, female", ("label", "sex"), ("died, in hospital", "female")),
        ("died, female, or other", ("label", "sex"), ("died", "female, or other")),
        ("lived, female, x", ("label", "sex"), None),
        ("died", ("label",), None),
        ("female, white", ("sex", "race"), None),
    ],
)
def test_names_of_joint_groups(name, keys, expected):
    assert groups.split_name(name, keys, ("died", "died, in hospital")) == expected


def test_equal_opportunity_by_class():
    rates = groups.by_class(V, KEYS, CLASSES)
    assert rates == {"survived": {"f": 0.9, "m": 0.7}, "died": {"f": 0.5}}
    found = groups.equal_opportunity(rates["survived"])
    assert found["gap"] == pytest.approx(0.2)
    assert found["worst"] == {"attribute": "m", "value": 0.7}
    assert groups.equal_opportunity(rates["died"]) == {"gap": None, "worst": {"attribute": "f", "value": 0.5}}
    assert groups.equal_opportunity({}) == {"gap": None, "worst": {"attribute": None, "value": None}}


def test_three_attribute_values_give_largest_minus_smallest():
    assert groups.equal_opportunity({"a": 0.2, "b": 0.9, "c": 0.5})["gap"] == pytest.approx(0.7)


def test_worst_mixture_by_hand():
    """Errors 1, 0 and rho = 0.125: sum l^2 = 1.25 / 2, so l = 1/2 +- sqrt(0.0625) = 0.75 and 0.25."""
    assert groups.worst_mixture({"a": 1.0, "b": 0.0}, 0.125) == pytest.approx({"a": 0.75, "b": 0.25})


def test_worst_mixture_drops_what_would_be_negative():
    """Errors 3, 2, 0, rho = 0.5: for three the last were 1/3 - sqrt(1/14) * 5/3 < 0; for two sum l^2 = 2/3."""
    found = groups.worst_mixture({"a": 3.0, "b": 2.0, "c": 0.0}, 0.5)
    reach = math.sqrt((2 / 3 - 1 / 2) / 2)
    assert found == pytest.approx({"a": 0.5 + reach, "b": 0.5 - reach, "c": 0.0})


@each("case", range(40))
def test_worst_mixture_against_slsqp(case):
    rng = np.random.default_rng(case)
    n = int(rng.integers(2, 9))
    errors = rng.uniform(0, 1, n).round(2 if case % 2 else 1)  # with ties
    rho = float(rng.uniform(0, (n - 1) / 2) if case % 3 else rng.uniform(0, 0.1))
    found = np.array(list(groups.worst_mixture({f"g{i}": float(e) for i, e in enumerate(errors)}, rho).values()))
    best = minimize(
        lambda w: -w @ errors,
        np.full(n, 1 / n),
        jac=lambda w: -errors,
        method="SLSQP",
        bounds=[(0, 1)] * n,
        constraints=[
            {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
            {"type": "ineq", "fun": lambda w: rho - (n * w @ w - 1) / 2, "jac": lambda w: -n * w},
        ],
        options={"ftol": 1e-14, "maxiter": 2000},
    )
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (n * found @ found - 1) / 2 <= rho + 1e-12
    assert found @ errors == pytest.approx(-best.fun, abs=1e-6)


@pytest.mark.parametrize("rho", [1.0, 5.0, math.inf])
def test_a_ball_that_holds_the_simplex_leaves_the_worst_group(rho):
    assert groups.worst_mixture({"a": 0.1, "b": 0.9, "c": 0.2}, rho) == pytest.approx({"a": 0, "b": 1, "c": 0})
    assert groups.worst_mixture({"a": 0.9, "b": 0.9, "c": 0.2}, rho) == pytest.approx({"a": 0.5, "b": 0.5, "c": 0})


def test_no_ball_and_no_difference_leave_uniform_weights():
    assert groups.worst_mixture({"a": 0.1, "b": 0.9}, 0) == pytest.approx({"a": 0.5, "b": 0.5})
    assert groups.worst_mixture({"a": 0.3, "b": 0.3, "c": 0.3}, 0.4) == pytest.approx(dict.fromkeys("abc", 1 / 3))
    assert groups.worst_mixture({}, 0.4) == groups.worst_mixture({"a": None}, 0.4) == {}
    assert groups.worst_mixture({"a": 0.7}, 0.4) == {"a": 1.0}


@pytest.mark.parametrize("rho", [-0.1, math.nan])
def test_a_radius_below_zero_is_refused(rho):
    with pytest.raises(ValueError, match="rho"):
        groups.worst_mixture({"a": 1.0}, rho)


def test_unseen_population_falls_from_uniform_to_the_worst_group():
    found = [groups.unseen(V, rho)["value"] for rho in (0, 0.05, 0.2, 1.0)]
    assert found[0] == pytest.approx(0.7)
    assert found == sorted(found, reverse=True) and len(set(found)) == 4
    assert found[-1] == pytest.approx(0.5)
    assert groups.unseen({}, 0.1) == {"rho": 0.1, "value": None, "weights": {}}


def test_a_mixture_with_an_unknown_group_has_no_value():
    assert groups.mixture_value({"a": 0.5}, {"a": 0.5, "b": 0.5}) is None
    assert groups.mixture_value({"a": 0.5}, {"a": 1.0, "b": 0.0}) == 0.5
