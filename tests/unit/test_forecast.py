# SPDX-License-Identifier: Apache-2.0
"""The forecast for a hospital outside: what travels, what is told of it, and that it says where it cannot tell."""

import json

import numpy as np
import pytest
from scipy.special import expit

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.functional.decision import UNCLEAR
from fairflare.studies import forecast
from fairflare.studies.forecast import METHOD, Calibration
from fairflare.studies.study import config_of
from own_folder import write_tables

SITES = tuple(f"h{k}" for k in range(6))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """An own model that takes no time: what it is has tests of its own."""
    monkeypatch.setattr(forecast, "own_risks", lambda x, y, new, patients=None: (expit(new[:, 0]), "regression"))


@pytest.fixture
def joined(tmp_path_factory):
    """The folder of a join as far as a forecast looks at it, and a table of a hospital that is not in."""

    def made(methods=(METHOD,), sites=SITES, fold="glm-fold0of2-deal0"):
        tmp_path = tmp_path_factory.mktemp("forecast")
        options = {"task.datalists": str(write_tables(tmp_path / "data", sites)), "task.site_names": ",".join(sites)}
        options |= {"task.labels": "lived,died", "task.label": "outcome", "task.features": "age,score"}
        config = config_of(METHOD, "tabular", 0, {"rounds": 2, "values": options}, draw=False)
        (tmp_path / "join" / fold).mkdir(parents=True)
        (tmp_path / "join" / "join.json").write_text(json.dumps({"methods": list(methods), "folds": 2}))
        (tmp_path / "join" / fold / "config.json").write_text(json.dumps(config.to_json()))
        return tmp_path / "join", write_tables(tmp_path / "far", (*sites, "new")) / "new.csv"

    return made


def say(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    told = capsys.readouterr()
    return stop.value.code, told.out, told.err


def test_both_sides_are_told_the_same_and_means_over_all_patients_travel(joined, capsys):
    folder, table = joined()
    code, out, _ = say(capsys, "join-forecast", folder)
    question = json.loads((folder / "forecast.json").read_text())
    assert code == 0 and "over 6 hospitals" in out and "International Stroke Trial" in out
    assert str(folder.parent) not in (folder / "forecast.json").read_text(), "no path goes to another hospital"
    assert question["run"]["options"].get("datalists", "") == ""
    code, there, _ = say(capsys, "join-forecast", folder / "forecast.json", table, "--json")
    answer = json.loads(table.with_name("new.forecast.json").read_text())
    assert code == 0 and set(answer) == {"n", "candidates"} and answer["n"] == 80
    assert {name: set(row) for name, row in answer["candidates"].items()} == dict.fromkeys(
        (METHOD, METHOD + " + intercept"), {"benefit", "low", "high"}
    )
    assert all(v == float(f"{v:.3e}") for row in answer["candidates"].values() for v in row.values())
    code, here, _ = say(capsys, "join-forecast", folder, table.with_name("new.forecast.json"), "--json")
    assert code == 0 and json.loads(here) == json.loads(there)


def test_what_is_told_follows_the_federations_own_hospitals(joined):
    """A forecast that says nothing of what came true cannot be told; one that does is drawn to what came true."""
    folder, table = joined()
    question, rng = forecast.ask(folder), np.random.default_rng(0)
    found, _ = forecast.answer(question, table)
    found["candidates"] = {METHOD: {"benefit": 0.08, "low": 0.05, "high": 0.11}}
    said = np.linspace(0.02, 0.1, 12)
    told = np.stack([said, said - 0.01, said + 0.01], axis=1)
    for realised, verdict in ((rng.normal(0, 0.05, 12), UNCLEAR), (said / 2 + rng.normal(0, 1e-3, 12), "gains")):
        question["calibration"] = {METHOD: Calibration.of(realised, told)._asdict()}
        row = forecast.tell(question, found)[METHOD]
        assert row["verdict"] == verdict and row["low"] < row["benefit"] < row["high"]
    assert row["benefit"] == pytest.approx(0.04, abs=2e-3)
    question["calibration"] = {}
    assert forecast.tell(question, found)[METHOD]["verdict"] == UNCLEAR


def test_the_calibrated_interval_holds_a_further_hospital_in_95_percent():
    rng, held = np.random.default_rng(1), []
    for _ in range(800):
        x = rng.normal(0.02, 0.02, 9)
        y = 0.01 + 0.3 * x + rng.normal(0, 0.01, 9)
        _, low, high, _ = Calibration.of(y[:8], np.stack([x, x, x], axis=1)[:8]).expect(x[8])
        held.append(low <= y[8] <= high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.025)


@each(
    "change, text",
    [
        ({"methods": ("fedavg", "ditto")}, "exact regression alone"),
        ({"fold": "fold0"}, "patients on this machine"),
        ({"sites": SITES[:3]}, "at least 4 hospitals"),
    ],
)
def test_what_cannot_be_forecast_is_refused_in_one_line(change, text, joined, capsys):
    code, _, said = say(capsys, "join-forecast", joined(**change)[0])
    assert code == 2 and text in said and said.count("\n") == 1


def test_few_patients_and_strange_files_are_refused(joined, tmp_path):
    folder, table = joined()
    question = forecast.ask(folder)
    lines = table.read_text().splitlines(keepends=True)
    (few := tmp_path / "few.csv").write_text("".join(lines[:30]))
    with pytest.raises(UserError, match="too few patients to tell, expected at least 30"):
        forecast.answer(question, few)
    assert not (tmp_path / "few.forecast.json").exists()
    _, path = forecast.answer(question, table)
    found = json.loads(path.read_text())
    for wrong in ({"n": 80}, {**found, "candidates": {"other": {}}}, {**found, "candidates": {METHOD: {"benefit": 1}}}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(UserError, match="expected"):
            forecast.read(path, "n")
