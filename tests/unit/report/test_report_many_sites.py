# SPDX-License-Identifier: Apache-2.0
"""A report of more sites than anyone tells apart: what is drawn and said instead of each of them."""

import copy
import re

import pytest
from matplotlib.figure import Figure

from fairflare.report import rounds
from fairflare.report import sentences as words
from fairflare.report.sentences import MOST_NAMED
from fairflare.report.sites import site_points
from fairflare.report.summary import summarise
from fairflare.report.svg import MANY, band


@pytest.fixture
def many(inputs):
    """The fixture's run, whose first site stands for 200 more."""

    def of(n):
        made = copy.deepcopy(inputs)
        entries = made["entries"]
        first = next(iter(next(entry["accepted"] for entry in entries if entry["event"] == "round")))
        for entry in entries:
            for part in ("accepted", "weights", "sites", "preflight"):
                if isinstance(entry.get(part), dict) and first in entry[part]:
                    entry[part] |= {f"more-{k:03d}": copy.deepcopy(entry[part][first]) for k in range(n)}
            if entry["event"] == "start":
                entry["sites"] = [*entry["sites"], *(f"more-{k:03d}" for k in range(n))]
        return summarise(**made)

    return of


def test_few_sites_are_drawn_one_by_one_and_many_as_a_spread(many):
    few, lots = many(0), many(200)
    assert len(lots["sites"]) > MANY >= len(few["sites"])
    names = [site_points(found).count("more-") for found in (few, lots)]
    assert names == [0, 0] and "best first" in site_points(lots) and "best first" not in site_points(few)
    for draw in (rounds.metric_rounds, rounds.weight_rounds):
        assert "middle 90%" in draw(lots) and "middle 90%" not in draw(few)
        assert len(draw(lots)) < 3 * len(draw(few))


def test_a_figure_of_many_sites_is_no_taller(many):
    height = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', site_points(many(200))).group(1))
    assert height < 500


def test_many_sites_without_a_result_are_counted():
    assert words._some(["a", "b"]) == "a and b"
    sites = [f"site-{k}" for k in range(MOST_NAMED + 1)]
    assert words._some(sites) == "13 sites (site-0, site-1, site-2 and 10 more)"


def test_quantiles_are_values_that_there_are():
    axes = Figure().subplots()
    band(axes, [1, 2, 3], [[5.0, 1.0, 4.0, 2.0, 3.0], [None, 7.0], [None]])
    for filled, ends in zip(axes.collections, ({1.0, 5.0, 7.0}, {2.0, 4.0, 7.0})):
        assert {float(y) for path in filled.get_paths() for _, y in path.vertices} == ends, "and a gap"
