# SPDX-License-Identifier: Apache-2.0
"""Groups, contributions and the methods' figures on the page; nothing of them where a run has none."""

import copy

import pytest

from fairflare.report import method_figures, words
from fairflare.report.page import render_run
from fairflare.report.summary import summarise

EVIL = """<script>alert("1")</script>&'$x_1$"""
PARTS = ("groups", "contribution_shares", "layer_weights")


def drawn(summary):
    names = ("contribution_rounds", "rider_rounds", "lambda_rounds", "layer_map")
    return [bool(getattr(method_figures, name)(summary)) for name in names]


def test_a_rate_that_no_site_told_is_missing_and_leaves_no_gap(grouped_inputs, self_contained):
    del grouped_inputs["entries"][-2]["sites"]["site-1"]["groups"]["test"]["ill, m"]
    summary = summarise(**grouped_inputs)
    found = summary["groups"]["equal_opportunity"]
    assert (found["gap"], found["worst_tpr"]) == (None, 0.4)
    assert found["classes"][1]["missing"] == ["m"]
    row = summary["groups"]["rows"][-1]
    assert (row["n"], row["value"], row["sites"], row["lowest"]["site"]) == (None, None, 0, None)
    self_contained(render_run(summary))


@pytest.mark.parametrize("by", ["label", "sex"])
def test_one_key_has_no_equal_opportunity(grouped_inputs, by):
    grouped_inputs["config"]["group_by"] = by
    summary = summarise(**grouped_inputs)
    assert summary["groups"]["equal_opportunity"] is None
    html = render_run(summary)
    assert "Groups of patients" in html and "Equal opportunity" not in html


def test_runs_without_groups_show_none(grouped_inputs):
    def without(change):
        changed = copy.deepcopy(grouped_inputs)
        change(changed)
        return summarise(**changed)

    def clear(changed):
        for splits in changed["entries"][-2]["sites"].values():
            splits["groups"] = {}

    for change in (
        clear,
        lambda changed: changed["config"].update(group_by="none"),
        lambda changed: changed["config"].pop("group_by"),
        lambda changed: changed["entries"].pop(-2),
    ):
        summary = without(change)
        assert summary["groups"] is None and words.groups(summary) == [] and words.opportunity(summary) == ""
        assert "Groups of patients" not in render_run(summary)


def test_when_nothing_was_told_the_page_says_so(grouped_inputs, self_contained):
    for splits in grouped_inputs["entries"][-2]["sites"].values():
        splits["groups"] = {"val": {}, "test": {}}
    grouped_inputs["config"]["min_count"] = None
    summary = summarise(**grouped_inputs)
    assert words.groups(summary) == ["min_count is none: sites tell no numbers of groups."]
    assert (summary["groups"]["disparity"]["sample"], summary["groups"]["unseen"]) == (None, [])
    page = self_contained(render_run(summary))
    assert "True-positive rates by class." not in " ".join(page.texts)


def test_a_usual_score_of_zero_marks_nobody(noted_inputs, self_contained):
    for record in noted_inputs["entries"][1:5]:
        record["notes"]["free_rider_score"] |= {"site-1": 0.0, "site-2": 0.0}
    summary = summarise(**noted_inputs)
    assert not any(row["flagged"] for row in summary["contribution_shares"]["rows"])
    assert "no site can be compared" in words.contribution(summary)[1]
    self_contained(render_run(summary))


def test_contributions_without_scores(noted_inputs, self_contained):
    for record in noted_inputs["entries"][1:5]:
        record["notes"] = {"contribution": record["notes"]["contribution"]}
    summary = summarise(**noted_inputs)
    assert summary["contribution_shares"]["usual_score"] is None
    assert len(words.contribution(summary)) == 1
    assert drawn(summary) == [True, False, False, False]
    self_contained(render_run(summary))


def test_a_page_with_everything(noted_inputs, self_contained):
    summary = summarise(**noted_inputs)
    page = self_contained(render_run(summary))
    text = " ".join(page.texts)
    assert drawn(summary) == [True] * 4
    assert page.tags.count("svg") == 8
    assert {"Groups of patients", "Contributions of the sites"} <= set(page.texts)
    for found in ("healthy, m", "Equal opportunity", "EO gap", "site-10, marked", "limit for a site's median"):
        assert found in text
    assert "Weights of the groups, last: 0.100 to 0.400" in text
    assert "ill, f, worst served, largest weight" in text
    assert "Layer weights, mean over rounds: 0.150 to 0.700, equal would be 0.333" in text


def test_what_a_run_lacks_is_not_shown(inputs):
    summary = summarise(**inputs)
    html = render_run(summary)
    assert [summary[part] for part in PARTS] == [None] * 3
    assert drawn(summary) == [False] * 4
    assert "Groups of patients" not in html and "Contributions of the sites" not in html


@pytest.mark.parametrize("length", range(8))
def test_the_log_may_end_anywhere(noted_inputs, length, self_contained):
    summary = summarise(**noted_inputs | {"entries": noted_inputs["entries"][:length]})
    self_contained(render_run(summary))
    assert (summary["groups"] is None) is (length < 6)


def test_untrusted_names_are_escaped(noted_inputs, self_contained):
    evaluation = noted_inputs["entries"][-2]
    evaluation["sites"]["site-1"]["groups"]["test"][EVIL] = {"n": 9.0, "value": 0.1}
    for record in noted_inputs["entries"][1:5]:
        record["notes"]["layer_weights"][EVIL] = record["notes"]["layer_weights"].pop("head")
        record["notes"]["group_lambda"][EVIL] = 0.9
        record["notes"]["contribution"][EVIL] = 0.9
    html = render_run(summarise(**noted_inputs))
    self_contained(html)
    assert "<script" not in html


@pytest.mark.parametrize("junk", [None, 3, "x", {"site-1": "x"}, {"site-1": float("nan")}, {}])
def test_notes_of_another_shape_are_passed_over(noted_inputs, junk, self_contained):
    for record in noted_inputs["entries"][1:5]:
        record["notes"] = dict.fromkeys(record["notes"], junk)
    summary = summarise(**noted_inputs)
    assert [summary[part] for part in PARTS[1:]] == [None, None]
    self_contained(render_run(summary))


def test_many_layers_stay_in_one_compact_map(noted_inputs):
    for record in noted_inputs["entries"][1:5]:
        weights = record["notes"]["layer_weights"]["conv1"]
        record["notes"]["layer_weights"] = {f"layer{i}": weights for i in range(60)}
    svg = method_figures.layer_map(summarise(**noted_inputs))
    assert ">layer58<" in svg and ">layer59<" not in svg
    assert "<image" not in svg


def test_the_sections_are_deterministic(noted_inputs):
    assert render_run(summarise(**noted_inputs)) == render_run(summarise(**copy.deepcopy(noted_inputs)))


def test_weights_of_groups_within_sites_are_a_map(noted_inputs):
    for record in noted_inputs["entries"][1:5]:
        record["notes"] = {"cell_lambda": {"site-1": {"a": 0.5, "b": 0.1}, "site-2": {"a": 0.4}, "site-10": "x"}}
    svg = method_figures.cell_map(summarise(**noted_inputs))
    assert "last: 0.100 to 0.500, equal would be 0.333</title>" in svg
    assert ">site-2<" in svg and ">b<" in svg
