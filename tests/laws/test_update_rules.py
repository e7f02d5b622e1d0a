# SPDX-License-Identifier: Apache-2.0
"""Rules that look at the updates themselves: the contract in every variant, and degenerate cases."""

import dataclasses

import pytest
import torch

from cases import each
from fairflare.aggregators.base import add_weighted, uniform
from fairflare.aggregators.bounded import Bounded, Bounds
from fairflare.aggregators.robust import Median, TrimmedMean
from fairflare.core import registry
from fairflare.core.errors import RunFailed
from fairflare.core.types import Info, Reply, Round
from fairflare.testing.laws import CHECKS
from fairflare_lab.functional.terms import head_of
from fairflare_lab.methods.collaborative_fairness import CFFL, CGSV
from fairflare_lab.methods.fedfv import FedFV
from fairflare_lab.methods.multi_krum import MultiKrum
from fairflare_lab.methods.shapfed import ShapFed

VARIANTS = [
    ("fedfv", {"alpha": 0.0}),
    ("fedfv", {"alpha": 0.5, "tau": 0}),
    ("fedfv", {"tau": 3}),
    ("fedfv", {"variant": "reference"}),
    ("fedfv", {"variant": "reference", "tau": 2}),
    ("cffl", {"aggregation": "sum"}),
    ("cffl", {"theta": 0.5, "clip": 0.05, "threshold": 0.9}),
    ("cffl", {"remove": True, "threshold": 0.9}),
    ("cgsv", {"variant": "reference", "beta": 5.0}),
    ("cgsv", {"alpha": 0.0}),
    ("median", {"weighting": "uniform"}),
    ("trimmed-mean", {"trim": 0.0}),
    ("trimmed-mean", {"trim": 0.4, "weighting": "uniform"}),
    ("multi-krum", {"faulty": 0, "keep": 1}),
    ("multi-krum", {"faulty": 2, "weighting": "uniform"}),
    ("shapfed", {"clip": False}),
    ("shapfed", {"direction": "sum"}),
    ("shapfed", {"direction": "sum", "clip": False}),
    ("shapfed", {"mu": 0.0, "classes": "held"}),
    ("shapfed", {"rewards": True}),
    ("shapfed", {"rewards": True, "receive": "gamma", "weighting": "examples"}),
]
TRAINABLE = frozenset({"w"})


@each("check", CHECKS, ids=lambda c: c.__name__)
@each("id, settings", VARIANTS, ids=str)
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


# ShapFed


def head_reply(k, rows, bias=(0.0, 0.0), n=10, **scalars):
    update = {"conv.weight": torch.ones(2, 2), "head.weight": torch.tensor(rows), "head.bias": torch.tensor(bias)}
    return Reply(f"site-{k}", update, n, scalars, trainable=frozenset(update))


def head_model():
    return {"conv.weight": torch.zeros(2, 2), "head.weight": torch.zeros(2, 2), "head.bias": torch.zeros(2)}


def shapfed(sites, rule=None):
    return (rule or ShapFed()).aggregate(head_model(), sites, {}, info())


def test_shapfed_by_hand():
    """Class 0: (1, 0) and (0, 1) against their sum; class 1: both alike."""
    sites = [head_reply(0, [[1.0, 0.0], [2.0, 2.0]]), head_reply(1, [[0.0, 1.0], [1.0, 1.0]])]
    outcome = shapfed(sites)
    expected = {"0": pytest.approx(0.5**0.5), "1": pytest.approx(1.0)}
    assert outcome.notes["class_similarity"] == {"site-0": expected, "site-1": expected}
    assert outcome.weights == {"site-0": pytest.approx(0.5), "site-1": pytest.approx(0.5)}


def test_shapfed_reads_the_head_alone_and_its_bias():
    sites = [head_reply(k, [[1.0, 0.0], [0.0, 0.0]], bias=[0.0, b]) for k, b in enumerate((1.0, 1.0, -0.5))]
    assert shapfed(sites).notes["class_similarity"]["site-2"] == {"0": pytest.approx(1.0), "1": pytest.approx(-1.0)}


def test_shapfed_a_row_of_zeros_scores_zero_and_no_update_at_all_is_uniform():
    sites = [head_reply(k, [[0.0, 0.0], [0.0, 0.0]]) for k in range(2)]
    outcome = shapfed(sites)
    assert set(outcome.notes["gamma"].values()) == {0.0} and set(outcome.weights.values()) == {0.5}


def test_shapfed_leaves_out_classes_that_a_site_says_it_lacks():
    """site-1 pushes class 1 the other way, of which it holds nothing."""
    sites = [
        head_reply(0, [[1.0, 0.0], [2.0, 0.0]], **{"holds_class/0": 1.0, "holds_class/1": 1.0}),
        head_reply(1, [[1.0, 0.0], [-1.0, 0.0]], **{"holds_class/0": 1.0, "holds_class/1": 0.0}),
    ]
    assert shapfed(sites, ShapFed(direction="sum")).notes["gamma"]["site-1"] == pytest.approx(0.0)
    for direction in ("bounded", "sum"):
        rule = ShapFed(classes="held", direction=direction)
        assert shapfed(sites, rule).notes["gamma"]["site-1"] == pytest.approx(1.0)


def test_shapfed_the_direction_is_that_of_most_sites():
    """The longest update points the other way: as published it is the direction, and the others are against it."""
    sites = [head_reply(k, [[x, 0.0], [x, 0.0]]) for k, x in enumerate((1.0, 1.0, 1.0, -10.0))]
    found = {direction: shapfed(sites, ShapFed(direction=direction)) for direction in ("bounded", "sum")}
    assert list(found["bounded"].weights.values()) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert list(found["bounded"].notes["gamma"].values()) == pytest.approx([1, 1, 1, -1])
    assert list(found["sum"].notes["gamma"].values()) == pytest.approx([-1, -1, -1, 1])
    assert list(found["sum"].weights.values()) == [0.25] * 4


@pytest.mark.parametrize("clip", [True, False])
def test_shapfed_where_contributions_cancel_the_factors_before_stay(clip):
    """Contributions that add up to less than nothing, and ones of which a factor would be 8."""
    sites = [head_reply(k, [[x, 0.0], [x, 0.0]]) for k, x in enumerate((1.0, 1.0, -1.0))]
    rule = ShapFed(clip=clip, mu=0.99)
    for gamma in ((0.1, 0.1, -0.6), (0.5, 0.0, -0.45)):
        known = {f"site-{k}": value for k, value in enumerate(gamma)}
        before = {"site-0": 0.5, "site-1": 0.3, "site-2": 0.2}
        cancels = not clip or sum(gamma) <= 0
        found = rule.aggregate(head_model(), sites, {"gamma": known, "factors": before}, info(2))
        assert (found.weights == pytest.approx(before)) == cancels
        assert all(0 <= weight <= 1 for weight in found.weights.values())
        first = rule.aggregate(head_model(), sites, {"gamma": known}, info(2))
        assert (list(first.weights.values()) == pytest.approx([1 / 3] * 3)) == cancels


def test_shapfed_rewards_mix_the_own_with_the_shared_model():
    """The best site has the shared model, one that contributes nothing keeps its own."""
    sites = [head_reply(0, [[1.0, 0.0], [1.0, 0.0]]), head_reply(1, [[0.0, 0.0], [0.0, 0.0]])]
    outcome = shapfed(sites, ShapFed(rewards=True))
    assert outcome.notes["received"] == {"site-0": 1.0, "site-1": 0.0}
    assert torch.equal(outcome.models["site-0"]["head.weight"], outcome.model["head.weight"])
    assert torch.equal(outcome.models["site-1"]["head.weight"], torch.zeros(2, 2))
    assert torch.equal(outcome.models["site-1"]["conv.weight"], torch.ones(2, 2))


def test_shapfed_the_shared_model_is_made_of_whole_local_models():
    """A site that started from another model brings the difference to the shared one."""
    sites = [head_reply(0, [[1.0, 0.0], [1.0, 0.0]])]
    sent = {"site-0": {key: value + 2 for key, value in head_model().items()}}
    outcome = ShapFed(rewards=True).aggregate(head_model(), sites, {}, Info(Round(2, 5), models=sent))
    assert torch.equal(outcome.model["conv.weight"], torch.full((2, 2), 3.0))


def test_the_head_is_the_last_trainable_matrix_or_the_one_that_is_named():
    trained = frozenset(head_model())
    assert head_of(head_model(), trained) == ["head.weight", "head.bias"]
    assert head_of(head_model(), trained, "conv") == ["conv.weight"]
    with pytest.raises(RunFailed, match=r"head: expected a layer with a trainable matrix \(conv, head\), got 'tail'"):
        shapfed([head_reply(0, [[1.0, 0.0], [1.0, 0.0]])], ShapFed(head="tail"))


# CGSV


def test_cgsv_by_hand():
    """Two sites agree and one points the other way: it keeps the least reputation and receives next to nothing."""
    sites = [reply(0, [2.0, 0.0]), reply(1, [5.0, 0.0]), reply(2, [-1.0, 0.0])]
    outcome = CGSV(step=1.0).aggregate(model(), sites, {}, info())
    assert torch.allclose(outcome.model["w"], torch.tensor([1 / 3, 0.0]))
    assert outcome.notes["cosine"] == pytest.approx({"site-0": 1, "site-1": 1, "site-2": -1}, abs=1e-6)
    earned = {"site-0": 0.05, "site-1": 0.05, "site-2": 0.001}
    expected = {site: r / 0.101 for site, r in earned.items()}
    assert outcome.notes["reputation"] == pytest.approx(expected, abs=1e-6)
    assert torch.equal(outcome.models["site-0"]["w"], outcome.model["w"])


def test_cgsv_entries_of_one_number_are_received():
    update = {"scale": torch.ones(1)}
    sites = [Reply(f"site-{k}", update, 10, trainable=frozenset(update)) for k in range(2)]
    for variant in ("paper", "reference"):
        found = CGSV(variant=variant).aggregate({"scale": torch.zeros(1)}, sites, {}, info())
        assert found.models["site-1"]["scale"] == pytest.approx(0.5)


def test_cgsv_running_statistics_stay_the_sites_own():
    sites = [reply(k, [1.0, 0.0]) for k in range(3)]
    outcome = CGSV().aggregate(model(), sites, {}, info())
    assert [float(own["mean"]) for own in outcome.models.values()] == [0.0, 1.0, 2.0]
    assert outcome.model["mean"] == 1.0


def test_cgsv_an_update_of_zero_earns_the_least():
    sites = [reply(0, [1.0, 0.0]), reply(1, [0.0, 0.0])]
    outcome = CGSV().aggregate(model(), sites, {}, info())
    assert outcome.notes["cosine"]["site-1"] == 0.0
    assert outcome.notes["reputation"]["site-1"] == pytest.approx(0.001 / 0.051)


def test_cgsv_who_is_away_keeps_its_reputation():
    state = {"reputation": {"site-0": 0.5, "site-1": 0.3, "site-2": 0.2}}
    found = CGSV().aggregate(model(), [reply(0, [1.0, 0.0]), reply(1, [1.0, 0.0])], state, info(2))
    assert found.state["reputation"]["site-2"] == 0.2 and list(found.weights.values()) == pytest.approx([5 / 8, 3 / 8])
    assert sum(found.state["reputation"].values()) == pytest.approx(1.0)


# CFFL


def cffl(errors, state=None, t=1, rule=None, n=None):
    sites = [reply(k, [1.0, float(k)], n=(n or [10] * 9)[k], trained_error=e) for k, e in enumerate(errors)]
    return (rule or CFFL()).aggregate(model(), sites, state or {}, info(t))


def test_cffl_the_best_and_largest_site_receives_all_of_the_others_updates():
    """Its own share is taken out of the aggregate again, since it keeps its own update."""
    outcome = cffl([0.1, 0.3], n=[30, 10])
    assert outcome.notes["received"]["site-0"] == 1.0 and outcome.notes["received"]["site-1"] < 1 / 3
    step = outcome.model["w"]
    assert torch.allclose(step, torch.tensor([1.0, 0.25]))
    own = torch.tensor([1.0, 0.0])
    assert torch.allclose(outcome.models["site-0"]["w"], own + step - 0.75 * own)


def test_cffl_who_is_removed_trains_on_alone_for_good():
    outcome = cffl([0.1, 0.1, 0.99], rule=CFFL(remove=True))
    assert outcome.weights["site-2"] == 0 and outcome.notes["received"]["site-2"] == 0
    assert torch.equal(outcome.models["site-2"]["w"], torch.tensor([1.0, 2.0]))
    later = cffl([0.9, 0.9, 0.0], outcome.state, t=2, rule=CFFL(remove=True))
    assert later.weights["site-2"] == 0 and later.state["reputation"]["site-2"] == 0


def test_cffl_by_default_nobody_is_removed_and_a_site_may_come_back():
    outcome = cffl([0.1, 0.1, 0.99])
    assert outcome.weights["site-2"] == pytest.approx(1 / 3)
    earned = outcome.state["reputation"]
    assert 0.08 < earned["site-2"] < 1 / 9
    assert outcome.notes["received"]["site-2"] == pytest.approx(earned["site-2"] / earned["site-0"])
    later = outcome
    for t in range(2, 6):
        later = cffl([0.99, 0.99, 0.1], later.state, t=t)
    assert later.state["reputation"]["site-2"] > 1 / 3


def test_cffl_scores_that_nobody_knows_are_equal():
    sites = [reply(k, [1.0, 0.0]) for k in range(3)]
    found = CFFL().aggregate(model(), sites, {}, info()).state["reputation"]
    assert list(found.values()) == pytest.approx([1 / 3] * 3)


def test_cffl_with_only_removed_sites_there_the_shared_model_stays():
    state = {"reputation": {"site-0": 1.0, "site-1": 0.0}}
    found = CFFL().aggregate(model(), [reply(1, [1.0, 0.0], trained_error=0.0)], state, info(2))
    assert torch.equal(found.model["w"], torch.zeros(2)) and torch.equal(
        found.models["site-1"]["w"], torch.tensor([1.0, 0.0])
    )
    assert found.state["reputation"] == state["reputation"]


# Median, trimmed mean, multi-Krum

ROBUST = (Median(), TrimmedMean(trim=0.3), MultiKrum())


@pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: type(rule).__name__)
def test_one_wild_site_moves_nothing_far(rule):
    honest = [reply(k, [1.0 + 0.1 * k, 0.0]) for k in range(4)]
    outcome = rule.aggregate(model(), [*honest, reply(4, [1e6, -1e6])], {}, info())
    assert 1.0 <= outcome.model["w"][0] <= 1.4 and -0.1 <= outcome.model["w"][1] <= 0.1
    assert outcome.notes["removed"]["site-4"] > 0.19


@pytest.mark.parametrize("rule", ROBUST, ids=lambda rule: type(rule).__name__)
def test_removed_weight_is_a_part_of_the_sites_weight(rule):
    sites = [reply(k, [0.1 * k, -0.2 * k], n=10 * (k + 1)) for k in range(5)]
    removed = rule.aggregate(model(), sites, {}, info()).notes["removed"]
    assert all(0 <= removed[r.site] <= r.n_examples / 150 + 1e-12 for r in sites) and any(removed.values())


def test_a_site_with_more_than_half_of_the_weight_is_the_median():
    sites = [reply(0, [5.0, 5.0], n=60), reply(1, [0.0, 0.0]), reply(2, [0.0, 0.0])]
    assert torch.equal(Median().aggregate(model(), sites, {}, info()).model["w"], torch.tensor([5.0, 5.0]))
    found = Median("uniform").aggregate(model(), sites, {}, info()).model["w"]
    assert torch.equal(found, torch.zeros(2))


def test_krum_takes_as_many_faulty_sites_as_fit():
    sites = [reply(k, [0.0, 0.1 * k]) for k in range(3)] + [reply(3, [9.0, 9.0])]
    few = MultiKrum(faulty=1).aggregate(model(), sites, {}, info())
    assert not any(few.notes["removed"].values())
    enough = MultiKrum(faulty=1).aggregate(model(), [*sites, reply(4, [0.0, 0.3])], {}, info())
    assert [site for site, p in enough.notes["removed"].items() if p] == ["site-3"]


@each(
    "rule, sites, told",
    [
        (MultiKrum(), 4, "multi-krum protects from nobody with 4 sites: faulty=1 takes 5"),
        (MultiKrum(), 5, ""),
        (MultiKrum(faulty=3), 7, "multi-krum protects from 2 with 7 sites: faulty=3 takes 9"),
        (MultiKrum(faulty=0, keep=2), 4, ""),
        (MultiKrum(keep=6), 6, "multi-krum protects from nobody with 6 sites: keep=6 keeps all"),
        (TrimmedMean(), 3, ""),
        (
            TrimmedMean(trim=0.1),
            3,
            "trim=0.1 leaves 70% of a wild site in the model where 3 weigh alike: set trim to 0.33 or above, or use "
            "the median",
        ),
        (TrimmedMean(trim=0.1), 10, ""),
        (MultiKrum(), 8, ""),
        (TrimmedMean(trim=1 / 3), 3, ""),
        (
            TrimmedMean(trim=0.4),
            2,
            "trim=0.4 leaves 20% of a wild site in the model where 2 weigh alike: it takes 3 sites",
        ),
        (Median(), 2, "the median of 2 sites protects from nobody: it takes 3"),
        (Median(), 3, ""),
        (CFFL(), 1, ""),
    ],
    ids=str,
)
def test_whoever_starts_a_run_is_told_whom_a_robust_rule_does_not_protect_from(rule, sites, told):
    assert rule.unprotected(sites) == Bounded(rule, Bounds(clip=1.0)).unprotected(sites) == told


@pytest.mark.parametrize(
    "rule, most", [(MultiKrum(), 5), (TrimmedMean(trim=0.2), 5), (TrimmedMean(trim=1 / 3), 3), (Median(), 3)]
)
def test_where_nothing_is_told_one_wild_site_has_no_part_and_below_it_has(rule, most):
    for count in (most, most - 1):
        sites = [reply(k, [0.0, 0.1 * k]) for k in range(count - 1)] + [reply(9, [1e6, 1e6])]
        weight = rule.aggregate(model(), sites, {}, info()).weights["site-9"]
        assert bool(rule.unprotected(count)) == (weight > 1e-9) == (count < most)


def test_running_statistics_are_averaged_over_who_is_kept_or_with_all_weights():
    sites = [reply(k, [0.0, 0.0]) for k in range(4)] + [reply(9, [9.0, 9.0])]
    assert Median().aggregate(model(), sites, {}, info()).model["mean"] == pytest.approx(3.0)
    assert MultiKrum().aggregate(model(), sites, {}, info()).model["mean"] == pytest.approx(1.5)
