# SPDX-License-Identifier: Apache-2.0
"""Paired statistics against values worked out by hand or by another way of computing them."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from cases import each
from fairflare.report.fairness import (
    EXACT_TO,
    LEVEL,
    corrected,
    effect_size,
    hierarchical,
    holm,
    paired,
    seeds_needed,
    sentence,
    sign_flip,
    verdict,
)


@pytest.mark.parametrize("differences", [[0.1, 0.2, 0.3], [0.1, -0.2, 0.05, 0.3], [0.0, 0.0, 0.1], [-0.5, -0.5]])
def test_sign_flips_are_all_looked_at(differences):
    observed = abs(sum(differences)) - 1e-12
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    extreme = sum(abs(sum(s * d for s, d in zip(signs, differences))) >= observed for signs in patterns)
    assert sign_flip(differences) == (pytest.approx(extreme / len(patterns)), True)


def test_the_smallest_p_is_that_of_the_number_of_seeds():
    assert [sign_flip([0.1 + 0.01 * k for k in range(n)])[0] for n in (3, 5, 8)] == [0.25, 0.0625, 2 / 2**8]
    assert sign_flip([0.1]) == (None, True) and sign_flip([]) == (None, True)


def test_many_pairs_are_drawn_and_repeatable():
    differences = np.random.default_rng(0).normal(0.5, 1.0, EXACT_TO + 8)
    p, exact = sign_flip(differences)
    assert not exact and sign_flip(differences) == (p, False)
    assert p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=0.03)


def test_interval_and_effect_size():
    values = [0.1, 0.3, 0.2, 0.4]
    found = paired([*values, None, math.nan])
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found["low"], found["high"], found["n"]) == (pytest.approx(low), pytest.approx(high), 4)
    d = np.mean(values) / np.std(values, ddof=1)
    assert found["d"] == pytest.approx(d)
    assert found["g"] == pytest.approx(d * (1 - 3 / (4 * 3 - 1)), rel=0.02), "the usual approximation of the factor"
    assert found["g"] == pytest.approx(d * math.gamma(1.5) / (math.sqrt(1.5) * math.gamma(1)))
    rounded = [0.3 - 0.2, 0.2 - 0.1, 0.4 - 0.3, 0.5 - 0.4]
    for none in ([0.1, 0.1], [0.1], [], [0.0, 0.0], rounded):
        assert effect_size(none) == {"d": None, "g": None}
    assert effect_size([0.1, 0.3])["g"] is None and effect_size([0.1, 0.3])["d"] == pytest.approx(math.sqrt(2))


def test_holm_steps_down_and_never_back():
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005, "e": None})
    assert found == {k: pytest.approx(v) if v else v for k, v in dict(a=0.03, b=0.06, c=0.06, d=0.02, e=None).items()}
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0} and holm({}) == {}


@each(
    "low, high, higher, said",
    [
        (0.1, 0.2, True, "better"),
        (0.1, 0.2, False, "worse"),
        (-0.2, -0.1, True, "worse"),
        (-0.2, -0.1, False, "better"),
        (-0.1, 0.2, True, "cannot be told"),
        (0.0, 0.2, True, "cannot be told"),
        (None, None, True, "cannot be told"),
    ],
)
def test_the_interval_decides(low, high, higher, said):
    assert verdict({"mean": 5.0, "low": low, "high": high}, higher) == said


def test_the_bootstrap_covers_seeds_and_patients():
    own = {0: [0.6, 0.6], 1: [0.8, 0.8]}
    other = {0: [0.5, 0.5], 1: [0.5, 0.5]}
    found = hierarchical(own, other)
    assert found["mean"] == pytest.approx(0.2)
    assert (found["low"], found["high"]) == (pytest.approx(0.1), pytest.approx(0.3)), "the seeds alone differ"
    noise = np.random.default_rng(1).normal(0.1, 0.05, 400)
    one = hierarchical({0: noise}, {0: np.zeros(400)}, draws=4000)
    assert (one["low"], one["high"]) == (pytest.approx(0.0, abs=0.03), pytest.approx(0.2, abs=0.03))
    wide = hierarchical({s: noise for s in range(4)}, {s: np.zeros(400) for s in range(4)}, draws=4000)
    assert wide["high"] - wide["low"] == pytest.approx((one["high"] - one["low"]) / 2, rel=0.15)
    assert hierarchical(own, other) == hierarchical(own, other)
    assert hierarchical({}, {})["mean"] is None
    with pytest.raises(ValueError, match="the same seeds"):
        hierarchical(own, {0: [0.5, 0.5]})


def test_patients_that_all_seeds_share_count_once():
    """Eight seeds with the same patients tell no more of other patients than one does."""
    noise = np.random.default_rng(1).normal(0.1, 0.05, 400)
    own, other = ({s: list(row) for s in range(8)} for row in (noise, np.zeros(400)))
    width = {}
    for crossed in (False, True):
        found = hierarchical(own, other, draws=4000, crossed=crossed)
        width[crossed] = found["high"] - found["low"]
    one = hierarchical({0: list(noise)}, {0: [0.0] * 400}, draws=4000)
    assert width[True] == pytest.approx(one["high"] - one["low"], rel=0.05)
    assert width[False] == pytest.approx(width[True] / np.sqrt(8), rel=0.1)


def test_a_resample_without_a_value_counts_for_no_seed():
    own = {0: [1.0, float("nan"), 3.0], 1: [1.0, 50.0, 3.0]}
    found = hierarchical(own, {0: [0.0] * 3, 1: [0.0] * 3}, crossed=True)
    assert found["mean"] == 2.0 and (found["low"], found["high"]) == (1.0, 3.0)
    nothing = {0: [float("nan")]}
    assert hierarchical(nothing, {0: [0.0]}, crossed=True)["low"] is None
    assert hierarchical({}, {}, crossed=True)["mean"] is None
    with pytest.raises(ValueError, match="as many resamples of every seed"):
        hierarchical({0: [1.0], 1: [1.0, 2.0]}, {0: [0.0], 1: [0.0, 0.0]}, crossed=True)


def test_a_verdict_of_several_needs_holms_p():
    found = {"low": 0.1, "high": 0.3, "p": 0.02}
    for p, said in ((LEVEL, "better"), (0.06, "cannot be told"), (None, "cannot be told")):
        assert corrected(found | {"p_holm": p}, True) == said
    assert corrected({**found, "p_holm": 0.25}, True) == "cannot be told", "three seeds: the interval alone is too sure"
    assert corrected(found | {"p_holm": 0.01}, False) == "worse"
    assert corrected({"low": -0.1, "high": 0.3, "p_holm": 0.01}, True) == "cannot be told"
    for count in (2, 3, 8):
        n = seeds_needed(count)
        smallest = [holm({k: sign_flip([0.1] * seeds)[0] for k in range(count)})[0] for seeds in (n - 1, n)]
        assert smallest[0] > LEVEL >= smallest[1]


def test_a_sentence_says_it_by_the_interval():
    found = paired([0.1, 0.12, 0.11, 0.13]) | {"verdict": "better", "wins": 4, "p_holm": 0.25}
    said = sentence("A", "B", "worst site", found)
    assert said.startswith("A: its worst site is better than that of B: +0.115 (95 % interval +0.094 to +0.136; ")
    assert "better in 4 of 4 seeds; sign-flip p 0.125; Holm 0.25; Hedges' g" in said
    found |= {"verdict": "cannot be told", "bootstrap": {"low": -0.1, "high": 0.3}}
    assert "is not shown to differ from" in sentence("A", "B", "worst site", found)
    assert sentence("A", "B", "worst site", found).endswith("with patients resampled \N{MINUS SIGN}0.100 to +0.300).")
    one = paired([0.1]) | {"verdict": "cannot be told", "wins": 1, "p_holm": None}
    assert sentence("A", "B", "worst site", one).endswith("by +0.100 (one seed, no interval).")
    assert sentence("A", "B", "worst site", paired([])) == "A: no worst site to compare with B."
