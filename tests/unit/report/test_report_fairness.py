# SPDX-License-Identifier: Apache-2.0
"""Fairness quantities against hand-derived numbers, laws and the conventions of the papers' tables.

Hand-derived, for x = (0.9, 0.8, 0.6): mean 2.3 / 3; squared deviations (16 + 1 + 25) / 900, so std = sqrt(42 / 2700)
with ddof 0 and sqrt(42 / 1800) with ddof 1; Jain 2.3^2 / (3 * 1.81) = 5.29 / 5.43. The t quantile for 2 degrees of
freedom at 0.975 is 4.30265 (any printed table), so the half width over seeds is 4.30265 * sqrt(42 / 1800) / sqrt(3).
"""

import json
import math

import numpy as np
import pytest
from scipy import stats

from cases import each
from fairflare.report import fairness

X = {"site-1": 0.9, "site-2": 0.8, "site-10": 0.6}


def test_hand_derived_quantities():
    assert fairness.mean(X) == pytest.approx(2.3 / 3, abs=1e-15)
    assert fairness.std(X) == pytest.approx(math.sqrt(42 / 2700), abs=1e-15)
    assert fairness.std(X, ddof=1) == pytest.approx(math.sqrt(42 / 1800), abs=1e-15)
    assert fairness.worst(X) == ("site-10", 0.6)
    assert fairness.best(X) == ("site-1", 0.9)
    assert fairness.gap(X) == pytest.approx(0.3, abs=1e-15)
    assert fairness.jain(X) == pytest.approx(5.29 / 5.43, abs=1e-15)


def test_lower_is_better_swaps_the_ends():
    assert fairness.worst(X, higher_is_better=False) == ("site-1", 0.9)
    assert fairness.best(X, higher_is_better=False) == ("site-10", 0.6)
    assert fairness.bottom_decile(X, higher_is_better=False) == 0.9


@pytest.mark.parametrize(("n", "expected"), [(1, 0.0), (10, 0.0), (11, 0.5), (20, 0.5), (21, 1.0)])
def test_bottom_decile_takes_a_tenth_rounded_up(n, expected):
    """Values 0, 1, 2, ...: the worst one, two and three have means 0, 0.5 and 1."""
    assert fairness.bottom_decile({f"site-{i}": float(i) for i in range(n)}) == expected


def test_ties_go_to_the_first_name_in_natural_order():
    assert fairness.worst({"site-10": 0.5, "site-2": 0.5})[0] == "site-2"


@each("missing", [None, math.nan, math.inf, -math.inf, "0.1", True])
def test_what_is_no_finite_number_is_left_out_and_named(missing):
    found = fairness.describe({**X, "site-3": missing})
    assert found["left_out"] == ["site-3"]
    assert found["n_sites"] == 3
    assert found["mean"] == fairness.mean(X)
    assert found["worst"] == {"site": "site-10", "value": 0.6}


def test_nothing_known_gives_nothing_claimed():
    found = fairness.describe({"a": None})
    assert found["n_sites"] == 0
    assert [found[key] for key in ("mean", "std", "gap", "bottom_decile", "jain")] == [None] * 5
    assert found["worst"] == {"site": None, "value": None}
    json.dumps(found, allow_nan=False)


def test_one_site():
    one = {"a": 0.4}
    assert (fairness.std(one), fairness.std(one, ddof=1), fairness.gap(one), fairness.jain(one)) == (0, None, 0, 1)
    assert fairness.bootstrap_ci(one) == (None, None)


def test_laws_shift_scale_and_order():
    shifted = {site: value + 0.05 for site, value in X.items()}
    scaled = {site: value * 0.5 for site, value in X.items()}
    turned = dict(reversed(X.items()))
    assert fairness.std(shifted) == pytest.approx(fairness.std(X))
    assert fairness.gap(scaled) == pytest.approx(0.5 * fairness.gap(X))
    assert fairness.jain(scaled) == pytest.approx(fairness.jain(X))
    assert fairness.describe(turned) == fairness.describe(X)


def test_jain_bounds():
    assert fairness.jain({"a": 0.0, "b": 0.0}) == 1.0
    assert fairness.jain({"a": 0.0, "b": 3.0}) == pytest.approx(1 / 2)
    assert fairness.jain({"a": 1e-200, "b": 1e-200}) == 1.0
    assert fairness.jain({"a": -1.0, "b": 1.0}) is None


def test_bootstrap_of_equal_sites_has_no_width():
    assert fairness.bootstrap_ci({f"s{i}": 0.7 for i in range(6)}) == pytest.approx((0.7, 0.7))


def test_bootstrap_is_seeded_and_blind_to_names():
    renamed = {"z": 0.9, "y": 0.6, "x": 0.8}
    assert fairness.bootstrap_ci(X, seed=3) == fairness.bootstrap_ci(renamed, seed=3)
    assert fairness.bootstrap_ci(X, seed=3) != fairness.bootstrap_ci({**X, "site-4": 0.1}, seed=3)


def test_bootstrap_agrees_with_the_standard_error():
    """For 40 sites the percentile interval is close to mean -+ 1.96 std / sqrt(K), the normal approximation."""
    values = dict(enumerate(np.random.default_rng(0).normal(0.8, 0.05, 40)))
    low, high = fairness.bootstrap_ci({str(k): v for k, v in values.items()}, n=20000)
    half = 1.96 * fairness.std(values) / math.sqrt(40)
    assert low == pytest.approx(fairness.mean(values) - half, abs=0.1 * half)
    assert high == pytest.approx(fairness.mean(values) + half, abs=0.1 * half)


def test_no_interval_is_reported_below_five_sites():
    assert fairness.describe(X)["ci"]["low"] is None
    five = fairness.describe({**X, "site-3": 0.7, "site-4": 0.75})
    assert five["ci"]["low"] < five["mean"] < five["ci"]["high"]


def test_mean_ci_over_three_seeds():
    half = 4.30265 * math.sqrt(42 / 1800) / math.sqrt(3)
    found = fairness.mean_ci([0.9, 0.8, 0.6, None, math.nan])
    assert found["n"] == 3
    assert found["low"] == pytest.approx(2.3 / 3 - half, abs=1e-6)
    assert found["high"] == pytest.approx(2.3 / 3 + half, abs=1e-6)


def test_mean_ci_needs_two_values():
    assert fairness.mean_ci([0.5]) == {"mean": 0.5, "low": None, "high": None, "n": 1, "sd": None}
    assert fairness.mean_ci([]) == {"mean": None, "low": None, "high": None, "n": 0, "sd": None}
    cut = fairness.mean_ci([0.4, 0.56], within=(0, 1))
    assert (cut["low"], cut["high"], cut["sd"]) == (0, 1, pytest.approx(0.16 / math.sqrt(2)))


@pytest.mark.parametrize("level", [0, 1, 1.5])
def test_levels_outside_the_unit_interval_are_refused(level):
    with pytest.raises(ValueError, match="0 < level < 1"):
        fairness.bootstrap_ci(X, level=level)
    with pytest.raises(ValueError, match="0 < level < 1"):
        fairness.mean_ci([1.0, 2.0], level=level)


def test_both_deviations():
    found = fairness.describe(X)
    assert found["std"] == pytest.approx(math.sqrt(42 / 2700), abs=1e-15)
    assert found["std_sample"] == pytest.approx(math.sqrt(42 / 1800), abs=1e-15)
    assert found["ddof"] == 0
    assert fairness.describe({"a": 0.4})["std_sample"] is None


def test_the_student_quantile_is_scipys():
    for df in (1, 2, 3, 4, 7, 10, 29, 30, 101, 466):
        for level in (0.5, 0.9, 0.95, 0.99):
            assert fairness.student_quantile(df, level) == pytest.approx(stats.t.ppf((1 + level) / 2, df), rel=1e-12)
