# SPDX-License-Identifier: Apache-2.0
"""Groups and notes in report.json of the made-up run of conftest.py.

Hand-derived. Pooled over sites: "healthy, f" (36 + 12 + 20) / 80 = 0.85, "healthy, m" 0.8 of 80, "ill, f" (5 + 3) / 20
= 0.4, "ill, m" 0.7 of 10. Mean over groups 2.75 / 4. Three of 12 cells are absent. At site-1, which sent all four, the
EO gap of "ill" is 0.2, of "healthy" 0.1.

Medians over rounds of the scores, round r having 0.4 r times: site-1 and site-2 are in rounds 1 to 4, median 1; site-10
in 1, 3 and 4, median 1.2: 0.02, 0.01 and 0.6. Their median is 0.02, so only site-10 exceeds 0.06. Mean layer weight of
site-10 in conv1 over its three rounds is 1/3, of site-1 (1/3 + 1/2 + 1/3 + 1/3) / 4 = 0.375.
"""

import json

import pytest

from fairflare.core.notes import Note
from fairflare.report import groups as words
from fairflare.report.compare import run_row
from fairflare.report.notes import SECTION
from fairflare.report.summary import report_json, summarise


def section(inputs, name):
    return next(found for found in summarise(**inputs)["notes"] if found["name"] == name)


def rows(section, key):
    return {row[key]: row for row in section["rows"]}


def test_groups_are_pooled_and_keep_their_order(grouped_inputs):
    found = summarise(**grouped_inputs)["groups"]
    assert [row["group"] for row in found["rows"]] == ["healthy, f", "healthy, m", "ill, f", "ill, m"]
    assert [row["value"] for row in found["rows"]] == pytest.approx([0.85, 0.8, 0.4, 0.7])
    assert [row["n"] for row in found["rows"]] == [80, 80, 20, 10]
    assert [row["sites"] for row in found["rows"]] == [3, 3, 2, 1]
    assert found["rows"][0]["lowest"] == {"site": "site-2", "value": 0.6}
    assert found["rows"][0]["highest"] == {"site": "site-10", "value": 1.0}
    assert (found["n"], found["overall"]) == (190, pytest.approx((68 + 64 + 8 + 7) / 190))


def test_spread_of_the_groups(grouped_inputs):
    found = summarise(**grouped_inputs)["groups"]
    assert (found["by"], found["min_count"], found["metric"], found["split"]) == ("label+sex", 5, "accuracy", "test")
    assert found["uniform"] == pytest.approx(2.75 / 4)
    assert found["gap"] == pytest.approx(0.4) and (found["alike"]["sites"], found["alike"]["of"]) == (1, 3)
    assert found["worst"] == {"group": "ill, f", "value": 0.4}
    assert found["disparity"]["sample"] == pytest.approx(found["disparity"]["population"] * (4 / 3) ** 0.5)
    assert found["cells"] == {"expected": 12, "sent": 9}
    assert found["uniform"] > found["worst"]["value"]


def test_disparities_of_both_levels_and_their_two_harmonics(grouped_inputs):
    found = summarise(**grouped_inputs)["groups"]
    levels = found["levels"]
    assert levels["groups"] == found["disparity"]["sample"] and levels["sites"] > 0
    by_hand = levels["sites"] * levels["groups"] / (levels["sites"] + levels["groups"])
    assert (levels["harmonic_printed"], levels["harmonic"]) == pytest.approx((by_hand, 2 * by_hand))


def test_equal_opportunity_of_two_classes_is_that_of_the_second(grouped_inputs):
    found = summarise(**grouped_inputs)["groups"]["equal_opportunity"]
    assert found["positive"] == "ill"
    assert (found["gap"], found["worst_tpr"]) == (pytest.approx(0.2), 0.5)
    assert [row["gap"] for row in found["classes"]] == pytest.approx([0.1, 0.2])
    assert [row["missing"] for row in found["classes"]] == [[], []]


def test_gaps_are_between_groups_at_the_same_sites(grouped_inputs):
    """Site-1 alone sent all four; of "ill, f" site-2 has .3 and site-1 .5, so that pooled the gap would be .3."""
    summary = summarise(**grouped_inputs)
    row = run_row(summary)
    assert (row["eo_gap"], row["equalised_odds"]) == pytest.approx((0.2, 0.2))
    assert row["demographic_parity"] == pytest.approx((40 * 0.2 + 10 * 0.7) / 50 - (40 * 0.1 + 10 * 0.5) / 50)
    assert "gaps between groups the 1 of 3 sites that sent every group." in words.groups(summary)[1]
    grouped_inputs["config"]["min_count"] = 1
    whole = summarise(**grouped_inputs)
    assert run_row(whole)["eo_gap"] == pytest.approx(0.3), "no cell is held back: what is missing is empty"
    assert "gaps between groups" not in words.groups(whole)[1]
    cells = grouped_inputs["entries"][-2]["sites"]
    cells["site-10"]["groups"]["test"]["ill, m"] = cells["site-1"]["groups"]["test"].pop("ill, m")
    grouped_inputs["config"]["min_count"] = 5
    assert run_row(summarise(**grouped_inputs))["eo_gap"] is None, "no site sent both"


def test_three_classes_take_the_largest_gap(grouped_inputs):
    grouped_inputs["config"]["about"]["classes"] = ["healthy", "ill", "unsure"]
    found = summarise(**grouped_inputs)["groups"]["equal_opportunity"]
    assert (found["positive"], found["gap"], found["worst_tpr"]) == (None, pytest.approx(0.2), 0.5)


def test_sentences_on_groups_name_convention_and_minimum(grouped_inputs):
    summary = summarise(**grouped_inputs)
    first, second = words.groups(summary)
    assert "lowest in the group ill, f (0.400)" in first
    assert "with ddof 1 (as FedUFO prints it)" in first
    assert "only from 5 examples on (min_count)" in second and "3 of 12 are missing" in second
    assert "across sex. EO gap of the class ill: 0.200; worst true-positive rate: 0.500." in words.opportunity(summary)


def test_shares_of_sites_stand_beside_their_shares_of_the_examples(noted_inputs):
    found = section(noted_inputs, "contribution")
    by_site = rows(found, "name")
    assert list(by_site) == ["site-1", "site-2", "site-10"]
    last = by_site["site-10"]
    assert (last["first"], last["last"]) == (0.5, 0.4)
    assert last["mean"] == pytest.approx(1.4 / 3)
    assert found["rounds"] == 4
    novelty = rows(section(noted_inputs, "novelty"), "name")["site-10"]
    assert novelty["median"] == 1.0


def test_a_site_is_marked_by_the_declared_factor(noted_inputs):
    found = section(noted_inputs, "free_rider_score")
    assert [row["median"] for row in found["rows"]] == pytest.approx([0.02, 0.01, 0.6])
    assert [row["ratio"] for row in found["rows"]] == pytest.approx([1, 0.5, 30])
    assert [row["marked"] for row in found["rows"]] == [False, False, True]
    assert (found["mark_above"], found["usual"]) == (3.0, pytest.approx(0.02))
    for declared in noted_inputs["entries"][0]["declared_notes"]:
        declared["mark_above"] = 31 if declared["mark_above"] else 0
    assert not any(row["marked"] for row in section(noted_inputs, "free_rider_score")["rows"])


def test_the_rule_of_a_mark_is_given_with_its_result(noted_inputs):
    text = " ".join(SECTION.sentence(summarise(**noted_inputs)))
    for part in ("exceeds 3 times the median", "not a verdict", "Marked: site-10."):
        assert part in text


def test_layer_weights_are_means_over_the_rounds_of_a_site(noted_inputs):
    found = section(noted_inputs, "layer_weights")["table"]
    assert found["conv1"] == pytest.approx({"site-1": 0.375, "site-2": 0.375, "site-10": 1 / 3})
    assert found["head"]["site-1"] == pytest.approx(0.7)


def test_a_two_fold_note_may_be_of_the_last_round(noted_inputs):
    declared = noted_inputs["entries"][0]["declared_notes"]
    next(note for note in declared if note["name"] == "layer_weights")["over"] = "last"
    assert section(noted_inputs, "layer_weights")["table"]["conv1"]["site-1"] == pytest.approx(1 / 3)


def test_report_json_holds_the_sections_under_detail(noted_inputs):
    found = report_json(summarise(**noted_inputs), noted_inputs["entries"])
    json.dumps(found, allow_nan=False)
    assert not {"groups", "notes"} & set(found)
    assert found["detail"]["groups"]
    names = ["contribution", "novelty", "error_gap", "free_rider_score", "group_loss", "group_lambda", "layer_weights"]
    assert [note["name"] for note in found["detail"]["notes"]] == names
    assert found["fairness"]["std_sample"] == pytest.approx((42 / 1800) ** 0.5)


def test_a_note_of_the_round_is_one_row(inputs):
    inputs["entries"][0]["declared_notes"] = [Note("spread", "Spread", per="round").to_json()]
    for record in inputs["entries"][1:5]:
        record["notes"] = {"spread": float(record["round"])}
    found = section(inputs, "spread")
    assert found["rows"] == [{"name": "", "first": 1.0, "last": 4.0, "mean": 2.5, "median": 2.5}]


@pytest.mark.parametrize(
    "wrong", [None, {}, [3], [{"name": "x"}], [{"name": 3, "label": "X"}], [{"name": "x", "label": "X", "more": 1}]]
)
def test_declarations_that_no_run_writes_are_passed_over(noted_inputs, wrong):
    noted_inputs["entries"][0]["declared_notes"] = wrong
    assert summarise(**noted_inputs)["notes"] == []
