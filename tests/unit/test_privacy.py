# SPDX-License-Identifier: Apache-2.0
"""What may leave a site: group counts with complementary suppression, and the allow-list, which fails closed."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from fairflare.core.errors import EgressRefused
from fairflare.core.schema import Answer
from fairflare.core.types import Number
from fairflare.data.site_config import stricter
from fairflare.engine.exchanges.sums import sealed_check, sizes_in_rounds
from fairflare.privacy.counts import released, released_unions
from fairflare.privacy.egress import Egress


def test_counts_at_the_minimum_leave_and_below_do_not():
    assert released([10, 50, 9, 8], 10) == [True, True, False, False]


def test_nothing_leaves_without_a_minimum():
    assert released([1000, 2000], None) == [False, False]


def test_one_small_group_hides_the_next_smallest_too():
    """50 + 20 + 3 of 73: with 50 and 20 known, the 3 follow."""
    assert released([50, 20, 3], 10) == [True, False, False]


def test_two_small_groups_that_are_small_together_hide_a_third():
    """3 and 4 hide each other, but that there are 7 of them in all would follow."""
    assert released([3, 4, 50, 30], 10) == [False, False, True, False]


def test_an_empty_group_hides_nobody():
    assert released([0, 40, 60], 10) == [True, True, True]


def test_a_few_unknown_are_a_small_group():
    assert released([40, 60], 10, unknown=2) == [False, True]
    assert released([40, 60], 10, unknown=0) == [True, True]


@each("counts", list(itertools.product([0, 3, 9, 10, 40], repeat=3)))
def test_no_small_count_follows_by_subtraction(counts):
    """Whoever knows the total and all released counts finds either no hidden patient, or at least two cells and ten."""
    free = released(list(counts), 10)
    hidden = [n for n, leaves in zip(counts, free) if not leaves]
    assert all(n == 0 or n >= 10 for n, leaves in zip(counts, free) if leaves)
    everything = all(n == 0 for n, leaves in zip(counts, free) if leaves)
    assert not hidden or everything or (len(hidden) >= 2 and sum(hidden) >= 10)


EGRESS = Egress(
    model={"w": torch.zeros(2, 3), "steps": torch.tensor(1)},
    scalars=(Number("loss", 0.0, 10.0, "a loss"), Number("group_loss/a", 0.0, 10.0, "another")),
    metrics=frozenset({"auc", "loss", "train_loss"}),
    groups=("a", "b"),
)
TRAIN = {
    "update": {"w": torch.ones(2, 3)},
    "n_examples": 30,
    "scalars": {"loss": 1.0},
    "metrics": {"auc": 0.5, "train_loss": 0.1},
    "seconds": {"train": 2.0},
    "sealed": {},
}
EVALUATE = {
    "update": None,
    "n_examples": 30,
    "scalars": {},
    "metrics": {
        "val": {"auc": 0.5},
        "test": {},
        "n": {"val": 3.0, "test": 0.0},
        "groups": {"test": {"a": {"n": 12.0, "value": 0.5}}, "val": {}},
    },
    "seconds": {},
    "sealed": {},
}
COMPARE = {
    "update": None,
    "n_examples": None,
    "scalars": {"loss": 1.0},
    "metrics": {},
    "seconds": {"compare": 1.0},
    "sealed": {},
}
EMPTY = {**COMPARE, "scalars": {}, "seconds": {}}
SEALED = {"sealed": sealed_check(sizes_in_rounds(range(816, 817)))}
SECRET = dataclasses.replace(EGRESS, scalars=(), secure=True, checks=SEALED)
WEIGHED = {**TRAIN, "scalars": {}, "metrics": {"auc": 0.5}}


def check(egress, task, **fields):
    egress.check(task, Answer("site-1", 1, **fields))


def test_what_is_agreed_on_passes():
    check(EGRESS, "train", **TRAIN)
    check(EGRESS, "evaluate", **EVALUATE)
    check(EGRESS, "compare", **COMPARE)
    check(EGRESS, "preflight", **{**EMPTY, "n_examples": 5})
    check(EGRESS, "train", **{**TRAIN, "update": {"w": torch.ones(2, 3).numpy()}})


BAD = [
    {"scalars": {"loss": math.nan}},
    {"scalars": {"loss": math.inf}},
    {"scalars": {"loss": 11.0}},
    {"scalars": {"loss": True}},
    {"scalars": {"loss": "1.0"}},
    {"scalars": {"patient 17": 1.0}},
    {"scalars": [1.0]},
    {"metrics": {"age of the oldest": 91.0}},
    {"metrics": {"auc": math.nan}},
    {"metrics": None},
    {"seconds": {"train": -1.0}},
    {"seconds": {"break": 1.0}},
    {"n_examples": 0},
    {"n_examples": "many"},
    {"update": None},
    {"update": {"w": torch.ones(6)}},
    {"update": {"w": torch.ones(2, 3), "images": torch.ones(9)}},
    {"update": {}},
    {"update": {"w": torch.ones(2, 3, dtype=torch.int64)}},
    {"update": {"w": "text"}},
]


@each("change", BAD, ids=str)
def test_anything_else_is_refused_without_its_value(change):
    with pytest.raises(EgressRefused) as error:
        check(EGRESS, "train", **{**TRAIN, **change})
    assert "patient 17" not in str(error.value) and "91" not in str(error.value)


@pytest.mark.parametrize(
    "groups",
    [{"train": {}}, {"test": {"c": {"n": 12.0, "value": 0.5}}}, {"test": {"a": {"n": 12.0, "value": 1.5}}}, [1]],
    ids=str,
)
def test_group_values_are_checked(groups):
    with pytest.raises(EgressRefused):
        check(EGRESS, "evaluate", **{**EVALUATE, "metrics": {**EVALUATE["metrics"], "groups": groups}})


@pytest.mark.parametrize("task", ["evaluate", "preflight", "compare"])
def test_weights_leave_after_training_only(task):
    with pytest.raises(EgressRefused, match="weights"):
        check(EGRESS, task, **{**COMPARE, "update": TRAIN["update"]})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_weights_are_refused(value):
    with pytest.raises(EgressRefused, match="weights w: not finite"):
        check(EGRESS, "train", **{**TRAIN, "update": {"w": torch.full((2, 3), value)}})


@pytest.mark.parametrize(
    "own, job, expected", [(20, 10, 20), (5, 10, 10), (None, 10, None), (20, None, None), (0, 0, 0)]
)
def test_neither_site_nor_job_can_be_laxer_than_the_other(own, job, expected):
    assert stricter(own, job) == expected


def test_with_secure_sums_sealed_numbers_leave_and_plain_ones_do_not():
    key = {"key": "0f" * 32, "signature": "Ab=="}
    check(SECRET, "preflight", **{**EMPTY, "sealed": key})
    check(SECRET, "train", **{**EMPTY, "n_examples": 30})
    check(SECRET, "sum", **{**EMPTY, "sealed": {"sum": bytes(816)}})
    check(SECRET, "weigh", **WEIGHED)


@each(
    "egress, task, answer",
    [
        (SECRET, "train", {**TRAIN, "scalars": {}}),
        (SECRET, "weigh", {**WEIGHED, "scalars": {"loss": 1.0}}),
        (SECRET, "weigh", {**WEIGHED, "metrics": {"loss": 0.5}}),
        (SECRET, "weigh", {**WEIGHED, "metrics": {"train_loss": 0.5}}),
        (SECRET, "weigh", {**WEIGHED, "sealed": {"sum": bytes(816)}}),
        (SECRET, "sum", {**EMPTY, "sealed": {"sum": bytes(815)}}),
        (SECRET, "sum", {**EMPTY, "sealed": {"sum": bytes(817)}}),
        (SECRET, "sum", {**EMPTY, "sealed": {"sum": "text"}}),
        (SECRET, "sum", {**EMPTY, "sealed": {"name": "Doe"}}),
        (SECRET, "sum", {**EMPTY, "metrics": {"auc": 0.5}}),
        (SECRET, "preflight", {**EMPTY, "sealed": {"key": "patient: 17"}}),
        (SECRET, "preflight", {**EMPTY, "sealed": {"key": "a" * 20_000}}),
        (SECRET, "preflight", {**EMPTY, "sealed": {"signature": "a" * 1025}}),
        (SECRET, "preflight", {**EMPTY, "sealed": {"signature": "Mrs Doe, born 1960"}}),
        (SECRET, "preflight", {**EMPTY, "sealed": {"certificate": "Mrs Doe, born 1960"}}),
        (SECRET, "preflight", {**EMPTY, "sealed": {"sum": bytes(816)}}),
        (EGRESS, "sum", {**EMPTY, "sealed": {"sum": b"1"}}),
        (EGRESS, "preflight", {**EMPTY, "sealed": {"key": "0f" * 32}}),
    ],
)
def test_what_is_sealed_is_checked(egress, task, answer):
    with pytest.raises(EgressRefused):
        check(egress, task, **answer)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=8),
    st.integers(0, 15),
    st.integers(2, 12),
)
def test_no_small_union_follows_by_subtraction(groups, unknown, least):
    """Neither what a released union leaves over of itself beside the groups that are shown, nor what all leave over."""
    counts, of = [n for n, _ in groups], [union for _, union in groups]
    shown = released(counts, least, unknown)
    free = released_unions(counts, of, shown, least, unknown)
    hidden = [sum(n for n, u, s in zip(counts, of, shown) if u == k and not s) for k in range(len(free))]
    for k, may in enumerate(free):
        size = sum(n for n, u in zip(counts, of) if u == k)
        assert not may or (size == 0 or size >= least) and (hidden[k] == 0 or hidden[k] >= least)
    rest = unknown + sum(n for n, may in zip(hidden, free) if not may)
    assert rest == 0 or rest >= least or not any(may and n for n, may in zip(hidden, free))
