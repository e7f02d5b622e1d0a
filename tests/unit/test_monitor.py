# SPDX-License-Identifier: Apache-2.0
"""``fairflare monitor``: counts each patient once, goes on from its file, and says one line of what is wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.inference.monitor import Monitor, counted, patients_of

COLUMNS = ("outcome", "own", "used")


def write(path, n=600, shift=0.25, seed=0):
    """Patients whose own model is off by ``shift`` on average, and whose model in use is right."""
    rng = np.random.default_rng(seed)
    risk = rng.uniform(0.3, 0.7, n)
    rows = zip((rng.random(n) < risk).astype(int), np.clip(risk + shift, 0, 1).round(4), risk.round(4), strict=True)
    path.write_text("outcome,own,used\n" + "".join(f"{y},{a},{b}\n" for y, a, b in rows))
    return path


def head(path, rows, to):
    to.write_text("".join(path.read_text().splitlines(keepends=True)[: rows + 1]))
    return to


def test_looked_at_often_or_once_it_says_the_same(tmp_path):
    table = write(tmp_path / "patients.csv")
    for rows in (0, 1, 250, 250, 599, 600):
        patients = patients_of(head(table, rows, tmp_path / "part.csv"), COLUMNS)
        part, new = counted(patients, tmp_path / "often.json", 0.01)
        assert part.cases == rows
    assert new == 1
    whole, _ = counted(patients_of(table, COLUMNS), tmp_path / "once.json", None)
    assert whole == part
    assert 0 < whole.certificate.reached < 600 and not whole.alarm.reached
    assert whole.sentence().startswith("Keep the model in use")


def test_a_worse_model_in_use_raises_the_alarm(tmp_path):
    patients = [(y, b, a) for y, a, b in patients_of(write(tmp_path / "patients.csv", 900), COLUMNS)]
    found = Monitor(0.01)
    found.see(patients)
    assert found.alarm.reached and not found.certificate.reached
    assert found.sentence().startswith("Fall back to the own model")


def test_changed_or_missing_patients_are_refused_and_the_state_stays(tmp_path):
    table, state = write(tmp_path / "patients.csv", 50), tmp_path / "state.json"
    counted(patients_of(table, COLUMNS), state, 0.01)
    before = state.read_text()
    for other in (head(table, 49, tmp_path / "fewer.csv"), write(tmp_path / "others.csv", 60, seed=1)):
        with pytest.raises(UserError, match="expected the 50 that are counted"):
            counted(patients_of(other, COLUMNS), state, None)
    with pytest.raises(UserError, match="--margin: expected 0.01"):
        counted(patients_of(table, COLUMNS), state, 0.02)
    assert state.read_text() == before
    assert "outcome" not in before and len(before) < 1000


@each("cell", ["", "nan", "0.5", "yes", "2"])
def test_a_cell_that_is_no_outcome_is_named(cell, tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(f"outcome,own,used\n1,0.5,0.5\n{cell},0.5,0.5\n")
    with pytest.raises(UserError, match="outcome, row 2: expected 0 or 1"):
        patients_of(path, COLUMNS)


@each("cell", ["", "inf", "-0.1", "1.01", "x"])
def test_a_cell_that_is_no_risk_is_named(cell, tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(f"outcome,own,used\n1,0.5,{cell}\n")
    with pytest.raises(UserError, match="used, row 1: expected a risk from 0 to 1"):
        patients_of(path, COLUMNS)


@each(
    "change",
    [
        {"format": 2},
        {"margin": 0},
        {"margin": "x"},
        {"seen": 3},
        {"alarm": None},
        {"alarm": {}},
        {"certificate.bound": 5.0},
        {"certificate.cases": -1},
        {"certificate.second": "a"},
        {"alarm.cases": 4},
    ],
)
def test_a_broken_state_is_refused(change):
    content = json.loads(json.dumps(Monitor(0.01).to_json()))
    for key, value in change.items():
        outer, _, inner = key.partition(".")
        if inner:
            content[outer][inner] = value
        else:
            content[outer] = value
    with pytest.raises(UserError, match="expected"):
        Monitor.from_json(content)


def test_the_command_prints_its_sentence_or_json(tmp_path, capsys):
    table = write(tmp_path / "patients.csv", 40)
    with pytest.raises(SystemExit) as ended:
        main(["monitor", str(table)])
    assert ended.value.code == 0
    assert "Not settled after 40 patients" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["monitor", str(table), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["cases"], found["new"]) == (40, 0)
    assert math.isfinite(found["alarm"]["capital"])
    with pytest.raises(SystemExit) as ended:
        main(["monitor", str(table), "--own", "mine"])
    assert ended.value.code == 2
    assert "expected a column 'mine'" in capsys.readouterr().err
