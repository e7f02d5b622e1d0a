# SPDX-License-Identifier: Apache-2.0
"""The HTML pages and their figures: well formed, self-contained, escaped, deterministic."""

import copy
import subprocess
import sys

import pytest

from fairflare.report.compare import compare
from fairflare.report.compare_page import method_points, render_compare
from fairflare.report.page import render_run
from fairflare.report.rounds import metric_rounds, weight_rounds
from fairflare.report.shared_sets import shared_test_points
from fairflare.report.sites import site_points
from fairflare.report.summary import summarise

EVIL = """<script>alert("1")</script>&'$x_1$"""


@pytest.fixture
def comparison(make_run):
    return compare([make_run("A", 0), make_run("A", 1), make_run("B", 0, 0.02), make_run("B", 1, 0.04)])


def many_sites(inputs, count=20):
    """The made-up run with ``count`` sites, the last of which is worst and was rejected once."""
    changed = copy.deepcopy(inputs)
    names = [f"site-{i}" for i in range(1, count + 1)]
    for entry in changed["entries"]:
        if entry["event"] == "round":
            reply = next(iter(entry["accepted"].values()))
            entry["accepted"] = {name: reply for name in names if entry["round"] != 2 or name != names[-1]}
            entry["weights"] = {name: 1 / len(entry["accepted"]) for name in entry["accepted"]}
            entry["rejected"] = {names[-1]: {"code": "late", "detail": ""}} if entry["round"] == 2 else {}
        if entry["event"] == "evaluation":
            entry["sites"] = {name: {"test": {"balanced_accuracy": 0.9 - 0.01 * i}} for i, name in enumerate(names)}
    changed["entries"][0]["sites"] = names
    return summarise(**changed)


def test_run_page_is_self_contained_and_says_the_numbers(summary, self_contained):
    html = render_run(summary)
    page = self_contained(html)
    assert page.tags.count("svg") == 4
    assert '<html lang="en">' in html
    for found in ("0.767", "0.600", "not_finite", "model-4", "hash-7", "fairflare verify DIR", "all images."):
        assert found in html


def test_the_simulation_is_said_before_anything_else(summary):
    body = render_run(summary).partition("<body>")[2]
    assert 0 < body.index("Simulated:") < body.index("trained one shared model")
    summary["task"]["simulated"] = ""
    assert "<strong>Simulated:</strong>" not in render_run(summary)


def test_compare_page_is_self_contained(comparison, self_contained):
    html = render_compare(comparison)
    page = self_contained(html)
    assert page.tags.count("svg") == 2
    for found in ("Differences from A", "+0.030", "2 of 2", "Weights are not payments"):
        assert found in html


def test_a_comparison_of_one_method_has_no_differences(make_run, self_contained):
    html = render_compare(compare([make_run("A", 0)]))
    self_contained(html)
    assert "Differences" not in html


def test_rounds_that_end_early_are_said_to(inputs):
    assert "End of a round" not in render_run(summarise(**inputs))
    inputs["config"] |= {"min_responses": 2, "grace": 7.5}
    assert "over FLARE 7.5 s after 2 answers; who answers later is <code>late</code>" in render_run(summarise(**inputs))


def test_failed_run_page(failed_inputs, self_contained):
    html = render_run(summarise(**failed_inputs))
    page = self_contained(html)
    assert "This run failed." in html
    assert page.tags.count("svg") == 2
    assert "final model" not in html.replace("of a final model", "")


@pytest.mark.parametrize("length", range(9))
def test_a_page_for_a_log_that_ends_anywhere(inputs, length, self_contained):
    """It says how far the run came, shows what is known by then, and no result that is not."""
    html = render_run(summarise(**inputs | {"entries": inputs["entries"][:length]}))
    page = self_contained(html)
    rounds = max(0, min(length - 1, 4))
    assert f"Rounds recorded: {rounds} of 4." in html
    assert ("This run has not finished." in html) is (length < 8)
    assert html.count("nothing can be said about fairness") == (length < 7)
    assert (">0.767<" in html) is (length >= 7), "the mean over sites"
    # Rounds and weights from the first round on, test sets after their scores, sites after the evaluation.
    assert page.tags.count("svg") == 2 * (length > 1) + (length >= 6) + (length >= 7)
    assert ("Updates left out" in html) is (length > 2)


def test_a_page_without_facts_or_test_sets(inputs, self_contained):
    del inputs["entries"][5]
    html = render_run(summarise({}, inputs["entries"]))
    page = self_contained(html)
    assert "unnamed method trained one shared model across 3 sites in 4 rounds." in html
    assert "balanced accuracy is 0.767 on average over 3 sites." in html, "a metric without a meaning keeps its name"
    assert "is guessing" not in html and "Simulated:" not in html and "Shared test sets" not in html
    assert page.tags.count("svg") == 3


def test_twenty_sites(inputs, self_contained):
    summary = many_sites(inputs)
    page = self_contained(render_run(summary))
    assert sum(text == "site-20" for text in page.texts) >= 4
    bars = site_points(summary)
    assert all(f">site-{i}<" in bars for i in range(1, 21))


def test_untrusted_text_is_escaped(inputs, self_contained):
    entries = inputs["entries"]
    for entry in entries:
        for part in ("accepted", "rejected", "weights", "sites"):
            if isinstance(entry.get(part), dict):
                entry[part] = {EVIL if name == "site-10" else name: value for name, value in entry[part].items()}
    entries[0]["sites"] = ["site-1", "site-2", EVIL]
    entries[2]["rejected"][EVIL] = {"code": EVIL, "detail": EVIL}
    inputs["config"]["title"] = inputs["config"]["about"]["simulated"] = EVIL
    summary = summarise(**inputs)
    html = render_run(summary)
    page = self_contained(html)
    assert "<script" not in html
    assert any(EVIL in text for text in page.texts)
    assert "<script" not in render_compare(compare([summary]))


def test_control_characters_in_names_do_not_break_the_figures(inputs):
    inputs["entries"][0]["sites"].append("bad\x00\x1b[31m")
    inputs["entries"][-2]["sites"]["bad\x00\x1b[31m"] = {"test": {"balanced_accuracy": 0.1}}
    assert ">bad??[31m<" in site_points(summarise(**inputs))


def test_dollar_signs_in_names_are_no_mathematics(inputs):
    inputs["entries"][0]["sites"].append("$x_1$")
    inputs["entries"][-2]["sites"]["$x_1$"] = {"test": {"balanced_accuracy": 0.1}}
    assert ">$x_1$<" in site_points(summarise(**inputs))


def test_pages_are_deterministic(inputs, comparison):
    assert render_run(summarise(**inputs)) == render_run(summarise(**copy.deepcopy(inputs)))
    assert render_compare(comparison) == render_compare(copy.deepcopy(comparison))


def test_figures_carry_titles_with_their_quantities(summary, comparison):
    assert "<title>Balanced accuracy by site: worst 0.600, gap 0.300</title>" in site_points(summary)
    assert "clean 0.900, corrupted 0.650</title>" in shared_test_points(summary)
    assert "mean 0.467 to 0.767</title>" in metric_rounds(summary)
    assert "last round: 0.300 to 0.400</title>" in weight_rounds(summary)
    assert "worst site: 0.600 to 0.630</title>" in method_points(comparison)


def test_the_worst_site_is_drawn_in_its_colour(summary):
    from fairflare.report.svg import RED

    assert site_points(summary).count(f"fill: {RED}") == 2, "its bar and its value"
    assert "site-10, worst served" in weight_rounds(summary)


def test_the_first_figure_shows_the_models_trained_alone_where_there_are_such(summary):
    assert "trained alone there" not in site_points(summary)
    sites = [{"site": row["site"], "solo": 0.5} for row in summary["sites"]]
    summary["benefit"] = {"metrics": {"balanced_accuracy": {"sites": sites}}}
    assert "trained alone there" in site_points(summary)


def test_weights_that_equal_the_shares_single_out_no_site(inputs):
    for entry in inputs["entries"][1:5]:
        entry["weights"] = {"site-1": 0.5, "site-2": 0.3, "site-10": 0.2}
    assert "for its share" not in weight_rounds(summarise(**inputs))


def test_nothing_to_draw_gives_nothing(inputs):
    empty = summarise(inputs["config"], [])
    assert [draw(empty) for draw in (site_points, shared_test_points)] == ["", ""]
    assert [draw(empty) for draw in (metric_rounds, weight_rounds)] == ["", ""]


def test_loading_the_pages_does_not_load_the_drawing_library():
    code = (
        "import sys, fairflare.report.page, fairflare.report.compare_page;"
        "print([name for name in ('matplotlib', 'jinja2', 'scipy', 'torch', 'numpy', 'pandas') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
