# SPDX-License-Identifier: Apache-2.0
"""A decision as a job: FLARE's simulator gives the numbers of one place; what a lying site and a curious server get."""

from __future__ import annotations

import json

import pytest

from fairflare.decision import decide
from fairflare.decision.sums import Plan
from fairflare.engine.exchanges import decide as exchange
from fairflare.engine.memory import AskedAgain
from fairflare.studies.join import Question, measure, measure_by_job
from own_folder import write_tables

SITES = ("east", "inner", "north", "south", "west")


LIAR = """
import numpy as np
from fairflare.decision import decide, sums

honest = decide.Site.terms


def lying(self, known):
    part = np.array(honest(self, known))
    if self.name == "west" and known.next == {place}:
        part[{terms}] = 1e7
    return part.tolist()


decide.Site.terms = lying
"""
LIES = {
    "more weight than its patients have": ("sums.SCALES", ": len(known.plan.estimands)"),
    "many patients at all others": ("0", "3 : 3 + len(known.names)"),
}
"""Without a check the first speaks for all others, and the second has them all left out."""


def question_on(folder, sites=SITES):
    values = {"datalists": str(folder), "site_names": ",".join(sites), "labels": "lived,died", "label": "outcome"}
    return Question("tabular", plan=Plan(2, 1), choices={"values": {**values, "features": "age,score"}})


@pytest.mark.parametrize("place, terms", [*LIES.values()], ids=list(LIES))
def test_a_site_that_lies_in_its_sums_is_left_out(place, terms, tmp_path, monkeypatch):
    folder = write_tables(tmp_path / "tables", SITES)
    expected = measure(question_on(folder, SITES[:4]), tmp_path / "local")["sites"]
    monkeypatch.setattr(decide.Site, "terms", decide.Site.terms)  # what the plugin changes ends with this test
    (tmp_path / "liar.py").write_text(LIAR.format(place=place, terms=terms))
    monkeypatch.setenv("FAIRFLARE_PLUGINS", str(tmp_path / "liar.py"))
    found = measure_by_job(question_on(folder), tmp_path / "job")
    assert found["hospitals"] == list(SITES[:4]) == list(found["sites"])
    assert {site: row["verdict"] for site, row in found["sites"].items()} == {
        site: row["verdict"] for site, row in expected.items()
    }


def test_a_server_that_makes_all_sums_a_third_time_gets_nothing(tmp_path, monkeypatch):
    made = []

    def thrice(self, ended):
        for _ in range(3):
            made.append(self._sums(ended, dict(ended.models))[0])

    monkeypatch.setattr(exchange.DecideAtServer, "run", thrice)
    with pytest.raises(AskedAgain):
        measure_by_job(question_on(write_tables(tmp_path / "tables", SITES)), tmp_path / "job")
    assert len(made) == 2 and None not in made


def test_the_simulator_gives_the_numbers_of_one_place(tmp_path):
    """In secret, where each hospital makes its own answer; test_deploy_provisioned.py has sums that are seen."""
    folder = write_tables(tmp_path / "tables", SITES)
    question = question_on(folder)
    expected = measure(question, tmp_path / "local")
    found = measure_by_job(question, tmp_path / "sim", env="sim", secure=True)
    assert found["sites"] == {}
    kept = (tmp_path / "sim" / "run").rglob("*.decision.json")
    rows = {site: row for path in kept for site, row in json.loads(path.read_text())["sites"].items()}
    assert set(rows) == set(SITES)
    for site, row in expected["sites"].items():
        assert rows[site]["sentence"] == row["sentence"]
        for key, numbers in row["estimands"].items():
            assert rows[site]["estimands"][key] == pytest.approx(numbers, abs=1e-6), (site, key)
    for key, one in expected["averages"].items():
        assert found["averages"][key] == pytest.approx(one, abs=1e-6)
