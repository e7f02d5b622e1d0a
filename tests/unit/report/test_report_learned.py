# SPDX-License-Identifier: Apache-2.0
"""Whether a model has learned, and whether more rounds would help."""

from __future__ import annotations

import pytest

from fairflare.report.audit_reader import Trail
from fairflare.report.personal import own_rows
from fairflare.report.sanity_checks import beside_trivial, learned_section, sentences, verdict
from fairflare.report.values import signed

ABOUT = {"metrics": {"balanced_accuracy": {"chance": 0.5}}}


def section(models, trivials, scores=(), losses=(), metric="dice", name="loss"):
    sites = {f"s{k}": {"trivial": {"test": {metric: one}}} if one is not None else {} for k, one in enumerate(trivials)}
    length = max(len(scores), len(losses))
    rounds = []
    for t in range(length):
        metrics = ({metric: scores[t]} if scores else {}) | ({name: losses[t]} if losses else {})
        rounds.append({"round": t + 1, "accepted": {"s0": {"metrics": metrics}}})
    rows = [{"site": f"s{k}", "value": value} for k, value in enumerate(models)]
    trail = Trail(evaluation={"sites": sites}, rounds=rounds)
    for record in rounds:
        trail.totals.add(record, ["s0"])
    return learned_section(trail, rows, metric, True, ABOUT)


def summary(found, metric="dice"):
    return {"learned": found, "headline": metric, "metrics": {}, "fairness": {"mean": 0.3}}


def test_a_model_that_surely_gains_nothing_has_not_learned():
    found = section([0.3, 0.4, 0.38], [0.38, 0.5, 0.5])
    assert (found["learned"], found["better"], found["compared"]) == (False, 0, 3)
    said = verdict(summary(found))
    assert said.startswith(
        "This model has not learned: Dice score 0.360 on average over 3 sites, 0.460 without training"
    )
    assert not sentences(summary(found))


def test_a_model_that_surely_gains_has_and_the_baseline_stands_beside_it():
    found = section([0.6, 0.7, 0.75], [0.3, 0.5, 0.5])
    assert found["learned"] is True and verdict(summary(found)) == ""
    said = sentences(summary(found))[0]
    assert said.startswith("The model beats the baseline at 3 of 3 sites: Dice score 0.683 on average over 3 sites")
    assert f"gain {signed(found['gain']['mean'])} [{signed(found['gain']['low'])}, " in said and "0.433 without" in said


def test_between_them_nothing_is_claimed():
    """The interval over sites holds gain and loss: neither a banner nor praise, whatever side the mean is on."""
    for models in ([0.3, 0.4, 0.9], [0.9, 0.1, 0.2]):
        found = section(models, [0.3, 0.5, 0.5])
        assert found["learned"] is None and found["gain"]["low"] < 0 < found["gain"]["high"]
        assert verdict(summary(found)) == "" and sentences(summary(found))[0].startswith("Too few sites to tell")


def test_where_sites_use_models_of_their_own_these_are_held_against_it():
    rows = [{"site": "s0", "value": 0.2}, {"site": "s1", "value": 0.3}]
    empty = {"test": {}, "val": {}}
    own = {"rows": [{"site": "s0", "personal": 0.7, **empty}, {"site": "s1", "personal": None, **empty}]}
    assert [row["value"] for row in own_rows(rows, own)] == [0.7, 0.3]
    better, worse = section([0.7], [0.5]), section([0.4], [0.5])
    said = sentences({**summary(better), "used": "personal"})[0]
    assert said.startswith("The sites' own models beat the baseline at 1 of 1 site")
    assert verdict({**summary(worse), "used": "personal"}).startswith("The sites' own models have not learned: Dice")


def test_a_constant_answers_balanced_accuracy_is_known_where_its_counts_may_not_leave():
    found = section([0.4, 0.42, 0.41], [None] * 3, metric="balanced_accuracy")
    assert found["learned"] is False and found["trivial"] == 0.5
    assert section([0.4, 0.45], [None, None], metric="accuracy") is None


def test_a_threshold_metric_at_chance_is_no_verdict_where_the_risks_are_good():
    """Balanced accuracy at .5 of a rare outcome: log loss decides, which no threshold enters."""
    beside = {"trivial": {"test": {"balanced_accuracy": 0.5, "loss": 0.45}}}
    rows = [{"site": f"s{k}", "value": 0.5, "test": {"loss": 0.36 + 0.01 * k}} for k in range(3)]
    trail = Trail(evaluation={"sites": {row["site"]: beside for row in rows}})
    found = learned_section(trail, rows, "balanced_accuracy", True, ODDS, True)
    assert found["learned"] is True and found["score"] == "loss" and verdict(summary(found, "balanced_accuracy")) == ""


def test_two_values_of_a_trend_are_possible_ones():
    """Means of thirds, where a fitted line's ends go beyond a metric: (0.456 to 1.097)."""
    found = section([0.6], [0.3], scores=[0.2, 0.3, 0.99, 1.0, 1.0, 1.0])["trend"]
    assert (found["from"], found["to"]) == (pytest.approx(0.25), 1.0)


def test_scores_that_rise_beyond_their_noise_say_that_more_rounds_help():
    found = section([0.6], [0.3], scores=[0.3 + 0.02 * t + 0.003 * (-1) ** t for t in range(24)])
    assert found["still_improving"] and found["trend"]["of"] == "score" and found["trend"]["rounds"] == 6
    assert "More rounds will help" in sentences(summary(found))[-1]


@pytest.mark.parametrize("change", ["segment", "arrival", "leaving"])
def test_no_trend_runs_across_a_change_of_sites(change):
    """A better site in the place of a worse one is no progress; six rounds of the same sites are enough for one."""

    def still(rise, after):
        trail = Trail()
        trail.evaluation = {"sites": {"b": {"trivial": {"test": {"dice": 0.3}}}}}
        for t in range(6 + after):
            late = t >= 6
            values = {"a": 0.4, "b": 0.7 + rise * t} | ({"d": 0.8} if change != "leaving" else {})
            gone = "a" if change != "arrival" and late else "d" if not late else ""
            accepted = {site: {"metrics": {"dice": one}} for site, one in values.items() if site != gone}
            named = ["a", "b", "d"] if change == "arrival" else [*accepted]
            trail.totals.add({"round": t + 1, "accepted": accepted}, named)
        return learned_section(trail, [{"site": "b", "value": 0.7}], "dice", True, ABOUT)["still_improving"]

    assert not still(0, 3) and not still(0, 6) and still(0.02, 6)


@pytest.mark.parametrize(
    "scores",
    [
        [0.7] * 24,
        [0.7 + 0.05 * (-1) ** t for t in range(24)],
        [0.5 + 0.0005 * t for t in range(24)],
        [0.8 - 0.01 * t for t in range(24)],
        [0.1, 0.3, 0.5],
    ],
    ids=["level", "noise", "slow", "falling", "few"],
)
def test_others_do_not(scores):
    assert not section([0.6], [0.3], scores=scores)["still_improving"]


def test_losses_count_where_scores_stand_still_and_training_losses_without_validation_data():
    falling = [1.0 - 0.03 * t for t in range(24)]
    assert section([0.6], [0.3], scores=[0.7] * 24, losses=falling)["trend"]["of"] == "loss"
    assert section([0.6], [0.3], losses=falling, name="train_loss")["trend"]["of"] == "train_loss"
    assert section([0.6], [0.3], scores=[0.7] * 24, losses=falling, name="train_loss")["trend"] is None


ODDS = {**ABOUT, "classes": ["well", "ill"], "group_metric": "accuracy"}


@pytest.mark.parametrize(
    ("own", "loss", "learned"), [(True, 0.5, True), (True, 0.65, False), (False, 0.65, True), (False, 1.9, False)]
)
def test_a_loss_above_that_of_the_classes_shares_is_nothing_learned_however_high_the_accuracy(own, loss, learned):
    beside = {"trivial": {"test": {"balanced_accuracy": 0.5, "loss": 0.6}}}
    rows = [{"site": f"s{k}", "value": 0.8, "test": {"loss": loss}} for k in range(3)]
    trail = Trail(evaluation={"sites": {row["site"]: beside for row in rows}})
    found = learned_section(trail, rows, "balanced_accuracy", True, ODDS, own)
    assert found["learned"] is learned
    said = verdict(summary(found, "balanced_accuracy"))
    assert bool(said) is not learned and (learned or f"log loss {loss:.3f}" in said and "over 3 sites" in said)
    assert found["rows"][0]["trivial_loss"] == pytest.approx(0.6 if own else 0.693, abs=1e-3)


def test_the_answer_without_a_network_stands_beside_the_mean_over_the_same_sites():
    assert section([0.6, 0.7], [0.3, 0.5])["trivial"] == 0.4
    assert section([0.6, 0.7], [0.3, None])["trivial"] is None  # of one site alone it would be another mean
    assert section([0.6, None], [0.3, None])["trivial"] == 0.3
    assert beside_trivial(0.8, 0.7, True) == "An answer that needs no network reaches 0.700."
    assert beside_trivial(0.8, 0.7, False) == "That is no better than an answer that needs no network (0.700)."
