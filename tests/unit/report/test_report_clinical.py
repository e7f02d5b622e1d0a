# SPDX-License-Identifier: Apache-2.0
"""What the report makes of the sites' released sums: curves, shares with intervals, groups, and what it draws."""

import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fairflare.engine.after.base import Cases
from fairflare.engine.clinical import ClinicalAtSite, View
from fairflare.functional import calibration as maths
from fairflare.report.clinical import QUANTITIES, clinical_section, per_thousand
from fairflare.report.clinical import clinical_figures as site_figures

SEXES = View(cells=("female", "male"), of_group=(0, 1))
ABOUT = {"classes": ["alive", "dead"], "clinical": {"event": "dead", "threshold": 0.5}}


def clinical_quantities(run):
    return {one.name: one.value(run) for one in QUANTITIES}


LINE = (0.4, 0.7)
"""Intercept and slope of what the cases were drawn with."""


def drawn(n, seed, members):
    generator = np.random.default_rng(seed)
    z = generator.normal(-0.3, 1.5, n)
    outcomes = generator.random(n) < 1 / (1 + np.exp(-(LINE[0] + LINE[1] * z)))
    outputs = torch.tensor(np.stack([np.zeros(n), z], axis=1))
    return Cases(outputs, torch.tensor(outcomes.astype(np.int64)), torch.tensor(members))


def risks_of(cases):
    return cases.outputs.softmax(1)[:, 1].numpy(), cases.targets.numpy().astype(float)


def line(risks):
    return 1 / (1 + np.exp(-(LINE[0] + LINE[1] * np.log(risks / (1 - risks)))))


@pytest.fixture(scope="module")
def cases():
    return {f"site-{k}": drawn(n, k, members=np.arange(n) % 2) for k, n in enumerate((300, 120, 14))}


@pytest.fixture(scope="module")
def section(cases):
    sites = {name: ClinicalAtSite(SEXES, 10) for name in cases}
    before = {name: {"clinical": site.of_model(cases[name])} for name, site in sites.items()}
    after = {}
    for name, site in sites.items():
        moved = line(risks_of(cases[name])[0])
        after[name] = site.after(cases[name], np.stack([1 - moved, moved], axis=1), None)
    fits = dict.fromkeys(cases, {"own.intercept": LINE[0], "own.slope": LINE[1]})
    record = {"step": "recalibrate", "sites": fits, "clinical": after}
    trail = SimpleNamespace(evaluation={"sites": before}, after={"recalibrate/site/val": record})
    return clinical_section(trail, {"min_count": 10, "after": "recalibrate"}, ABOUT, sorted(cases))


def test_curves_are_those_of_the_patients(cases, section):
    """Within the rounding of what is released."""
    row = next(row for row in section["rows"] if row["site"] == "site-0")
    risks, outcomes = risks_of(cases["site-0"])
    for stage, now in (("before", risks), ("after", line(risks))):
        starts = maths.merged(risks, outcomes, 10)
        bins = maths.coarser(maths.binned(now, outcomes, starts, maths.cell_of(risks)))
        assert [p["risk"] for p in row[stage]["curve"]] == pytest.approx(bins.risk / bins.n, abs=1e-3)
        assert [p["share"] for p in row[stage]["curve"]] == pytest.approx(bins.positives / bins.n)
        for point in row[stage]["decisions"]:
            t = point["threshold"]
            each = np.where(now >= t - 1e-9, np.where(outcomes == 1, 1.0, -t / (1 - t)), 0.0)
            assert point["net_benefit"] == pytest.approx(each.mean(), abs=1e-9)
            assert point["all"] == pytest.approx(np.where(outcomes == 1, 1.0, -t / (1 - t)).mean())


def test_shares_are_those_of_the_patients(cases, section):
    row = next(row for row in section["rows"] if row["site"] == "site-1")
    risks, outcomes = risks_of(cases["site-1"])
    flags, ill = risks >= 0.5, outcomes == 1
    rates = row["before"]["rates"]
    assert rates["sensitivity"]["value"] == pytest.approx(flags[ill].mean())
    assert rates["specificity"]["value"] == pytest.approx((~flags[~ill]).mean())
    assert rates["ppv"]["value"] == pytest.approx(ill[flags].mean())
    assert rates["npv"]["value"] == pytest.approx((~ill[~flags]).mean())
    assert all(rate["low"] < rate["value"] < rate["high"] for rate in rates.values())


def test_sites_and_groups_are_summed_up(section):
    rows = {row["site"]: row["after"] for row in section["rows"]}
    worst = max(rows, key=lambda site: abs(rows[site]["calibration"]["value"]))
    found = section["summary"]["after"]["calibration"]
    assert found["worst_site"] == worst and found["worst"] == abs(rows[worst]["calibration"]["value"])
    assert section["in_use"] == "after"
    quantities = clinical_quantities({"clinical": section})
    assert quantities["calibration_worst"] == found["worst"] and quantities["brier_mean"] > 0.1
    female = section["groups"][0]
    cells = [cell["before"] for cell in section["cells"] if cell["group"] == "female"]
    assert female["group"] == "female" and female["n"] == sum(cell["n"] for cell in cells)
    weighted = sum(cell["n"] * cell["brier"]["value"] for cell in cells) / female["n"]
    assert female["before"]["brier"] == pytest.approx(weighted)


def test_a_step_that_the_run_did_not_ask_for_is_not_in_use(section, cases):
    trail = SimpleNamespace(
        evaluation={"sites": {}},
        after={"x": {"step": "recalibrate", "sites": {}, "clinical": {"site-0": {"n": 40.0, "calibration": 0.1}}}},
    )
    found = clinical_section(trail, {"min_count": 10}, ABOUT, ["site-0"])
    assert found["in_use"] == "before" and clinical_quantities({"clinical": found})["calibration_worst"] is None


def test_a_log_without_any_has_no_section():
    trail = SimpleNamespace(evaluation={"sites": {"a": {"test": {"auc": 0.5}}}}, after={})
    assert clinical_section(trail, {}, {}, ["a"]) is None
    assert clinical_quantities({"clinical": None})["ece_mean"] is None


def test_sites_with_bins_are_drawn_and_small_ones_are_not(section):
    drawn_sites = site_figures(section)
    assert len(drawn_sites) == 2 and all(svg.startswith("<svg") for svg in drawn_sites)
    assert "treat all" in "".join(drawn_sites) and "site-2" not in "".join(drawn_sites)


def test_a_point_lies_at_its_risk_and_share_and_a_site_s_name_is_text():
    point = {"risk": 0.5, "share": 0.25, "low": 0.1, "high": 0.5}
    view = {"n": 20, "positives": 5, "calibration": {"value": 0.25}, "curve": [point], "decisions": []}
    (svg,) = site_figures({"stages": ["before"], "rows": [{"site": "<A&B>", "before": view}]})
    root = ET.fromstring(svg)
    (axes, *_) = root.findall("g")  # 112 wide and high, from the top
    paths = [path.attrib["d"] for path in axes.findall("path")]
    assert "M56.0,100.8L56.0,56.0" in paths and any(path.startswith("M56.0,84.0m") for path in paths)
    assert root.findtext("title") == "<A&B>: risk off by +0.250" and "treat all" not in svg


def test_of_a_thousand_patients():
    """40 patients, 10 of them ill: 8 of these are flagged and 4 others, so that 26 + 8 are classified right."""
    view = {"n": 40.0, "positives": 10.0, "flagged": 12.0, "true_positives": 8.0, "rates": {"ppv": {}}}
    rows = [{"before": view, "after": view}, {"before": None, "after": None}]
    found = {"event": "1", "in_use": "before", "threshold": 0.3, "rows": rows}
    run = {"clinical": found, "task": {"classes": ["0", "1"], "options": {"label": "died"}}}
    assert per_thousand(run) == (
        "Of 1,000 test patients (of 1 of 2 sites; the others have too few) 250 have the outcome (died). "
        "A risk of 0.30 or more flags 200 of them and 100 others: 850 are classified right."
    )
    assert per_thousand({**run, "clinical": {**found, "rows": rows[:1]}}).startswith("Of 1,000 test patients 250 have")
    rows[1]["evaluated"] = False
    told = per_thousand({**run, "clinical": {**found, "rows": rows}})
    assert told.startswith("Of 1,000 test patients 250 have"), "who left is none of those that have too few"
    for change in ({"in_use": "after"}, {"event": None}, {"rows": rows[1:]}):
        assert per_thousand({**run, "clinical": {**found, **change}}) == ""
