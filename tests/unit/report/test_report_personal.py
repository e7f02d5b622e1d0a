# SPDX-License-Identifier: Apache-2.0
"""Shared and personal models side by side.

Hand-derived: the personal models get 0.7, 0.9 and 0.8 where the shared one gets 0.9, 0.8 and 0.6: means 0.8 and
2.3 / 3.
"""

import copy
import html

import pytest

from fairflare.report import compare_tables as tables
from fairflare.report.compare import compare
from fairflare.report.compare_page import method_points, opening_compare, render_compare
from fairflare.report.page import render_run
from fairflare.report.personal import as_used, personal_points
from fairflare.report.summary import report_json, summarise

OWN = {"site-1": 0.7, "site-2": 0.9, "site-10": 0.8}


@pytest.fixture
def personal_inputs(inputs):
    for site, splits in inputs["entries"][-2]["sites"].items():
        splits["personal"] = {split: {"balanced_accuracy": OWN[site]} for split in ("val", "test")}
    inputs["config"]["about"]["used"] = "personal"
    return inputs


def test_the_two_stand_side_by_side(personal_inputs):
    found = summarise(**personal_inputs)["personal"]
    assert [row["site"] for row in found["rows"]] == list(OWN)
    assert [row["difference"] for row in found["rows"]] == pytest.approx([-0.2, 0.1, 0.2])
    assert (found["personal"]["mean"], found["shared"]["mean"]) == pytest.approx((0.8, 2.3 / 3))
    assert found["personal"]["worst"] == {"site": "site-1", "value": 0.7}


def test_the_page_shows_them(personal_inputs, self_contained):
    summary = summarise(**personal_inputs)
    page = render_run(summary)
    self_contained(page)
    assert "Shared and personal models" in page and "0.800 with each site" in page
    assert "mean over sites: shared 0.767, personal 0.800</title>" in page


def test_report_json_has_them_beside_the_shared_results(personal_inputs):
    found = report_json(summarise(**personal_inputs), personal_inputs["entries"])["sites"]["site-2"]
    assert found["personal_metrics"] == {"balanced_accuracy": 0.9} != found["metrics"]


def test_a_site_without_a_personal_model_stays_out_of_both_means(personal_inputs):
    del personal_inputs["entries"][-2]["sites"]["site-1"]["personal"]
    found = summarise(**personal_inputs)["personal"]
    assert (found["personal"]["mean"], found["shared"]["mean"]) == pytest.approx((0.85, 0.7))


def test_a_run_without_personal_models_shows_nothing_of_them(summary):
    assert summary["personal"] is None and personal_points(summary) == ""
    assert "ersonal model" not in render_run(summary)


@pytest.fixture
def both(inputs, personal_inputs):
    """A run without personal models, and one whose sites use theirs."""
    plain = copy.deepcopy(inputs)
    for splits in plain["entries"][-2]["sites"].values():
        del splits["personal"]
    plain["config"] |= {"method": "fedavg", "title": "FedAvg", "trainer": "sgd"}
    personal_inputs["config"] |= {"method": "ditto", "title": "Ditto", "trainer": "ditto"}
    personal_inputs["config"]["about"]["used"] = "personal"
    return [summarise(**plain), summarise(**personal_inputs)]


def test_a_comparison_shows_the_models_that_the_sites_use(both):
    found = compare(both)
    plain, own = found["methods"]
    assert (plain["mean"]["mean"], own["mean"]["mean"]) == pytest.approx((2.3 / 3, 0.8))
    assert (plain["worst"]["mean"], own["worst"]["mean"]) == (0.6, 0.7)
    assert own["shared_mean"]["mean"] == pytest.approx(2.3 / 3) and own["shared_worst"]["mean"] == 0.6
    assert plain["shared_mean"]["mean"] is None
    assert own["versus_first"]["worst"]["mean"] == pytest.approx(0.1)
    assert [row["cells"][-1][0] for row in tables.sites(found)["rows"]] == [f"{one:.3f}" for one in OWN.values()]


def test_every_place_says_whose_models_the_numbers_are(both):
    found, said = compare(both), "Of Ditto the numbers are those of each site's own model, which the site uses."
    assert said in opening_compare(found) and said in tables.results(found)["caption"]
    assert "The best balanced accuracy at the worst site: Ditto with 0.700." in opening_compare(found)
    assert said in html.unescape(render_compare(found))
    assert "of Ditto the shared model's" in tables.test_sets(found)["notes"][0]
    assert "own models where sites use such" in method_points(found)


def test_models_that_a_rule_shows_and_no_site_uses_are_not_put_in_place(personal_inputs):
    personal_inputs["config"]["about"]["used"] = "shared"
    summary = summarise(**personal_inputs)
    assert "used" not in summary and as_used(summary) is summary


def test_a_site_without_its_own_model_keeps_the_shared_results(personal_inputs):
    del personal_inputs["entries"][-2]["sites"]["site-1"]["personal"]
    shown = as_used(summarise(**personal_inputs))
    assert [row["value"] for row in shown["sites"]] == [0.9, 0.9, 0.8]
    assert shown["fairness"]["mean"] == pytest.approx(2.6 / 3) and shown["fairness"]["worst"]["site"] == "site-10"


def test_groups_are_those_of_the_models_in_use(grouped_inputs):
    for splits in grouped_inputs["entries"][-2]["sites"].values():
        cell = {"healthy, f": {"n": 20.0, "value": 0.25}, "healthy, m": {"n": 20.0, "value": 0.5}}
        splits["personal"] = {"test": {"balanced_accuracy": 0.5}, "val": {}, "groups": {"val": {}, "test": cell}}
    grouped_inputs["config"]["about"]["used"] = "personal"
    shown = as_used(summarise(**grouped_inputs))
    assert shown["groups"]["worst"] == {"group": "healthy, f", "value": 0.25}
