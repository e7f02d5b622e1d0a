# SPDX-License-Identifier: Apache-2.0
"""Shared and personal models side by side.

Hand-derived: the personal models get 0.7, 0.9 and 0.8 where the shared one gets 0.9, 0.8 and 0.6: means 0.8 and
2.3 / 3.
"""

import pytest

from fairflare.report import figures, words
from fairflare.report.page import render_run
from fairflare.report.schema import report_json
from fairflare.report.summary import summarise

OWN = {"site-1": 0.7, "site-2": 0.9, "site-10": 0.8}


@pytest.fixture
def personal_inputs(inputs):
    for site, splits in inputs["entries"][-2]["sites"].items():
        splits["personal"] = {split: {"balanced_accuracy": OWN[site]} for split in ("val", "test")}
    return inputs


def test_the_two_stand_side_by_side(personal_inputs):
    found = summarise(**personal_inputs)["personal"]
    assert [row["site"] for row in found["rows"]] == list(OWN)
    assert [row["difference"] for row in found["rows"]] == pytest.approx([-0.2, 0.1, 0.2])
    assert (found["personal"]["mean"], found["shared"]["mean"]) == pytest.approx((0.8, 2.3 / 3))
    assert found["personal"]["worst"] == {"site": "site-1", "value": 0.7}


def test_the_page_shows_them_and_the_first_paragraph_says_so(personal_inputs, self_contained):
    summary = summarise(**personal_inputs)
    html = render_run(summary)
    self_contained(html)
    first = words.opening(summary)[0]
    assert "With each site's own model it is 0.800 on average and 0.700 at the worst site (site-1)." in first
    assert "Shared and personal models" in html
    assert "mean over sites: shared 0.767, personal 0.800</title>" in html


def test_report_json_has_them_beside_the_shared_results(personal_inputs):
    found = report_json(summarise(**personal_inputs), personal_inputs["entries"])["sites"]["site-2"]
    assert found["personal_metrics"] == {"balanced_accuracy": 0.9} != found["metrics"]


def test_a_site_without_a_personal_model_stays_out_of_both_means(personal_inputs):
    del personal_inputs["entries"][-2]["sites"]["site-1"]["personal"]
    found = summarise(**personal_inputs)["personal"]
    assert (found["personal"]["mean"], found["shared"]["mean"]) == pytest.approx((0.85, 0.7))


def test_a_run_without_personal_models_shows_nothing_of_them(summary):
    assert summary["personal"] is None and figures.personal_points(summary) == ""
    assert "ersonal model" not in render_run(summary)
