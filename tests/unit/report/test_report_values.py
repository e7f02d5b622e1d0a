# SPDX-License-Identifier: Apache-2.0
"""Names, numbers and JSON values of the reports."""

import json
import math

import numpy as np
import pytest

from cases import each
from fairflare.report import values


def test_natural_order():
    names = ["site-10", "site-2", "b", "site-1", "10", "9", "site-2"]
    assert values.in_order(names) == ["9", "10", "b", "site-1", "site-2", "site-10"]


def test_order_does_not_depend_on_the_order_given():
    names = ["a01", "a1", "a001", "", "-", "a"]
    assert values.in_order(names) == values.in_order(reversed(names))


def test_json_values_hold_no_nan_anywhere():
    found = values.json_value(
        {1: (math.nan, [np.float32(0.5), {"x": math.inf}]), "s": {"b", "a"}, "ok": [True, None, 3]}
    )
    assert found == {"1": [None, [0.5, {"x": None}]], "s": ["a", "b"], "ok": [True, None, 3]}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("value", "plain", "signed"),
    [(0.1236, "0.124", "+0.124"), (-0.5, "−0.500", "−0.500"), (None, "–", "–"), (math.nan, "–", "–")],
)
def test_numbers_in_text(value, plain, signed):
    assert values.text(value) == plain
    assert values.signed(value) == signed


def test_capitals_times_and_full_stops():
    assert [values.capital(word) for word in ("AUC", "balanced accuracy", "")] == ["AUC", "Balanced accuracy", ""]
    assert values.moment("2026-11-21T10:05:09.546+00:00") == "2026-11-21 10:05 UTC"
    assert values.moment(None) == values.moment("?") == "time not recorded"
    assert values.stop("Done") == values.stop("Done.") == "Done."


def test_lists_and_plurals_in_text():
    assert values.listing([]) == ""
    assert values.listing("a") == "a"
    assert values.listing("abc") == "a, b and c"
    assert [values.plural(n, "site") for n in (0, 1, 2)] == ["0 sites", "1 site", "2 sites"]


@pytest.mark.parametrize(
    ("n", "shown"), [(0, "0 B"), (999, "999 B"), (12_552, "12.6 kB"), (3_400_000, "3.4 MB"), (2 * 10**12, "2 TB")]
)
def test_sizes_in_bytes(n, shown):
    assert values.size(n) == shown


@each(("largest", "decimals"), [(0.0, 3), (0.5, 3), (9.9, 3), (12.0, 1), (981, 0), (0.02, 4), (1e-9, 6), (1e9, 0)])
def test_decimals_show_about_three_figures(largest, decimals):
    assert values.digits([None, -largest]) == decimals
