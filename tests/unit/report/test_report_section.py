# SPDX-License-Identifier: Apache-2.0
"""A section is one object: the page shows it, and its records are a table of the report's own rows."""

from types import ModuleType

import pytest

from fairflare.report import sections as registered
from fairflare.report.frames import csv_text, shown
from fairflare.report.page import render_run
from fairflare.report.section import Section
from fairflare.report.sections import sections
from fairflare.report.values import Estimate


@pytest.fixture
def seen(monkeypatch):
    """A section of a plugin, whose table names a site's worst round."""

    def worst_rounds(run):
        least = min(row["metric"]["site-1"] for row in run["rounds"])
        rows = [{"Site": "site-1", "Least": Estimate(least, digits=1)}]
        return [shown(rows, "Least value: of <each> site.", worst=["site-1"])]

    module = ModuleType("plugin")
    module.SEEN = Section("least", "Least values", tables=worst_rounds, sentence=lambda run: ["Of the first round."])
    found = (*registered.own(), module)
    monkeypatch.setattr(registered, "own", lambda: found)


def test_a_section_of_a_plugin_is_on_the_page(seen, summary, self_contained):
    html = render_run(summary)
    self_contained(html)
    assert '<section id="least">' in html and "<p>Of the first round.</p>" in html and "of &lt;each&gt; site." in html
    assert '<tr class="worst"><th scope="row" class="long">site-1</th><td class="n">0.6</td></tr>' in html


def test_every_section_has_an_anchor_of_its_own(summary):
    found = sections()
    assert len(found) > 12 and [one.id for one in found.values()] == list(found)
    assert [row["value"] for row in found["sites"].rows(summary)] == [0.9, 0.8, 0.6]


def test_a_number_prints_itself():
    one = {"mean": 0.8123, "low": 0.7, "high": 0.9, "sd": 0.01, "n": 3}
    assert str(Estimate.of(one)) == "0.812 [0.700, 0.900]" and str(Estimate.of(one, sd=True)) == "0.812 ± 0.010"
    assert str(Estimate.of({**one, "mean": -0.5}, signed=True, digits=2)) == "−0.50 [+0.70, +0.90]"
    assert str(Estimate(None)) == "–" and Estimate(0.5, 0.4).ends() == ""


def test_a_frame_is_printed_rounded_and_kept_whole():
    rows = [{"Name": "=1", "Value": Estimate(0.12345, digits=2)}, {"Name": "x", "Value": None}, {"Name": "y"}]
    assert [row["cells"] for row in shown(rows, "Three rows.")["rows"]] == [
        [("0.12", "", False)],
        [("–", "", False)],
        [("", "", False)],
    ]
    assert csv_text(["a", "b"], [["=1", 0.12345], ["x", None]]).splitlines()[1:] == ["'=1,0.12345", "x,"]
