# SPDX-License-Identifier: Apache-2.0
"""A decision in FLARE's simulator, in the clear and with sums in secret: the numbers of one place."""

from __future__ import annotations

import json

import pytest

from fairflare.decision.sums import Plan
from fairflare.studies.join import Question, measure, measure_by_job
from own_folder import write_tables

SITES = ("east", "inner", "north", "south", "west")


@pytest.mark.parametrize("secure", [False, True])
def test_the_simulator_gives_the_numbers_of_one_place(secure, tmp_path):
    folder = write_tables(tmp_path / "tables", SITES)
    values = {"datalists": str(folder), "site_names": ",".join(SITES), "labels": "lived,died", "label": "outcome"}
    question = Question("tabular", plan=Plan(2, 1), choices={"values": {**values, "features": "age,score"}})
    expected = measure(question, tmp_path / "local")
    found = measure_by_job(question, tmp_path / "sim", env="sim", secure=secure)
    rows = found["sites"]
    if secure:
        assert rows == {}
        kept = (tmp_path / "sim" / "run").rglob("*.decision.json")
        rows = {site: row for path in kept for site, row in json.loads(path.read_text())["sites"].items()}
    assert set(rows) == set(SITES)
    for site, row in expected["sites"].items():
        assert rows[site]["sentence"] == row["sentence"]
        for key, numbers in row["estimands"].items():
            assert rows[site]["estimands"][key] == pytest.approx(numbers, abs=1e-6), (site, key)
    for key, one in expected["averages"].items():
        assert found["averages"][key] == pytest.approx(one, abs=1e-6)
