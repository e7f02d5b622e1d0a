# SPDX-License-Identifier: Apache-2.0
"""Shapley values and FedCI's weights from a stored table of utilities."""

import itertools
import json

import pytest
import torch

from fairflare.core.types import Info, Reply, Round
from fairflare_lab.functional.shapley import coalitions, exact, prefixes, sampled
from fairflare_lab.methods.fedci import FedCI, label
from golden import file

GOLDEN = json.loads(file("contribution.json").read_text())
UTILITY = {frozenset(filter(None, key.split(","))): value for key, value in GOLDEN["utilities"].items()}
PLAYERS = sorted(frozenset().union(*UTILITY))


def test_exact_values():
    found = exact(PLAYERS, UTILITY)
    assert list(found.values()) == pytest.approx(GOLDEN["shapley"], abs=1e-12)
    assert set(coalitions(PLAYERS)) == set(UTILITY) - {frozenset()}


def test_all_permutations_give_the_exact_values():
    orders = list(itertools.permutations(PLAYERS))
    assert set(prefixes(orders)) == set(UTILITY) - {frozenset()}
    assert list(sampled(orders, UTILITY).values()) == pytest.approx(GOLDEN["shapley"], abs=1e-12)


def test_weights_of_a_round():
    scalars = {"received_error": 1 - UTILITY[frozenset()]}
    scalars |= {f"coalition_error/{label(c)}": 1 - v for c, v in UTILITY.items() if c}
    update = {"w": torch.ones(1)}
    replies = [Reply(p, update, 10, scalars, trainable=frozenset(update)) for p in PLAYERS]
    outcome = FedCI().aggregate({"w": torch.zeros(1)}, replies, {}, Info(Round(1, 1)))
    assert list(outcome.weights.values()) == pytest.approx(GOLDEN["weights_clip0"], abs=1e-12)
    assert list(outcome.notes["shapley"].values()) == pytest.approx(GOLDEN["shapley"], abs=1e-12)


def test_where_one_evaluation_is_missing_the_known_differences_are_averaged():
    orders = [tuple(PLAYERS), tuple(reversed(PLAYERS))]
    known = {c: v for c, v in UTILITY.items() if c != frozenset(PLAYERS[:2])}
    found = sampled(orders, known)
    second = orders[1]
    expected = UTILITY[frozenset(second[:3])] - UTILITY[frozenset(second[:2])]
    assert found[PLAYERS[1]] == pytest.approx(expected, abs=1e-12)
    assert len(found) == len(PLAYERS)
