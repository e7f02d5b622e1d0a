# SPDX-License-Identifier: Apache-2.0
"""Rules that look at the updates themselves: the contract in every variant, and degenerate cases."""

import dataclasses

import pytest
import torch

from fairflare.core import registry
from fairflare.core.types import Info, Reply, Round
from fairflare.rules.base import add_weighted, uniform
from fairflare.rules.fedfv import FedFV
from fairflare.testing.laws import CHECKS

VARIANTS = [
    ("fedfv", {"alpha": 0.0}),
    ("fedfv", {"alpha": 0.5, "tau": 0}),
    ("fedfv", {"tau": 3}),
    ("fedfv", {"variant": "reference"}),
    ("fedfv", {"variant": "reference", "tau": 2}),
]
TRAINABLE = frozenset({"w"})


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("id, settings", VARIANTS, ids=str)
def test_contract_of_variants(id, settings, check):
    check(dataclasses.replace(registry.get_method(id), settings=settings))


def reply(k, vector, n=10, **scalars):
    return Reply(f"site-{k}", {"w": torch.tensor(vector), "mean": torch.ones(1) * k}, n, scalars, trainable=TRAINABLE)


def model():
    return {"w": torch.zeros(2), "mean": torch.zeros(1), "steps": torch.tensor(3)}


def info(t=1):
    return Info(Round(t, 5))


# FedFV


def test_fedfv_is_the_mean_where_nothing_conflicts():
    sites = [reply(k, [1.0, 0.1 * k], loss=float(k)) for k in range(3)]
    outcome = FedFV().aggregate(model(), sites, {}, info())
    expected = add_weighted(model(), sites, uniform([r.site for r in sites]))
    assert all(torch.allclose(outcome.model[key], expected[key]) for key in expected)
    assert set(outcome.notes["conflicts"].values()) == {0}


def test_fedfv_by_hand():
    """(1, 0) loses its part against (-1, 1), which the larger loss keeps whole; the mean's length stays."""
    sites = [reply(0, [1.0, 0.0], loss=1.0), reply(1, [-1.0, 1.0], loss=2.0)]
    found = FedFV(alpha=0.5).aggregate(model(), sites, {}, info()).model["w"]
    direction = torch.tensor([0.5 - 1.0, 0.5 + 1.0])
    assert torch.allclose(found, direction / direction.norm() * 0.5)


def test_fedfv_opposite_updates_cancel_to_no_step():
    sites = [reply(0, [1.0, 0.0], loss=1.0), reply(1, [-1.0, 0.0], loss=2.0)]
    assert torch.equal(FedFV(alpha=0.0).aggregate(model(), sites, {}, info()).model["w"], torch.zeros(2))


def test_fedfv_a_zero_update_is_projected_on_nothing():
    sites = [reply(0, [0.0, 0.0], loss=1.0), reply(1, [-1.0, 0.0], loss=2.0)]
    assert torch.allclose(FedFV().aggregate(model(), sites, {}, info()).model["w"], torch.tensor([-0.5, 0.0]))


def test_fedfv_who_is_away_still_counts_for_tau_rounds():
    """site-1's update of round 1 points against the others' of round 2 and takes its direction out of it."""
    first = [reply(0, [1.0, 1.0], loss=1.0), reply(1, [-1.0, 0.0], loss=2.0)]
    second = [reply(0, [1.0, 1.0], loss=1.0)]
    for tau, expected in ((1, [0.0, 2.0**0.5]), (0, [1.0, 1.0])):
        state = FedFV(tau=tau).aggregate(model(), first, {}, info(1)).state
        found = FedFV(tau=tau).aggregate(model(), second, state, info(2))
        assert torch.allclose(found.model["w"], torch.tensor(expected)), tau
        assert list(FedFV(tau=tau).aggregate(model(), second, found.state, info(3)).state["last"]) == ["site-0"] * tau


def test_fedfv_running_statistics_take_part_in_no_product():
    sites = [reply(k, [1.0, 0.0], loss=1.0) for k in range(3)]
    wild = [dataclasses.replace(r, update={**r.update, "mean": -1e6 * r.update["mean"]}) for r in sites]
    found = FedFV().aggregate(model(), wild, {}, info()).model
    assert torch.allclose(found["w"], torch.tensor([1.0, 0.0])) and found["mean"] == -1e6
