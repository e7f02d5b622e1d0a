# SPDX-License-Identifier: Apache-2.0
"""Solo: models of the sites' own through gate, checkpoint, report and a kill."""

import json
import sys
from pathlib import Path

import torch

from fairflare.aggregators.fedavg import Solo
from fairflare.core.types import Info, Reply, Round
from fairflare.report.write import write_report
from fairflare.testing import check_method, check_rule

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))
from runs import bits, interrupted, run  # noqa: E402

VALUES = {"n_sites": 3, "batch_size": 64, "lr": 0.01}


def test_by_hand():
    """Sites with 30 and 10 examples, first at the shared model and then each at its own."""
    replies = [Reply(f"site-{k}", {"w": torch.tensor([v])}, n) for k, v, n in ((0, 1.0, 30), (1, -1.0, 10))]
    first = Solo().aggregate({"w": torch.zeros(1)}, replies, {}, Info(Round(1, 2)))
    assert [own["w"].item() for own in first.models.values()] == [1, -1] and first.model["w"].item() == 0.5
    again = Solo().aggregate(first.model, replies, {}, Info(Round(2, 2), models=first.models))
    assert [own["w"].item() for own in again.models.values()] == [2, -2] and again.model["w"].item() == 1.0


def test_the_kit():
    check_method("solo")
    check_rule("solo")


def test_a_site_learns_nothing_of_the_others(tmp_path):
    """Its results are those of a run of its own, whoever else is there."""
    both = bits(run("solo", tmp_path / "both", VALUES))["results"]
    fewer = bits(run("solo", tmp_path / "fewer", {**VALUES, "leave_out": "site-3"}))["results"]
    for site in ("site-1", "site-2"):
        assert both[site]["personal"]["test"] == fewer[site]["personal"]["test"]
        assert both[site]["test"] != fewer[site]["test"]
    assert "personal" not in fewer["site-3"]


def test_killed_and_continued_it_is_the_same(tmp_path, monkeypatch):
    whole = bits(run("solo", tmp_path / "whole", VALUES))
    assert whole == bits(interrupted("solo", tmp_path / "killed", VALUES, monkeypatch))


def test_the_report_shows_both_models(tmp_path):
    write_report(run("solo", tmp_path / "run", VALUES))
    sites = json.loads((tmp_path / "run" / "report.json").read_text())["sites"]
    found = bits(tmp_path / "run")["results"]
    assert {site: row["personal_metrics"] for site, row in sites.items()} == {
        site: own["personal"]["test"] for site, own in found.items()
    }
    assert "ersonal model" in (tmp_path / "run" / "report.html").read_text()
