# SPDX-License-Identifier: Apache-2.0
"""Leave-one-out and Shapley over seeds, by hand."""

import pytest

from fairflare_lab.report.contribution import (
    EXACT_TO,
    coalitions,
    joining_orders,
    over_seeds,
    shapley_of,
    shapley_shares,
)


def test_all_coalitions_of_few_sites_and_drawn_ones_of_many():
    assert joining_orders("abc", 5, 0) == []
    assert [len(team) for team in coalitions("abc", [])] == [1, 1, 1, 2, 2, 2, 3]
    many = [f"s{k}" for k in range(EXACT_TO + 1)]
    orders = joining_orders(many, 3, 0)
    assert [sorted(order) for order in orders] == [many] * 3 and orders == joining_orders(many, 3, 0)
    assert orders != joining_orders(many, 3, 1)
    teams = coalitions(many, orders)
    assert teams[-1] == frozenset(many) and len(teams) <= 1 + 3 * EXACT_TO
    utilities = {team: len(team) ** 2 for team in [*teams, frozenset()]}
    values = shapley_of(many, orders, utilities)
    assert sum(one["value"] for one in values.values()) == pytest.approx(len(many) ** 2)
    exact = shapley_of("ab", [], {frozenset(): 0, frozenset("a"): 1, frozenset("b"): 2, frozenset("ab"): 4})
    assert exact == {"a": {"value": 1.5, "se": 0.0}, "b": {"value": 2.5, "se": 0.0}}


def _seed(a, b, values=None):
    rows = [{"site": "a", "drop": a, "share": a / (a + b)}, {"site": "b", "drop": b, "share": b / (a + b)}]
    methods = {"m": {"a": 0.9, "b": 0.1}, "examples": {"a": 0.5, "b": 0.5}}
    return {"sites": rows, "methods": methods, "shapley": values}


def test_seeds_together():
    found = over_seeds([_seed(0.3, 0.1), _seed(0.31, -0.1), _seed(0.29, 0.1)], ["m", "examples"])
    one = found["leave_one_out"]
    assert one["a"]["drop"]["mean"] == pytest.approx(0.3) and one["a"]["drop"]["low"] > 0
    assert [one[site]["verdict"] for site in "ab"] == ["cannot be told"] * 2, "by Holm's p, whatever the interval"
    assert (one["a"]["drop"]["p"], one["a"]["drop"]["p_holm"]) == (0.25, 0.5)
    assert found["shapley"] is None and found["agreement"]["m"]["shapley"] is None
    assert found["agreement"]["m"]["leave_one_out"]["pearson_x100"]["mean"] == pytest.approx(100)
    assert found["agreement"]["examples"]["leave_one_out"]["pearson_x100"]["mean"] is None, "equal shares order nobody"


def test_a_site_without_which_it_goes_better_harms():
    seven = [_seed(0.3 + 0.01 * k, -0.1 - 0.01 * k) for k in range(7)]
    found = over_seeds(seven, ["m"])["leave_one_out"]
    assert (found["a"]["verdict"], found["b"]["verdict"]) == ("helps", "harms")
    six = over_seeds(seven[:6], ["m"])["leave_one_out"]
    assert six["b"]["drop"]["high"] < 0 and six["b"]["verdict"] == "cannot be told"


def test_shapley_shares_leave_out_what_is_negative():
    values = {"a": {"value": 3.0, "se": 0.1}, "b": {"value": -1.0, "se": 0.3}}
    assert shapley_shares(values) == {"a": 1.0, "b": 0.0}
    found = over_seeds([_seed(0.1, 0.1, values), _seed(0.1, 0.1, values)], ["m"])["shapley"]
    assert found["a"]["value"]["mean"] == 3.0 and found["b"]["se"] == pytest.approx(0.3)
    assert over_seeds([_seed(0.1, 0.1, values)], ["m"])["agreement"]["m"]["shapley"]["cosine"]["mean"] > 0.9
