# SPDX-License-Identifier: Apache-2.0
"""Degenerate cases of FedCE, FedHEAL, Fed-LWR and FedUFO, as their papers or plain arithmetic state them."""

import math

import numpy as np
import pytest
import torch

from cases import each
from fairflare.aggregators.base import add_weighted, example_shares
from fairflare.aggregators.fedce import FedCE
from fairflare.aggregators.fedheal import FedHEAL
from fairflare.aggregators.fedlwr import FedLWR
from fairflare.aggregators.fedufo import FedUFO
from fairflare.core.types import Info, Reply, Round
from fairflare.functional.blocks import SOME, gram
from fairflare.functional.consistency import least_count
from fairflare.functional.novelty import novelty
from fairflare.functional.simplex import ascended, in_ball

TRAINABLE = frozenset({"w"})
ROUND = Info(Round(1, 5))


def reply(k, vector, n=10, **scalars):
    return Reply(f"site-{k}", {"w": torch.tensor(vector), "mean": torch.ones(1) * k}, n, scalars, trainable=TRAINABLE)


def model():
    return {"w": torch.zeros(2), "mean": torch.zeros(1), "steps": torch.tensor(3)}


# FedCE


def test_a_zero_update_has_no_novelty():
    found = novelty([reply(0, [0.0, 0.0]), reply(1, [1.0, 0.0])], {"site-0": 1.0, "site-1": 1.0})
    assert found["site-0"] == 0.0 and found["site-1"] == pytest.approx(1.0)


def test_novelty_by_hand():
    """(1, 0) against (0, 1): 1 - 0; two alike and one opposite: 1 - cos = 2 for the opposite one."""
    pair = novelty([reply(0, [1.0, 0.0]), reply(1, [0.0, 2.0])], {"site-0": 0.5, "site-1": 0.5})
    assert pair == {"site-0": 1.0, "site-1": 1.0}
    three = novelty(
        [reply(0, [1.0, 0.0]), reply(1, [3.0, 0.0]), reply(2, [-0.5, 0.0])],
        dict.fromkeys(("site-0", "site-1", "site-2"), 1.0),
    )
    assert three == pytest.approx({"site-0": 0.0, "site-1": 0.0, "site-2": 2.0})


def test_novelty_leaves_buffers_out_and_does_not_depend_on_scale():
    sites = [reply(k, [math.cos(k), math.sin(k)]) for k in range(4)]
    prior = {r.site: 0.1 * (k + 1) for k, r in enumerate(sites)}
    scaled = [reply(k, [1e3 * math.cos(k), 1e3 * math.sin(k)]) for k in range(4)]
    assert novelty(sites, prior) == pytest.approx(novelty(scaled, {k: 7 * v for k, v in prior.items()}), abs=1e-5)
    assert gram(sites)[0, 0] == pytest.approx(1.0)


@each(
    "sites, wild, entries",
    [
        (3, 1, 200),
        (SOME + 1, 1, 200),
        (3 * SOME, 1, 200),
        (SOME + 1, 1e4, 200),
        (SOME + 1, 0, 200),
        (SOME + 1, 1, 9000),
    ],
)
def test_novelty_of_many_sites_from_their_sum_is_that_of_pairs(sites, wild, entries):
    """To 1e-10, also where one update hides the sum of the others, and where they are read in several blocks."""
    draws = np.random.default_rng(sites).normal(size=(sites, entries)) + 0.3
    draws[-1] *= wild
    p = (1.0 + np.arange(sites) % 7) / sites
    found = novelty([reply(k, row) for k, row in enumerate(draws)], {f"site-{k}": p[k] for k in range(sites)})
    for k, row in enumerate(draws):
        others = np.delete(p, k) @ np.delete(draws, k, axis=0)
        length = np.linalg.norm(row) * np.linalg.norm(others)
        expected = 1 - row @ others / length if length else 0.0
        assert found[f"site-{k}"] == pytest.approx(expected, abs=1e-10)


def test_all_scores_equal_or_zero_are_uniform():
    same = [reply(k, [1.0, 1.0], minus_error=e) for k, e in enumerate((0.3, 0.3, 0.3))]
    assert list(FedCE().weigh(same, {}, ROUND)[0].values()) == pytest.approx([1 / 3] * 3)
    perfect = [reply(k, [1.0, 1.0], minus_error=0.0) for k in range(3)]
    assert list(FedCE(combine="multi").weigh(perfect, {}, ROUND)[0].values()) == pytest.approx([1 / 3] * 3)


def test_error_terms_alone_are_the_errors_shares():
    sites = [reply(k, [1.0, float(k)], minus_error=e) for k, e in enumerate((0.1, 0.3))]
    assert list(FedCE(terms="error").weigh(sites, {}, ROUND)[0].values()) == pytest.approx([0.25, 0.75])


def test_a_site_is_told_its_own_weight_only_while_it_is_in_the_model():
    rule, sites = FedCE(), [reply(k, [1.0, float(k)]) for k in range(3)]
    assert rule.orders({}, "site-0", ROUND) == {}
    weights, state = rule.weigh(sites, {}, ROUND)
    assert rule.orders(state, "site-1", ROUND) == {"coefficient": weights["site-1"]}
    _, state = rule.weigh(sites[:2], state, ROUND)
    assert rule.orders(state, "site-2", ROUND) == {}
    _, alone = rule.weigh(sites[:1], state, ROUND)
    assert rule.orders(alone, "site-0", ROUND) == {}


def test_a_late_joiner_starts_level_with_the_others():
    """Error shares .25 and .75, then thirds: the newcomer's sum starts at their mean of .5."""
    rule = FedCE(terms="error")
    _, state = rule.weigh([reply(k, [1.0, float(k)], minus_error=e) for k, e in enumerate((0.1, 0.3))], {}, ROUND)
    weights, _ = rule.weigh([reply(k, [1.0, float(k)], minus_error=0.2) for k in range(3)], state, ROUND)
    assert list(weights.values()) == pytest.approx([(s + 1 / 3) / 2.5 for s in (0.25, 0.75, 0.5)])


def test_an_absent_site_keeps_its_sum():
    rule = FedCE(terms="error")
    sites = [reply(k, [1.0, float(k)], minus_error=e) for k, e in enumerate((0.1, 0.3))]
    _, state = rule.weigh(sites, {}, ROUND)
    _, state = rule.weigh(sites[:1], state, ROUND)
    weights, _ = rule.weigh(sites, state, ROUND)
    assert weights == pytest.approx({"site-0": 0.25, "site-1": 0.75})


@pytest.mark.parametrize("variant", ["flare", "reference", "ffl4mia"])
def test_an_absence_is_no_error(variant):
    """Without a leave-one-out score a round leaves the running mean of the scores alone."""
    rule, state = FedCE(variant=variant, terms="error"), {}
    for t, errors in enumerate(((None, None), (0.4, 0.4), (None, 0.4), (0.4, 0.4))):
        scored = [{} if e is None else {"minus_error": e} for e in errors]
        weights, state = rule.weigh([reply(k, [1.0, k + t], **s) for k, s in enumerate(scored)], state, ROUND)
        if t in (1, 2):
            assert weights["site-0"] == pytest.approx(0.5, abs=0.05)
    # Means of (0, .6, .6) and (0, .6, .6, .6).
    shares = [1 - 1.2 / 3, 1 - 1.8 / 4]
    last = {"flare": shares[0] / sum(shares), "reference": shares[0] / sum(shares)}.get(variant)
    assert last is None or weights["site-0"] == pytest.approx(last)


# FedHEAL


def test_no_threshold_and_no_distance_is_fedavg():
    sites = [reply(k, [math.sin(5 * k + 1), math.cos(3 * k)], n=10 * (k + 1)) for k in range(3)]
    state = {}
    for t in range(1, 4):
        outcome = FedHEAL(tau=0.0, beta=0.0).aggregate(model(), sites, state, Info(Round(t, 5)))
        state = outcome.state
        assert outcome.weights == pytest.approx(example_shares(sites))
        expected = add_weighted(model(), sites, example_shares(sites))
        assert all(torch.allclose(outcome.model[k], expected[k]) for k in expected)


def test_a_threshold_above_one_keeps_no_parameter_and_all_buffers():
    sites = [reply(k, [1.0, -1.0]) for k in range(3)]
    outcome = FedHEAL(tau=1.5).aggregate(model(), sites, {}, ROUND)
    assert torch.equal(outcome.model["w"], torch.zeros(2)) and float(outcome.model["mean"]) == pytest.approx(1.0)
    assert set(outcome.notes["kept_share"].values()) == {0.0}


def test_a_pull_that_turns_around_is_dropped_and_the_steady_ones_are_not():
    """Two rounds up, then down: consistency 1/3 < .5, so that the other site alone moves the parameter."""
    rule, state = FedHEAL(parts="fphl", tau=0.5), {}
    for t in (1, 2):
        state = rule.aggregate(model(), [reply(0, [1.0, 1.0]), reply(1, [2.0, 1.0])], state, Info(Round(t, 5))).state
    outcome = rule.aggregate(model(), [reply(0, [-1.0, 1.0]), reply(1, [2.0, 1.0])], state, Info(Round(3, 5)))
    assert outcome.model["w"].tolist() == [2.0, 1.0]
    assert outcome.notes["kept_share"] == {"site-0": 0.5, "site-1": 1.0}


def test_negative_zero_is_no_decrease():
    rule, state = FedHEAL(parts="fphl", tau=0.6), {}
    for t, value in ((1, 1.0), (2, -0.0), (3, 1.0)):
        outcome = rule.aggregate(model(), [reply(0, [value, value]), reply(1, [1.0, 1.0])], state, Info(Round(t, 5)))
        state = outcome.state
    assert outcome.notes["kept_share"]["site-0"] == 1.0


def test_distances_by_hand():
    """d = 1 and 3 from n = 10 each, beta = .5: p = .5 + .5 (.25, .75) over 1.5."""
    weights, _ = FedHEAL(parts="fael", beta=0.5).weigh([reply(0, [1.0, 0.0]), reply(1, [1.0, math.sqrt(2)])], {}, ROUND)
    assert weights == pytest.approx({"site-0": 0.625 / 1.5, "site-1": 0.875 / 1.5})


def test_a_site_that_is_away_keeps_its_weight_and_the_others_stand_among_themselves():
    """p = 1/3 each, dp = 1/6; then d = 1 and 3 without the third: (.5 + .25/3 + .125, .5 + .25/3 + .375) normalised."""
    rule = FedHEAL(parts="fael", beta=0.5)
    sites = [reply(k, [1.0, 0.0]) for k in range(3)]
    _, state = rule.weigh(sites, {}, ROUND)
    weights, state = rule.weigh([sites[0], reply(1, [1.0, math.sqrt(2)])], state, ROUND)
    raw = [0.5 + 0.5 / 6 + 0.5 * 0.25, 0.5 + 0.5 / 6 + 0.5 * 0.75]
    assert list(weights.values()) == pytest.approx([r / sum(raw) for r in raw])
    assert state["p"]["site-2"] == pytest.approx(1 / 3) and sum(state["p"].values()) == pytest.approx(1)


@pytest.mark.parametrize("here", [[[0, 1], [0, 1, 2]], [[0], [0, 1, 2]], [[0, 1, 2], [1], [0, 1, 2]]], ids=str)
def test_beta_zero_is_fedavg_whoever_comes_and_goes(here):
    sites = [reply(k, [math.sin(k + 1), 1.0], n=10 * (k + 1)) for k in range(3)]
    state = {}
    for present in here:
        found = [sites[k] for k in present]
        weights, state = FedHEAL(parts="fael", beta=0.0).weigh(found, state, ROUND)
        assert weights == pytest.approx(example_shares(found))


@pytest.mark.parametrize("parts", ["both", "fael"])
def test_an_update_too_large_for_float32_squares_stays_finite(parts):
    outcome = FedHEAL(parts=parts).aggregate(model(), [reply(0, [1e20, 1.0]), reply(1, [1.0, 1.0])], {}, ROUND)
    assert all(math.isfinite(w) for w in outcome.weights.values()) and torch.isfinite(outcome.model["w"]).all()
    assert novelty([reply(0, [1e20, 1.0]), reply(1, [1e20, 1.0])], {"site-0": 1.0, "site-1": 1.0})["site-0"] == 0.0


def test_a_site_that_joins_late_starts_with_its_own_history():
    rule, state = FedHEAL(parts="fphl", tau=0.9), {}
    for t in (1, 2):
        state = rule.aggregate(model(), [reply(0, [1.0, 1.0])], state, Info(Round(t, 5))).state
    outcome = rule.aggregate(model(), [reply(0, [1.0, -1.0]), reply(1, [-1.0, -1.0])], state, Info(Round(3, 5)))
    assert outcome.notes["kept_share"] == {"site-0": 0.5, "site-1": 1.0}
    assert outcome.state["rounds"] == {"site-0": 3, "site-1": 1}


@each("tau", [0.0, 0.1, 0.3, 0.5, 0.7, 1.0, 1.3])
def test_least_counts_are_what_division_says(tau):
    for seen in range(1, 60):
        for strict in (False, True):
            least = least_count(seen, tau, strict=strict)
            kept = [c for c in range(3 * seen) if (c / seen > tau if strict else c / seen >= tau)]
            assert least == kept[0]


def test_weighing_does_not_advance_the_counters():
    """Two looks at a round's weights change nothing in what ``aggregate`` then makes of the round."""
    rule = FedHEAL(tau=0.6)
    runs = []
    for looks in (0, 2):
        state = {}
        for t in range(1, 5):
            sites = [reply(0, [(-1.0) ** t, 1.0]), reply(1, [2.0, -1.0 * t])]
            for _ in range(looks):
                rule.weigh(sites, state, Info(Round(t, 5)))
            outcome = rule.aggregate(model(), sites, state, Info(Round(t, 5)))
            state = outcome.state
        runs.append(outcome)
    assert runs[0].weights == runs[1].weights and torch.equal(runs[0].model["w"], runs[1].model["w"])
    assert torch.equal(state["history"]["site-0"], torch.tensor([2, 4], dtype=torch.uint8))


@each("seen", [1, 100, 253, 254, 255, 256, 1000])
def test_counters_of_one_byte_and_of_two_keep_the_same(seen):
    """Checkpoints of earlier versions hold two bytes, entry by entry, and from 256 rounds on one is too few."""
    counts = torch.tensor([0, seen, seen // 3, seen // 2])
    outcomes = []
    for dtype in (torch.uint8, torch.int16) if seen < 256 else (torch.int16,):
        own = [counts.roll(k).to(dtype) for k in range(2)]
        held = {f"site-{k}": {"w": one} if dtype == torch.int16 and seen < 256 else one for k, one in enumerate(own)}
        state = {"history": held, "sizes": {"w": 4}, "rounds": dict.fromkeys(held, seen)}
        sites = [reply(0, [1.0, -1.0, 1.0, -1.0]), reply(1, [2.0, 2.0, -2.0, -2.0])]
        outcomes.append(FedHEAL(tau=0.4).aggregate({"w": torch.zeros(4)}, sites, state, ROUND))
    assert outcomes[0].weights == outcomes[-1].weights
    assert torch.equal(outcomes[0].model["w"], outcomes[-1].model["w"])
    after = [outcome.state["history"]["site-0"] for outcome in outcomes]
    assert all(one.dtype == (torch.uint8 if seen < 255 else torch.int16) for one in after)
    assert after[0].tolist() == after[-1].tolist() == [1, seen, seen // 3 + 1, seen // 2]


# FedUFO


def ufo(k, loss, n=10, **groups):
    scalars = {"loss": loss}
    for name, (value, count) in groups.items():
        scalars |= {f"group_loss/{name}": value, f"group_count/{name}": count}
    return Reply(f"site-{k}", {"w": torch.ones(2) * k}, n, scalars, trainable=TRAINABLE)


SITES = [ufo(0, 0.2, a=(0.1, 30.0), b=(0.5, 10.0)), ufo(1, 0.9, a=(0.8, 5.0), b=(1.0, 35.0))]


@each("level", ["client", "attribute", "multi", "unknown"])
@each("still", [{"gamma": 0.0}, {"radius": 0.0}], ids=str)
def test_a_still_adversary_is_the_plain_mean(level, still):
    rule, state = FedUFO(level=level, **still), {}
    for t in range(1, 4):
        weights, state = rule.weigh(SITES, state, Info(Round(t, 5)))
        assert list(weights.values()) == pytest.approx([0.5, 0.5])
        orders = rule.orders(state, "site-0", ROUND)
        assert orders.pop("relative") == 1.0
        spread = {orders["weight"] + v for k, v in orders.items() if k != "weight"} or {orders["weight"]}
        assert [*spread] == pytest.approx([1.0])


def test_the_adversary_follows_the_losses():
    rule, state = FedUFO(level="multi", radius=None), {}
    for t in range(1, 6):
        weights, state = rule.weigh(SITES, state, Info(Round(t, 5)))
    assert state["clients"]["site-1"] > 0.6 and state["groups"]["b"] > 0.6 and weights["site-1"] > weights["site-0"]
    orders = rule.orders(state, "site-0", ROUND)
    assert orders["weight/b"] > orders["weight/a"] and set(orders) == {"weight", "weight/a", "weight/b", "relative"}


def test_the_server_weighs_a_site_by_its_own_mix_of_groups():
    """lambda = (.8, .2): 30 + 10 examples mean 2 (.75 .8 + .25 .2), 5 + 35 mean 2 (.125 .8 + .875 .2)."""
    rule = FedUFO(level="attribute", gamma=0.0, radius=None)
    weights, _ = rule.weigh(SITES, {"groups": {"a": 0.8, "b": 0.2}}, ROUND)
    assert weights == pytest.approx({"site-0": 1.3 / 1.85, "site-1": 0.55 / 1.85})


def test_the_radius_is_shared_out_by_beta():
    rule, state = FedUFO(level="multi", gamma=50.0, radius=0.1, beta=0.2), {}
    _, state = rule.weigh(SITES, state, ROUND)
    for part, share in (("clients", 0.2), ("groups", 0.8)):
        assert (2 * sum(w * w for w in state[part].values()) - 1) / 2 == pytest.approx(share * 0.1)
    _, state = FedUFO(level="multi", gamma=50.0, radius=0.1, beta=0.2, share_radius=True).weigh(SITES, {}, ROUND)
    for part in ("clients", "groups"):
        assert (2 * sum(w * w for w in state[part].values()) - 1) / 2 == pytest.approx(0.1)


def test_lambda_stays_in_its_ball_while_a_site_is_away():
    rule, state = FedUFO(level="client", radius=0.3, gamma=5.0), {}
    sites = [ufo(k, loss) for k, loss in enumerate((2.0, 0.1, 0.2, 0.3))]
    for present in (sites, sites[1:], sites[1:], sites):
        _, state = rule.weigh(present, state, ROUND)
        assert (4 * sum(w * w for w in state["clients"].values()) - 1) / 2 <= 0.3 + 1e-9
        assert sum(state["clients"].values()) == pytest.approx(1)


def test_no_site_is_told_of_another():
    rule, state = FedUFO(level="unknown"), {}
    _, state = rule.weigh(SITES, state, ROUND)
    orders = rule.orders(state, "site-0", ROUND)
    assert all("site" not in key for key in orders) and len(orders) == 4


def test_huge_losses_do_not_overflow_and_a_weight_can_recover():
    rule, state = FedUFO(level="client", gamma=1e3, radius=None), {}
    _, state = rule.weigh([ufo(0, 1e6), ufo(1, 0.0)], state, ROUND)
    assert state["clients"]["site-0"] == pytest.approx(1.0)
    for _ in range(3):
        _, state = rule.weigh([ufo(0, 0.0), ufo(1, 1.0)], state, ROUND)
    assert state["clients"]["site-1"] > 0.9


def test_a_group_that_nobody_tells_of_keeps_its_weight():
    rule = FedUFO(level="attribute", radius=None)
    _, state = rule.weigh(SITES, {}, ROUND)
    before = state["groups"]["b"]
    _, state = rule.weigh([ufo(0, 0.2, a=(0.1, 30.0)), ufo(1, 0.9)], state, ROUND)
    assert state["groups"]["b"] == before and sum(state["groups"].values()) == pytest.approx(1)


def test_nothing_told_of_any_group_is_the_plain_mean():
    weights, state = FedUFO(level="attribute").weigh([ufo(0, 0.2), ufo(1, 0.9)], {}, ROUND)
    assert list(weights.values()) == [0.5, 0.5] and "groups" not in state


@each("ball", ["chi-square", "kl"])
@each("radius", [0.0, 1e-4, 0.05, 0.5, 5.0])
def test_balls_hold_what_they_promise(ball, radius):
    weights = ascended(dict.fromkeys(range(5), 0.2), {k: float(k * k) for k in range(5)}, 0.3)
    found = in_ball(weights, radius, ball)
    assert sum(found.values()) == pytest.approx(1) and min(found.values()) >= 0
    divergences = {
        "chi-square": (5 * sum(w * w for w in found.values()) - 1) / 2,
        "kl": sum(w * math.log(5 * w) for w in found.values() if w),
    }
    assert divergences[ball] <= radius + 1e-9
    assert list(found) == list(weights) and sorted(found, key=found.get) == sorted(found) or radius == 0


@each(
    "rule, bad",
    [
        (FedHEAL, {"tau": -1}),
        (FedHEAL, {"beta": 1.1}),
        (FedUFO, {"gamma": -1}),
        (FedUFO, {"radius": -0.1}),
        (FedUFO, {"beta": 2}),
        (FedUFO, {"steps": 0}),
    ],
)
def test_bad_parameters_are_named(rule, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        rule(**bad)


# Fed-LWR


def test_one_similarity_for_the_whole_model():
    sites = [reply(0, [1.0, 0.0]), reply(1, [0.0, 3.0])]
    scored = [Reply(r.site, r.update, 10, {"similarity/last_encoder": d}) for r, d in zip(sites, (0.2, 0.6))]
    outcome = FedLWR(scope="last_encoder").aggregate(model(), scored, {}, ROUND)
    assert outcome.weights == pytest.approx({"site-0": 2 / 3, "site-1": 1 / 3})
    assert outcome.model["w"].tolist() == pytest.approx([2 / 3, 1.0])
