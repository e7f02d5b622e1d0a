# SPDX-License-Identifier: Apache-2.0
"""FedGA and FedDG-GA: steps by hand, deferred gaps, absent and new sites."""

import pytest

from cases import each
from fairflare.core.registry import get_method
from fairflare.core.types import Info, Reply, Round
from fairflare_lab.methods.fedga import GeneralizationAdjustment


def weigh(rule, state, t, **sites):
    """Site = (loss of the received model, loss of its own trained one)."""
    replies = [Reply(s, {}, 10, {"loss": f, "trained_loss": own}) for s, (f, own) in sorted(sites.items())]
    weights, state = rule.weigh(replies, state, Info(Round(t, 10)))
    return weights, state


def test_a_gap_weighs_the_round_after():
    """Own losses 1 and 1 in round 1, the average's 3 and 2 in round 2: gaps 2 and 1, step .2 / 2 of 1 and .5."""
    rule = GeneralizationAdjustment()
    first, state = weigh(rule, {}, 1, a=(5.0, 1.0), b=(9.0, 1.0))
    assert first == {"a": 0.5, "b": 0.5}
    second, _ = weigh(rule, state, 2, a=(3.0, 7.0), b=(2.0, 7.0))
    assert second == pytest.approx({"a": 0.6 / 1.15, "b": 0.55 / 1.15})


def test_centred_gaps_move_apart():
    """Gaps 2 and 1 are .5 and -.5 around their mean: .5 + .2 and .5 - .2."""
    rule = GeneralizationAdjustment("feddg-ga")
    _, state = weigh(rule, {}, 1, a=(5.0, 1.0), b=(9.0, 1.0))
    assert weigh(rule, state, 2, a=(3.0, 7.0), b=(2.0, 7.0))[0] == pytest.approx({"a": 0.7, "b": 0.3})


@each("form", ["fedga", "feddg-ga"])
@each("variant", ["paper", "reference", "ffl4mia"])
@each("gap", [0.0, 1.0, -1.0])
def test_equal_gaps_leave_the_weights(form, variant, gap):
    rule = GeneralizationAdjustment(form, variant=variant)
    _, state = weigh(rule, {}, 1, a=(5.0, 1.0), b=(5.0, 1.0))
    assert weigh(rule, state, 2, a=(1 + gap, 1.0), b=(1 + gap, 1.0))[0] == pytest.approx({"a": 0.5, "b": 0.5})


def test_no_step_is_uniform():
    rule = GeneralizationAdjustment("feddg-ga", step=0)
    _, state = weigh(rule, {}, 1, a=(5.0, 1.0), b=(9.0, 1.0))
    assert weigh(rule, state, 2, a=(3.0, 7.0), b=(2.0, 7.0))[0] == {"a": 0.5, "b": 0.5}


def test_an_absent_site_keeps_its_share_and_its_old_gap_is_not_used():
    rule = GeneralizationAdjustment("feddg-ga")
    _, state = weigh(rule, {}, 1, a=(5.0, 1.0), b=(5.0, 1.0), c=(5.0, 1.0))
    moved, state = weigh(rule, state, 2, a=(3.0, 1.0), b=(1.0, 1.0))
    assert moved == pytest.approx({"a": (1 / 3 + 0.2) / (2 / 3), "b": (1 / 3 - 0.2) / (2 / 3)})
    assert state["a"]["c"] == pytest.approx(1 / 3)
    back, after = weigh(rule, state, 3, a=(1.0, 1.0), b=(1.0, 1.0), c=(100.0, 1.0))
    assert back == pytest.approx(state["a"]) and after["a"] == pytest.approx(state["a"])


def test_a_newcomer_stands_at_the_mean():
    rule = GeneralizationAdjustment("feddg-ga")
    _, state = weigh(rule, {}, 1, a=(5.0, 1.0), b=(5.0, 1.0))
    weights, _ = weigh(rule, state, 2, a=(3.0, 1.0), b=(1.0, 1.0), c=(9.0, 1.0))
    assert weights == pytest.approx({"a": 1 / 3 + 0.2, "b": 1 / 3 - 0.2, "c": 1 / 3})


def test_weights_that_are_clipped_away_fall_back_to_examples():
    state = {"a": {"a": 0.0, "b": 0.0, "c": 1.0}, "trained": {}}
    assert weigh(GeneralizationAdjustment(), state, 2, a=(1.0, 1.0), b=(1.0, 1.0))[0] == {"a": 0.5, "b": 0.5}


def test_both_methods_measure_on_the_validation_split():
    for id in ("fedga", "feddg-ga"):
        assert get_method(id).settings["loss_split"] == "val"
    assert GeneralizationAdjustment(gap="error").wanted == ("received_error", "trained_error")
