# SPDX-License-Identifier: Apache-2.0
"""Groups and what rules note on the page; nothing of them where a run has none."""

import copy
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from fairflare.aggregators.fedce import FedCE
from fairflare.aggregators.fedheal import FedHEAL
from fairflare.aggregators.fedlwr import FedLWR
from fairflare.aggregators.fedufo import FedUFO
from fairflare.core.notes import Note
from fairflare.report import groups as words
from fairflare.report.notes import SECTION, note_figure
from fairflare.report.page import render_run
from fairflare.report.summary import summarise
from fairflare.report.values import environment

EVIL = """<script>alert("1")</script>&'$x_1$"""
TITLE = "What FedISM+ (S) reports"


def drawn(summary):
    return [section["name"] for section in summary["notes"] if note_figure(summary, section)]


def figure(summary, name):
    return note_figure(summary, next(section for section in summary["notes"] if section["name"] == name))


def declare(inputs, *notes):
    inputs["entries"][0]["declared_notes"] = [note.to_json() for note in notes]


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
    assert words.groups(summary) == ["min_count is none: sites send no numbers of groups."]
    assert summary["groups"]["disparity"]["sample"] is None
    page = self_contained(render_run(summary))
    assert "True-positive rates by class." not in " ".join(page.texts)


def test_a_usual_score_of_zero_marks_nobody(noted_inputs, self_contained):
    for record in noted_inputs["entries"][1:5]:
        record["notes"]["free_rider_score"] |= {"site-1": 0.0, "site-2": 0.0}
    summary = summarise(**noted_inputs)
    score = next(section for section in summary["notes"] if section["name"] == "free_rider_score")
    assert not any(row["marked"] for row in score["rows"])
    assert "no site can be compared" in " ".join(SECTION.sentence(summary))
    self_contained(render_run(summary))


def test_contributions_without_scores(noted_inputs, self_contained):
    for record in noted_inputs["entries"][1:5]:
        record["notes"] = {"contribution": record["notes"]["contribution"]}
    summary = summarise(**noted_inputs)
    assert len(SECTION.sentence(summary)) == 1
    assert drawn(summary) == ["contribution"]
    self_contained(render_run(summary))


def test_a_page_with_everything(noted_inputs, self_contained):
    summary = summarise(**noted_inputs)
    page = self_contained(render_run(summary))
    text = " ".join(page.texts)
    assert drawn(summary) == ["contribution", "free_rider_score", "group_loss", "group_lambda", "layer_weights"]
    assert page.tags.count("svg") == 9
    assert {"Groups of patients", TITLE} <= set(page.texts)
    for found in ("healthy, m", "Equal opportunity", "EO gap", "site-10, marked"):
        assert found in text
    assert "Weights of the groups, last: 0.100 to 0.400" in text
    assert "ill, f, worst served" in text
    assert "Layer weights, mean over rounds: 0.150 to 0.700, equal would be 0.333" in text


def test_what_a_run_lacks_is_not_shown(inputs):
    summary = summarise(**inputs)
    html = render_run(summary)
    assert (summary["groups"], summary["notes"]) == (None, [])
    assert "Groups of patients" not in html and TITLE not in html


@pytest.mark.parametrize("length", range(9))
def test_the_log_may_end_anywhere(noted_inputs, length, self_contained):
    summary = summarise(**noted_inputs | {"entries": noted_inputs["entries"][:length]})
    self_contained(render_run(summary))
    assert (summary["groups"] is None) is (length < 7)


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


PARTS = """{% import "parts.html.j2" as p %}
{% call(row) p.table(evil, evil, [[evil], [evil, evil], evil, none], [evil], [(evil, 2)]) %}
{{ p.line(row, [evil, [evil, evil], none], worst=true) }}{{ p.benefit(evil, [[evil]], joined) }}{% endcall %}
{{ p.own_groups([{"group": evil, "n": 9, "value": 0.5}], evil, evil, evil, evil) }}{{ p.at(0.5, evil) }}
{{ p.simulated({"simulated": evil, "real": evil}) }}{{ p.unfinished(evil, evil) }}{{ p.risk_of(evil) }}
{{ p.left_out({evil: {"code": evil, "detail": evil}}) }}{% call p.facts(evil) %}{{ evil }}{% endcall %}
{{ evil | code }}{{ p.figures_of([evil]) }}"""
JOINED = {"n": 9, "federated": 0.5, "solo": 0.5, "benefit": 0.0, "low": None, "high": None, "verdict": '"><script>'}


def test_the_parts_of_a_page_escape_whatever_they_are_given():
    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            known = {"class", "scope", "role", "aria-label", "tabindex", "colspan", "rowspan"}
            assert tag != "script" and {name for name, _ in attrs} <= known, (tag, attrs)
            quoted.extend(value for _, value in attrs if "script" in (value or ""))

    evil, quoted = "\"' onload=x><script>alert(1)</script>{{ 7 * 7 }}", []
    page = environment().from_string(PARTS).render(evil=evil, joined=JOINED)
    Reader(convert_charrefs=True).feed(page)
    assert "49" not in page and page.count("&lt;script&gt;") >= 25
    assert quoted == [evil] * 3, "a label and two classes, whole within their quotes"


@pytest.mark.parametrize("junk", [None, 3, "x", {"site-1": "x"}, {"site-1": float("nan")}, {}])
def test_notes_of_another_shape_are_passed_over(noted_inputs, junk, self_contained):
    for record in noted_inputs["entries"][1:5]:
        record["notes"] = dict.fromkeys(record["notes"], junk)
    summary = summarise(**noted_inputs)
    assert summary["notes"] == []
    self_contained(render_run(summary))


def test_many_layers_stay_in_one_compact_map(noted_inputs):
    for record in noted_inputs["entries"][1:5]:
        weights = record["notes"]["layer_weights"]["conv1"]
        record["notes"]["layer_weights"] = {f"layer{i}": weights for i in range(60)}
    svg = figure(summarise(**noted_inputs), "layer_weights")
    assert ">layer58<" in svg and ">layer59<" not in svg
    assert "<image" not in svg


def test_the_sections_are_deterministic(noted_inputs):
    assert render_run(summarise(**noted_inputs)) == render_run(summarise(**copy.deepcopy(noted_inputs)))


def test_weights_of_groups_within_sites_are_a_map(noted_inputs):
    for record in noted_inputs["entries"][1:5]:
        record["notes"] = {"cell_lambda": {"site-1": {"a": 0.5, "b": 0.1}, "site-2": {"a": 0.4}, "site-10": "x"}}
    svg = figure(summarise(**noted_inputs), "cell_lambda")
    assert "last: 0.100 to 0.500, equal would be 0.333</title>" in svg
    assert ">site-2<" in svg and ">b<" in svg


def test_the_page_draws_a_rule_that_it_does_not_know(inputs, self_contained):
    """Every chart of every kind of note, of a rule that no report file names."""
    kinds = {"round": 2.0, "site": {"site-1": 3.0, "site-2": -1.0}, "group": {"old": 0.01, "young": 0.02}}
    kinds |= {"layer": {"conv": {"site-1": 12.0, "site-2": 7.0}}, "cell": {"site-1": {"old": 1.0}}}
    charts = ("lines", "map", "table", "none")
    notes = [Note(f"{per}_{c}", f"{per} as {c}", "mm", per, c, f"In {c}.") for per in kinds for c in charts]
    declare(inputs, *notes)
    for record in inputs["entries"][1:5]:
        record["notes"] = {note.name: kinds[note.per] for note in notes}
    summary = summarise(**inputs)
    assert drawn(summary) == [note.name for note in notes if note.chart in ("lines", "map")]
    page = self_contained(render_run(summary))
    text = " ".join(page.texts)
    for found in (
        "site as lines",
        "site as table",
        "In map.",
        "12.0",
        "0.0200",
        "\N{MINUS SIGN}1.00",
        "layer as table, last",
    ):
        assert found in text, found
    assert "In none." not in text and "round as none" not in text


def test_shares_are_drawn_against_equal_ones(inputs):
    for shares in (False, True):
        declare(inputs, Note("number", "Number", shares=shares))
        for record in inputs["entries"][1:5]:
            record["notes"] = {"number": {"site-1": 0.25, "site-10": 0.75}}
        svg = figure(summarise(**inputs), "number")
        assert ("equal shares" in svg) is shares
        assert "site-10, worst served" in svg


def test_the_report_names_no_note_of_any_rule():
    """What a rule wants to show is declared by the rule: no file of the report knows its name."""
    names = {note.name for rule in (FedCE, FedHEAL, FedLWR, FedUFO) for note in rule.notes}
    assert len(names) > 8
    for file in resources.files("fairflare.report").iterdir():
        if file.name.endswith((".py", ".j2")):
            text = file.read_text()
            assert not [name for name in names if re.search(rf"""["'.]{name}\b""", text)], file.name
