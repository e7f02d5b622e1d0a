# SPDX-License-Identifier: Apache-2.0
"""FedCostWAvg, FedPIDAvg and FedPID: rounds by hand, limits, absent and new sites, sums."""

import pytest
import torch

from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.fedpid import STEEPEST, FedCostWAvg, FedPID

COUNTS = {"a": 30, "b": 10, "c": 40}


def weigh(rule, state, **costs):
    replies = [Reply(s, {}, COUNTS[s], {"trained_loss": c, "trained_error": c}) for s, c in sorted(costs.items())]
    return rule.weigh(replies, state, Info(Round(1, 10)))


@pytest.mark.parametrize("rule", [FedCostWAvg(), FedPID(), FedPID("progress"), FedPID(clamp=False)], ids=str)
def test_the_first_round_is_fedavg(rule):
    assert weigh(rule, {}, a=1.0, b=5.0)[0] == {"a": 0.75, "b": 0.25}


def test_ratios_by_hand():
    """Costs 2, 2 then 1, 2: ratios 2 and 1."""
    _, state = weigh(FedCostWAvg(), {}, a=2.0, b=2.0)
    assert weigh(FedCostWAvg(), state, a=1.0, b=2.0)[0] == pytest.approx(
        {"a": 0.375 + 0.5 * 2 / 3, "b": 0.125 + 0.5 / 3}
    )


def test_falls_and_sums_by_hand():
    """Costs 2, 2 then 1, 1.5: falls 1 and .5, sums 3 and 3.5."""
    _, state = weigh(FedPID(), {}, a=2.0, b=2.0)
    expected = {"a": 0.45 * 0.75 + 0.45 * 2 / 3 + 0.1 * 3 / 6.5, "b": 0.45 * 0.25 + 0.45 / 3 + 0.1 * 3.5 / 6.5}
    assert weigh(FedPID(), state, a=1.0, b=1.5)[0] == pytest.approx(expected)


def test_progress_by_hand():
    """Costs 2, 2 then 1, 1.5 then 1, 1: falls 0 and .5, progress 1 and 1."""
    rule = FedPID("progress")
    _, state = weigh(rule, {}, a=2.0, b=2.0)
    _, state = weigh(rule, state, a=1.0, b=1.5)
    assert weigh(rule, state, a=1.0, b=1.0)[0] == pytest.approx({"a": 0.45 * 0.75 + 0.05, "b": 0.1125 + 0.45 + 0.05})


def test_examples_alone_are_fedavg():
    for rule in (FedCostWAvg(alpha=1), FedPID(alpha=1, beta=0, gamma=0)):
        _, state = weigh(rule, {}, a=1.0, b=5.0)
        assert weigh(rule, state, a=0.5, b=0.1)[0] == pytest.approx({"a": 0.75, "b": 0.25})


def test_where_no_cost_fell_the_examples_decide():
    _, state = weigh(FedPID(gamma=0.0, beta=0.55), {}, a=1.0, b=1.0)
    assert weigh(FedPID(gamma=0.0, beta=0.55), state, a=2.0, b=3.0)[0] == pytest.approx({"a": 0.75, "b": 0.25})


def test_only_the_last_six_costs_count():
    state = {}
    for cost in (100.0, *[1.0] * 6):
        weights, state = weigh(FedPID(), state, a=cost, b=1.0)
    assert set(state["costs"]["a"]) == {"first", *"012345"} and state["costs"]["a"]["first"] == 100.0
    assert weights == pytest.approx({"a": 0.9 * 0.75 + 0.05, "b": 0.9 * 0.25 + 0.05})


@pytest.mark.parametrize("rule", [FedCostWAvg(), FedPID(), FedPID("progress")], ids=str)
def test_a_new_site_takes_its_share_and_an_absent_one_compares_with_its_last_cost(rule):
    _, state = weigh(rule, {}, a=2.0, b=2.0)
    alone, state = weigh(rule, state, a=1.0)
    assert alone == {"a": 1.0}
    weights, _ = weigh(rule, state, a=0.5, b=1.0, c=9.0)
    assert sum(weights.values()) == pytest.approx(1) and min(weights.values()) > 0
    if isinstance(rule, FedCostWAvg):
        assert weights == pytest.approx(
            {"a": 0.5 * 30 / 80 + 0.25 * 2 / 4, "b": 0.5 * 10 / 80 + 0.25 * 2 / 4, "c": 0.5}
        )


def test_a_cost_of_nothing_is_not_everything():
    _, state = weigh(FedCostWAvg(), {}, a=2.0, b=2.0, c=2.0)
    weights, _ = weigh(FedCostWAvg(), state, a=0.0, b=2.0, c=2.0)
    assert weights["a"] == pytest.approx(0.5 * 30 / 80 + 0.5 * STEEPEST / (STEEPEST + 2))


def test_as_written_a_rise_turns_a_site_against_the_model():
    """Falls -1 and 2: the first site's update is taken with a negative factor, its running statistics with none."""
    rule, state = FedPID(clamp=False), {}
    for costs in ((1.0, 3.0), (2.0, 1.0)):
        replies = [
            Reply(s, {"w": torch.tensor([w]), "mean": torch.ones(1)}, 10, {"trained_loss": c}, {}, frozenset("w"))
            for s, w, c in zip("ab", (1.0, 0.0), costs)
        ]
        outcome = rule.aggregate({"w": torch.zeros(1), "mean": torch.zeros(1)}, replies, state, Info(Round(1, 9)))
        state = outcome.state
    factor = 0.225 - 0.45 + 0.1 * 3 / 7
    assert outcome.notes["factor"]["a"] == pytest.approx(factor) == outcome.model["w"].item()
    assert outcome.weights == {"a": 0.0, "b": 1.0} and outcome.model["mean"].item() == pytest.approx(1)


def test_shares_must_be_whole():
    with pytest.raises(ValueError, match="gamma must be 1 - alpha - beta"):
        FedPID(alpha=0.5)


def test_whatever_the_sums_are_a_weight_is_a_share():
    rule = FedCostWAvg()
    for kept in (None, 1.0):
        terms = rule.terms({"trained_loss": 0.5}, 10, kept)
        assert all(term >= 0 for term in terms)
        for sums in ([0.0] * 5, [1e300] * 5, [20.0, 0.0, 0.0, 0.0, 2.0], [0.0, 1e9, 1e-9, 0.0, 1.0]):
            assert 0 <= rule.own_weight(terms, kept, sums)[0] <= 1
