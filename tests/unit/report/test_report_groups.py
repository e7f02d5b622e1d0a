# SPDX-License-Identifier: Apache-2.0
"""Group quantities against numbers worked out by hand, laws, and an independent optimiser for the worst mixture.

Hand-derived. Pooled "a": (30 * 0.9 + 10 * 0.5) / 40 = 0.8. Values 0.9, 0.7, 0.5 have squared deviations 0.04, 0, 0.04:
std 0.2 with ddof 1, sqrt(0.08 / 3) with ddof 0.
"""

import math

import pytest

from cases import each
from fairflare.report import fairness, groups

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
    assert fairness.std(V, 1) == pytest.approx(0.2, abs=1e-15)
    assert fairness.std(V) == pytest.approx(math.sqrt(0.08 / 3), abs=1e-15)
    assert fairness.std({"a": 0.5}, 1) is None
    assert fairness.std({"a": 0.5, "b": None}, 1) is None


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
