# SPDX-License-Identifier: Apache-2.0
"""Clipped updates and capped weights around rules: what is bounded, what stays, and what is refused."""

import copy
import dataclasses
import itertools
import math
from functools import partial

import pytest
import torch

from cases import each
from fairflare.aggregators.base import MIXES, SPREAD, Rule, add_weighted, liars_among, limited
from fairflare.aggregators.bounded import Bounded, Bounds, bounded, lengths_of, widened
from fairflare.aggregators.fedavg import FedAvg
from fairflare.aggregators.fedce import FedCE
from fairflare.aggregators.fedheal import FedHEAL
from fairflare.aggregators.fedism import FedISM
from fairflare.aggregators.fedlwr import FedLWR
from fairflare.aggregators.robust import Median
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.audit import verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.config_checks import USUAL
from fairflare.engine.setup.method_defaults import default_parts
from fairflare.functional.robust import LEAST, expected_norms, kept_lengths
from fairflare.testing import laws
from fairflare_lab.methods.qfedavg import QFedAvg
from helpers import initial_model, make_federation

INFO = Info(Round(1, 5))


def reply(k, vector, n=10):
    update = {"w": torch.tensor(vector), "mean": torch.ones(1) * k}
    return Reply(f"site-{k}", update, n, trainable=frozenset({"w"}))


def model():
    return {"w": torch.zeros(2), "mean": torch.zeros(1), "steps": torch.tensor(3)}


def run(bounds, sites, rule=None, state=None):
    return Bounded(rule or FedAvg(), bounds).aggregate(model(), sites, state or {}, INFO)


def test_nothing_to_bound_leaves_the_rule_itself():
    rule = FedAvg()
    assert bounded(rule, Bounds()) is rule
    made = bounded(rule, Bounds(cap=0.5))
    assert isinstance(made, Bounded) and made.rule is rule


def test_every_answer_of_the_rule_comes_from_the_rule():
    """A new method or property of rules that the wrapper does not pass on would be lost without a word."""
    public = {name for name in vars(Rule) if not name.startswith("_")}
    assert public <= set(vars(Bounded)), public - set(vars(Bounded))


def test_fedce_takes_no_site_out_of_a_model_that_holds_another_update_of_it():
    """(w - p_i w_i) / (1 - p_i) is the others' model only where w holds p_i w_i."""
    rule, sites = (
        Bounded(FedCE(), Bounds(clip=1.0)),
        [reply(k, [1.0, k / 9]) for k in range(3)] + [reply(3, [9.0, 9.0])],
    )
    outcome = rule.aggregate(model(), sites, {}, INFO)
    orders = {r.site: rule.orders(outcome.state, r.site, INFO) for r in sites}
    shortened = {site for site, kept in outcome.notes["clip_factor"].items() if kept < 1}
    assert "site-3" in shortened < set(orders)
    assert {site for site, order in orders.items() if not order} == shortened
    with pytest.raises(UserError, match="expected none, for fedce takes sites out of plain averages"):
        make_config("fedce", "heart:full", values={"server_optimizer": "momentum"})
    make_config("fedce", "heart:full", values={"server_optimizer": "momentum", "terms": "cosine"})


def test_clipping_keeps_directions_and_running_statistics():
    sites = [reply(0, [1.0, 0.0]), reply(1, [0.0, 1.0]), reply(2, [0.0, 100.0])]
    outcome = run(Bounds(clip=1.0), sites)
    assert outcome.notes["clip_factor"] == pytest.approx({"site-0": 1.0, "site-1": 1.0, "site-2": 0.01})
    assert torch.allclose(outcome.model["w"], torch.tensor([1 / 3, 2 / 3])) and outcome.model["mean"] == 1.0
    assert sites[2].update["w"][1] == 100.0


def test_updates_of_zero_do_not_lower_the_radius():
    sites = [reply(0, [0.0, 0.0]), reply(1, [0.0, 0.0]), reply(2, [3.0, 4.0])]
    assert set(run(Bounds(clip=1.0), sites).notes["clip_factor"].values()) == {1.0}
    nothing = [reply(k, [0.0, 0.0]) for k in range(3)]
    for at in ("median", "bits"):
        outcome = run(Bounds(clip=1.0, at=at), nothing)
        assert torch.equal(outcome.model["w"], torch.zeros(2)) and outcome.state["clip"] == {}


def test_a_capped_site_moves_the_model_by_the_cap_alone():
    sites = [reply(0, [1.0, 0.0], n=80), reply(1, [0.0, 1.0]), reply(2, [0.0, 1.0])]
    outcome = run(Bounds(cap=0.4), sites)
    assert outcome.weights == pytest.approx({"site-0": 0.4, "site-1": 0.3, "site-2": 0.3})
    assert torch.allclose(outcome.model["w"], torch.tensor([0.4, 0.6])) and outcome.model["mean"] == pytest.approx(0.9)
    assert outcome.notes["capped"] == pytest.approx({"site-0": 0.4, "site-1": 0.0, "site-2": 0.0})


@pytest.mark.parametrize("count", [1, 2])
def test_a_cap_below_equal_weights_gives_equal_weights(count):
    sites = [reply(k, [1.0, 0.0], n=10 * k + 1) for k in range(count)]
    assert set(run(Bounds(cap=0.1), sites).weights.values()) == {1 / count}


def test_a_cap_that_binds_nobody_changes_no_bit():
    sites = [reply(k, [0.1 * k, 0.3], n=10 + k) for k in range(4)]
    plain = FedAvg().aggregate(model(), sites, {}, INFO)
    found = run(Bounds(cap=0.5), sites)
    assert found.weights == plain.weights and all(torch.equal(found.model[k], plain.model[k]) for k in plain.model)


def test_a_capped_site_is_no_longer_the_median():
    sites = [reply(0, [5.0, 5.0], n=60), reply(1, [0.0, 0.0]), reply(2, [0.0, 0.0])]
    assert torch.equal(run(Bounds(cap=0.4), sites, Median()).model["w"], torch.zeros(2))


def test_a_rule_keeps_its_own_state_and_its_anchor_is_of_clipped_updates():
    sites = [reply(0, [1.0, 0.0]), reply(1, [0.0, 1.0]), reply(2, [0.0, 100.0])]
    rule = Bounded(FedHEAL(), Bounds(clip=1.0))
    first = rule.aggregate(model(), sites, {}, INFO)
    again = rule.aggregate(model(), sites, copy.deepcopy(first.state), INFO)
    assert rule.donates and set(again.state) == {"rule", "clip"} and again.state["rule"]
    lwr = Bounded(FedLWR(), Bounds(clip=1.0))
    ((label, shown),) = lwr.anchors(model(), sites, {}, INFO)
    assert label == "" and torch.allclose(shown["w"], torch.tensor([1 / 3, 2 / 3]))
    assert not list(Bounded(FedAvg(), Bounds(clip=1.0)).anchors(model(), sites, {}, INFO))


@pytest.mark.parametrize("bounds", [Bounds(clip=1.0, memory=0.8, cap=0.35, mix="krum-neighbours"), USUAL])
def test_a_run_with_bounds_ends_in_the_same_bits_when_it_is_continued(tmp_path, bounds):
    rule = Bounded(FedAvg(), bounds)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = make_federation(tmp_path / "whole", rule=rule).run(initial_model())
    federation = make_federation(tmp_path / "parts", rule=rule)
    save, rounds = federation._round, []

    def stop(standing, round):
        if round.number == 2:
            raise KeyboardInterrupt
        rounds.append(round.number)
        return save(standing, round)

    federation._round = stop
    with pytest.raises(KeyboardInterrupt):
        federation.run(initial_model())
    assert rounds == [1]
    assert model_hash(make_federation(tmp_path / "parts", rule=rule).run(initial_model())) == model_hash(whole)
    entry = next(e for e in verify(tmp_path / "whole" / "audit.jsonl") if e["event"] == "round")
    if bounds != USUAL:
        assert set(entry["notes"]) >= {"clip_factor", "capped", "mixed_in"} and max(entry["weights"].values()) <= 0.5


# Settings


def test_defaults_are_not_written_and_others_are_read_back():
    plain = make_config("fedavg", "support2", values={"robust": "off"})
    asked = {"robust": "off", "clip_updates": "1.5", "cap_weights": "0.3"}
    assert not {"clip_updates", "clip_at", "clip_memory", "cap_weights", "robust"} & set(plain.to_json())
    config = make_config("fedavg", "support2", values=asked)
    assert config.bounds == Bounds(clip=1.5, cap=0.3)
    assert RunConfig.from_json(config.to_json()) == config and config.sha256() != plain.sha256()


@each(
    "method, values, said",
    [
        ("fedavg", {"clip_at": "bits"}, "clip_at and clip_memory have no effect without a number"),
        ("fedavg", {"clip_updates": 1, "clip_at": "bits", "clip_memory": 0.5}, "clip_memory has no effect with"),
        ("fedavg", {"clip_updates": 1, "clip_at": "mean"}, "clip_at: expected one of median, weighted, bits"),
        ("fedavg", {"cap_weights": 0}, r"cap_weights must be in \(0, 1\]"),
        ("fedavg", {"clip_updates": -1}, "clip_updates: expected a number"),
        ("fedfv", {"cap_weights": 0.3}, "cap_weights: rule FedFV does more with its weights than to add updates"),
        ("fedism", {"secure_sum": "masks", "clip_updates": 1}, "clip_updates: compares single updates"),
        ("fedavg", {"liars": 0.3}, "liars has no effect without mix_updates"),
        ("cgsv", {"mix_updates": "neighbours"}, "mix_updates: cgsv gives sites models of their own"),
        ("fedfv", {"cap_weights": "auto"}, "cap_weights: rule FedFV does more"),
        ("fedavg", {"cap_weights": "some"}, "cap_weights: expected a number or one of auto, spread"),
        ("fedism", {"secure_sum": "masks", "mix_updates": "krum"}, "mix_updates: compares single updates"),
        ("fedism", {"secure_sum": "masks", "cap_weights": 0.3}, "cap_weights: needs single weights"),
        ("median", {"secure_sum": "masks"}, "secure_sum: median weighs by more than sums over the sites"),
    ],
)
def test_what_cannot_be_bounded_is_refused_in_one_line(method, values, said):
    with pytest.raises(UserError, match=said):
        make_config(method, "support2:dirichlet", values={"n_sites": 4, "min_sites": 3, **values})


def test_bounds_reach_the_run():
    from fairflare.engine.setup.parts import build_parts

    config = make_config("fedavg", "support2", values={"cap_weights": 0.3, "robust": "off"})
    assert build_parts(config).rule == Bounded(FedAvg(), Bounds(cap=0.3))
    off = make_config("fedavg", "support2", values={"robust": "off"})
    assert dataclasses.asdict(build_parts(off).rule) == {"weighting": "examples"}


# Mixed updates, and caps under rules that treat positions or layers apart


def eight(n=10):
    """Six sites that agree, and two that send twenty times the opposite."""
    return [reply(k, [1.0 + 0.01 * k, 0.5] if k < 6 else [-20.0 - k, -10.0], n=n) for k in range(8)]


@each("rule", [FedAvg(), FedHEAL(), FedLWR(), FedCE(), Median(), FedISM(), QFedAvg(lipschitz=1.0)])
@each("mix", ["neighbours", "krum-neighbours"])
def test_no_site_has_more_than_its_share_of_mixed_updates_whatever_it_says(rule, mix):
    sites = [
        dataclasses.replace(
            r, scalars={"sharpness": 1.0 + 1e5 * (r.site == "site-7"), "loss": 1.0, "similarity/w": 0.5}
        )
        for r in eight()
    ]
    bounds = Bounds(clip=1.0, cap="auto", mix=mix)
    outcome = Bounded(rule, bounds).aggregate(model(), sites, {}, INFO)
    assert max(outcome.weights.values()) <= 1 / 6 + 1e-9 and sum(outcome.weights.values()) == pytest.approx(1)
    assert outcome.model["w"][0] > 0 and sum(outcome.notes["mixed_in"].values()) == pytest.approx(8)


@each("mix", [mix for mix in MIXES if mix != "none"])
def test_the_weights_of_mixed_updates_are_those_that_were_used(mix):
    sites = [reply(k, [float(k * k), 1.0 - k], n=10 + k) for k in range(6)]
    outcome = run(Bounds(cap=0.4, mix=mix), sites)
    used = add_weighted(model(), sites, outcome.weights)
    assert all(torch.allclose(outcome.model[key].float(), used[key].float(), atol=1e-5) for key in used)


def test_updates_that_multi_krum_drops_have_no_part():
    for mix in ("krum", "krum-neighbours"):
        outcome = run(Bounds(mix=mix), eight())
        assert outcome.weights["site-6"] == outcome.weights["site-7"] == 0 and outcome.model["w"][0] > 1


@each("kind", ["centre", "geometric"])
def test_far_updates_hardly_move_the_middle(kind):
    assert torch.allclose(run(Bounds(mix=kind), eight()).model["w"], torch.tensor([1.0, 0.5]), atol=0.1)


def test_two_sites_are_not_mixed():
    plain, sites = FedAvg(), [reply(0, [1.0, 0.0]), reply(1, [0.0, 3.0])]
    found = run(Bounds(mix="neighbours"), sites)
    assert torch.equal(found.model["w"], plain.aggregate(model(), sites, {}, INFO).model["w"])
    assert "mixed_in" not in found.notes


def test_layers_are_capped_one_by_one():
    sites = [dataclasses.replace(r, scalars={"similarity/a": 0.9, "similarity/b": 0.9}) for r in eight()]
    update = {"a.w": torch.ones(2), "b.w": torch.ones(3)}
    sites = [dataclasses.replace(r, update=update, trainable=frozenset(update)) for r in sites]
    sites[7] = dataclasses.replace(sites[7], scalars={"similarity/a": -1.0, "similarity/b": 0.9})
    start = {key: torch.zeros_like(value) for key, value in update.items()}
    plain, found = (
        rule.aggregate(start, sites, {}, INFO) for rule in (FedLWR(), Bounded(FedLWR(), Bounds(cap="auto")))
    )
    rho = {name: of["layer_weights"]["a"]["site-7"] for name, of in (("plain", plain.notes), ("capped", found.notes))}
    assert rho["plain"] > 0.5 and rho["capped"] == 0.25
    assert found.notes["layer_weights"]["b"] == pytest.approx(dict.fromkeys([r.site for r in sites], 1 / 8))


def test_the_weights_of_masked_updates_are_capped():
    rule = Bounded(FedHEAL(beta=1.0), Bounds(cap="auto"))
    assert FedHEAL(beta=1.0).aggregate(model(), eight(), {}, INFO).weights["site-7"] > 0.25
    assert rule.aggregate(model(), eight(), {}, INFO).weights["site-7"] == 0.25


def test_the_weight_that_fedce_orders_a_site_to_take_out_is_the_one_it_had():
    sites = eight()
    outcome = Bounded(FedCE(), Bounds(cap=0.13)).aggregate(model(), sites, {}, INFO)
    told = Bounded(FedCE(), Bounds(cap=0.13)).orders(outcome.state, "site-7", INFO)["coefficient"]
    assert told == outcome.weights["site-7"] <= 0.13


def test_how_many_may_lie():
    assert [liars_among(sites) for sites in (1, 2, 3, 4, 7, 8, 12, 100)] == [0, 0, 1, 1, 1, 2, 3, 25]
    assert liars_among(8, 0.4) == 3 and liars_among(5, 0.49) == 2


# The default


HOUSE = ("fedavg", "fedism", "fedism-plus", "fedlwr", "fedheal", "fedufo", "fedce", "fedprox", "scaffold", "fedadam")
HOUSE += ("fedavgm", "fedbn", "fedper", "fedrep", "ditto", "moon", "qffl", "median", "trimmed-mean")


def of_method(method, seed, factor, liars):
    """Eight sites' replies to ``method``, honest ones about 0.1 at each position; the last sites send ``factor`` times
    that and the highest numbers that their ranges allow."""
    entry, draw = registry.get_method(method), torch.Generator().manual_seed(seed)
    highest = {one.name: min(one.high, 1e4) for one in laws._scalars(entry)}
    replies = []
    for k, one in enumerate(laws._replies(entry, 8, seed)):
        update = {**one.update, "weight": 0.1 + 0.02 * torch.randn(2, 3, generator=draw)}
        if k >= 8 - liars:
            update["weight"] = factor * update["weight"]
            one = dataclasses.replace(one, scalars={**one.scalars, **highest})
        replies.append(dataclasses.replace(one, update=update, n_examples=90 + k))
    return replies


def moved_by(rule, replies_of):
    """How far three rounds move the mean trainable entry."""
    start = at = laws._model()
    state = {}
    for t in range(1, 4):
        outcome = rule.aggregate(at, replies_of(t), state, laws._info(t))
        at, state = outcome.model, outcome.state
    return float((at["weight"] - start["weight"]).mean())


@each("method", HOUSE)
def test_liars_take_at_most_half_of_a_methods_way(method):
    """Turned round at 1, 5, 10 and 90 times the length, by one site of eight and by two that agree."""
    plain = default_parts(method).rule
    whole = moved_by(plain, lambda t: of_method(method, t, 1, 0))
    assert moved_by(bounded(plain, USUAL), lambda t: of_method(method, t, 1, 0)) == pytest.approx(whole, rel=0.02)
    for factor, liars in itertools.product((-1, -5, -10, -90), (1, 2)):
        found = moved_by(bounded(plain, USUAL), partial(of_method, method, factor=factor, liars=liars))
        assert whole * 0.4 < found < whole * 1.05, (factor, liars, found / whole)
    if method not in ("median", "trimmed-mean"):
        assert moved_by(plain, lambda t: of_method(method, t, -90, 1)) < 0


def test_a_key_of_the_run_beats_its_level():
    for level, values in (("bounded", {"cap_weights": 0.3}), ("mixed", {"clip_updates": 2.5, "mix_updates": "none"})):
        config = make_config("fedavg", "support2", values={"robust": level, **values})
        assert config.robust == level and {key: getattr(config, key) for key in values} == values
    assert make_config("fedavg", "support2", values={"cap_weights": 0.3}).clip_updates == "spread"


def test_what_stands_out_further_counts_for_less():
    away = {"a": 0.0, "b": math.log(LEAST), "c": math.log(2 * LEAST), "d": math.log(4 * LEAST)}
    kept = kept_lengths(away, [0.0, 0.1, -0.1])
    assert kept["a"] == kept["b"] == 1 and kept["c"] == pytest.approx(1 / 8) and kept["d"] == pytest.approx(1 / 64)
    assert kept_lengths({"b": math.log(2)}, [0.0, 0.3, -0.3])["b"] == 1  # the sites differ as much


@pytest.mark.parametrize("liars", [0, 1, 2])
def test_a_norm_is_held_against_the_one_of_its_number_of_examples(liars):
    """Steps follow the number of examples: three times the median update is honest where a site has as many."""
    counts = [100, 120, 150, 200, 220, 260, 300, 600]
    honest = [reply(k, [n / 200, 0.01 * k], n=n) for k, n in enumerate(counts)]
    for k in range(liars):
        honest[k] = reply(k, [40.0, 0.0], n=counts[k])
    outcome = Bounded(FedAvg(), USUAL).aggregate(model(), honest, {}, INFO)
    assert sorted(outcome.notes.get("clip_factor", {})) == [f"site-{k}" for k in range(liars)]
    assert all(factor < 1e-3 for factor in outcome.notes.get("clip_factor", {}).values())


def test_expected_norms_follow_the_sites_at_most_in_proportion():
    counts = {f"s{k}": float(n) for k, n in enumerate((10, 20, 40, 80, 160))}
    for power, slope in ((0.5, 0.5), (1.0, 1.0), (2.0, 1.0), (-1.0, 0.0), (0.0, 0.0)):
        norms = {site: 3 * n**power for site, n in counts.items()}
        found = expected_norms(norms, counts)
        assert found["s4"] / found["s0"] == pytest.approx(16**slope) and found["s2"] == pytest.approx(norms["s2"])
    assert expected_norms({"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 9.0}) == {
        "a": pytest.approx(3**0.5),
        "b": pytest.approx(3**0.5),
    }
    assert expected_norms({"a": 0.0}, {"a": 1.0}) == {}


def test_the_spread_of_earlier_rounds_counts():
    wide = [reply(k, [math.exp(0.3 * (k - 2)), 0.0]) for k in range(5)]
    even = [reply(k, [1.0, 0.0]) for k in range(4)] + [reply(4, [2.0, 0.0])]
    rule = Bounded(FedAvg(), USUAL)
    state = {}
    for t in (1, 2, 3):
        state = rule.aggregate(model(), wide, state, Info(Round(t, 9))).state
    assert "clip_factor" not in rule.aggregate(model(), even, state, Info(Round(4, 9))).notes
    assert list(rule.aggregate(model(), even, state, Info(Round(9, 9))).notes["clip_factor"]) == ["site-4"]


def test_who_opposes_or_overstates_weighs_less_than_one_of_all():
    told = [{"sharpness": 1.0 + 0.05 * k, "loss": 1.0} for k in range(8)]
    sites = [dataclasses.replace(reply(k, [1.0, 0.02 * k], n=10 + k), scalars=told[k]) for k in range(8)]
    rule = Bounded(FedISM(), USUAL)
    assert "capped_at" not in rule.aggregate(model(), sites, {}, INFO).notes
    lying = [*sites[:7], dataclasses.replace(sites[7], scalars={"sharpness": 100.0, "loss": 1.0})]
    assert rule.aggregate(model(), lying, {}, INFO).notes["capped_at"] == {"site-7": 0.75 / 8}
    against = {"w": torch.tensor([-1.0, 0]), "mean": torch.ones(1)}
    turned = dataclasses.replace(lying[7], scalars={"sharpness": 3.0, "loss": 1.0}, update=against)
    assert rule.aggregate(model(), [*sites[:7], turned], {}, INFO).weights["site-7"] <= 0.75 / 8 + 1e-9
    large = [*sites[:7], dataclasses.replace(sites[7], n_examples=2000)]
    known = run(USUAL, [*sites[:7], dataclasses.replace(sites[7], n_examples=40)]).weights["site-7"]
    assert run(USUAL, large).weights["site-7"] == pytest.approx(known, rel=0.02)  # three times the median, no more
    share = [*sites[:7], dataclasses.replace(sites[7], n_examples=30)]
    assert "capped_at" not in run(USUAL, share).notes, "a share of the examples counts while nothing stands out"
    opposed = [*share[:7], dataclasses.replace(share[7], update=against)]
    assert run(USUAL, opposed).weights["site-7"] == pytest.approx(0.75 / 8)


def test_a_long_update_weighs_less():
    """The product of weight and length is bounded, so that nobody wins by both."""
    told = [{"sharpness": 2.9 if k == 7 else 1.0, "loss": 1.0} for k in range(8)]
    sites = [dataclasses.replace(reply(k, [1.0, 0.02 * k]), scalars=told[k]) for k in range(8)]
    longer = dataclasses.replace(sites[7], update={"w": torch.tensor([1.5, 0.0]), "mean": torch.ones(1)})
    rule = Bounded(FedISM(), USUAL)
    assert rule.aggregate(model(), sites, {}, INFO).weights["site-7"] == pytest.approx(1.5 / 8, rel=0.01)
    assert rule.aggregate(model(), [*sites[:7], longer], {}, INFO).weights["site-7"] == pytest.approx(1 / 8, rel=0.01)


def test_a_direction_that_stood_out_is_remembered():
    """Late updates hardly agree with each other, so that a liar of the first rounds would pass in them."""
    early = [reply(k, [1.0, 0.02 * k]) for k in range(7)] + [reply(7, [-1.0, 0.0])]
    late = [reply(k, [math.cos(k), math.sin(k)]) for k in range(8)]
    rule, state = Bounded(FedAvg(), USUAL), {}
    assert min(rule._lengths(late, state).standing.values()) > 0
    for t in (1, 2):
        state = rule.aggregate(model(), early, state, Info(Round(t, 9))).state
    assert {site for site, part in rule._lengths(late, state).standing.items() if part == 0} == {"site-7"}
    assert rule.aggregate(model(), late, state, Info(Round(3, 9))).weights["site-7"] == 0.75 / 8
    assert set(rule._lengths(late[:7], state).directions) == {f"site-{k}" for k in range(8)}, "absent sites are kept"


@each("depth, part", [(-0.4, 1.0), (-0.625, 0.75), (-0.75, 0.5), (-0.9, 0.2), (-1.1, 0.0)])
def test_a_direction_just_inside_what_stands_out_weighs_less_too(depth, part):
    """A hard edge lets two of the largest sites stay just inside it, round after round."""
    angles = [math.acos(0.99)] * 6
    sites = [reply(k, [math.cos(angle), math.sin(angle)], n=10) for k, angle in enumerate(angles)]

    def both(cosine):
        return [*sites, *(reply(k, [cosine, -math.sqrt(1 - cosine**2)], n=30) for k in (6, 7))]

    low, high = -1.0, 0.99
    for _ in range(60):
        middle = (low + high) / 2
        found = lengths_of(both(middle), {}).directions["site-7"]["depth"]
        low, high = (low, middle) if found > depth else (middle, high)
    lengths = lengths_of(both(low), {})
    assert lengths.directions["site-7"]["depth"] == pytest.approx(depth, abs=1e-6)
    assert lengths.standing["site-7"] == pytest.approx(part, abs=1e-5) and lengths.standing["site-0"] == 1


@each("sites, depth", [(4, 0.2 * (7 / 3) ** 0.5), (8, 0.2), (17, 0.2)])
def test_few_sites_directions_scatter_more(sites, depth):
    """The mean of three cosines scatters more than that of seven; none is needed less for."""
    replies = [reply(k, [1.0, 0.0]) for k in range(sites - 1)] + [reply(sites - 1, [0.0, 1.0])]
    found = lengths_of(replies, {}).directions
    away = found["site-0"]["cosine"] - found[f"site-{sites - 1}"]["cosine"]
    assert found[f"site-{sites - 1}"]["depth"] == pytest.approx(-away / depth)


def test_the_cap_follows_the_spread_of_the_weights():
    """Where most sites' numbers differ, honest methods give large weights; where one differs alone, it is the cap."""
    assert widened({}) == widened({"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25}) == 1
    assert widened({f"s{k}": 0.1 for k in range(7)} | {"liar": 0.3}) == 1
    assert widened({"a": 0.08, "b": 0.07, "c": 0.59, "d": 0.26}) == pytest.approx(4 / 3)
    assert widened({"a": 0.1, "b": 0.115, "c": 0.13, "d": 0.15, "e": 0.0}) == pytest.approx(
        math.exp(2.5 * 1.4826 * (math.log(0.15 / 0.1) / 4 + math.log(0.13 / 0.115) / 4)) / 1.5, rel=0.05
    )


def test_caps_of_single_sites_hold_together():
    found = limited({"a": 0.5, "b": 0.3, "c": 0.2}, {"a": 0.25, "b": 0.35, "c": 0.6})
    assert found == pytest.approx({"a": 0.25, "b": 0.35, "c": 0.4})
    assert limited({"a": 0.9, "b": 0.1}, {"a": 0.2, "b": 0.6}) == pytest.approx({"a": 0.25, "b": 0.75})


@each(
    "method, values, bounds",
    [
        ("fedavg", {}, USUAL),
        ("fedavg", {"robust": "off"}, Bounds()),
        ("fedavg", {"robust": "mixed"}, Bounds(clip=1.0, cap="auto", mix="krum-neighbours")),
        ("fedavg", {"clip_updates": 1.5}, Bounds(clip=1.5, cap=SPREAD)),
        ("fedism", {"secure_sum": "masks"}, Bounds()),
        ("glm", {}, Bounds()),
        ("solo", {}, Bounds()),
        ("cgsv", {}, Bounds(clip=SPREAD)),
        ("fedfv", {}, Bounds(clip=SPREAD)),
        ("scaffold", {"estimate": "gradient"}, USUAL),
    ],
)
def test_a_run_is_bounded_where_bounds_can_act(method, values, bounds):
    config = make_config(method, "support2", values=values)
    assert config.bounds == bounds and RunConfig.from_json(config.to_json()) == config
    assert config.robust == values.get("robust", "bounded")


def test_a_configuration_without_a_level_has_none():
    """One that was written before there were levels goes on as it began."""
    content = make_config("fedavg", "support2", values={"robust": "off"}).to_json()
    assert "robust" not in content and RunConfig.from_json(content).bounds == Bounds()
