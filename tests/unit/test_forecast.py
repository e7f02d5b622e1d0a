# SPDX-License-Identifier: Apache-2.0
"""Alone, use, or join for a hospital outside: from the federation's question and its own table."""

import json

import numpy as np
import pytest

from cases import each
from fairflare import Federation
from fairflare.cli.main import main
from fairflare.decision.decide import decide_outside
from fairflare.decision.regression import Hospital, train, updated
from fairflare.decision.sums import Plan
from fairflare.decision.verdicts import UNTOLD
from own_folder import write_tables

SITES = tuple(f"h{k}" for k in range(5))


def say(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    told = capsys.readouterr()
    return stop.value.code, told.out, told.err


@pytest.fixture
def asked(tmp_path, capsys):
    """The folder of a decision on own tables, and the table of a hospital that is not in."""
    options = {"datalists": write_tables(tmp_path / "data", SITES), "site_names": ",".join(SITES)}
    options |= {"labels": "lived,died", "label": "outcome", "features": "age,score"}
    values = [part for key, value in options.items() for part in ("--set", f"task.{key}={value}")]
    code, out, _ = say(capsys, "join", "decide", "--task", "tabular", *values, "--repeats", 2, "--out", tmp_path / "j")
    assert code == 0 and all(f"{site} (n 80): " in out for site in SITES) and "average D" in out
    return tmp_path / "j", write_tables(tmp_path / "far", (*SITES, "new")) / "new.csv"


def test_a_hospital_outside_is_answered_from_the_question_and_its_table(asked, capsys):
    folder, table = asked
    question = (folder / "question.json").read_text()
    assert str(folder.parent) not in question, "no path goes to another hospital"
    assert json.loads(question)["rows"] == 80 * len(SITES)
    before = sorted(table.parent.iterdir())
    code, out, _ = say(capsys, "join-forecast", folder / "question.json", table, "--threshold", 0.5, "--json")
    found = json.loads(out)["sites"]["outside"]
    assert code == 0 and found["patients"] == 80 and set(found["estimands"]) == {"U", "J", "D"}
    assert set(found["net_benefit"]) == {"U", "J", "D"} and sorted(table.parent.iterdir()) == before
    page = (folder / "join.html").read_text()
    assert page.count("<svg") == 1 and all(site in page for site in SITES)


def test_outside_the_others_model_is_that_of_all_who_trained():
    rng = np.random.default_rng(0)
    x = np.hstack([np.ones((400, 1)), rng.normal(size=(400, 2))])
    y = (rng.random(400) < 1 / (1 + np.exp(-x @ [0.0, 1.0, -1.0]))).astype(float)
    *others, one = (Hospital.of(x[k::5], y[k::5]) for k in range(5))
    training = train(others)
    folds = np.stack([rng.permutation(80) % 5 for _ in range(2)])
    found = decide_outside(training, 320, one, folds, Plan(5, 2))
    assessed = found.assessment
    assert assessed.outside == pytest.approx(training.coefficients) and assessed.share == pytest.approx(0.2)
    together = updated(one.x, one.y, np.ones((1, 80)), train([*others, one]).coefficients[None])[0]
    assert assessed.models["member"] == pytest.approx(together, abs=0.03)
    assert found.verdict.answer in (UNTOLD, "alone", "use", "join") and not found.by_regression


@each(
    "change, text",
    [
        ({"hessian": [[1.0]]}, "hessian: expected finite numbers of shape"),
        ({"coefficients": ["a"]}, "coefficients: expected finite numbers"),
        ({"rows": -1}, "expected what `join decide` writes"),
        ({"more": 1}, "expected keys coefficients, event"),
    ],
)
def test_another_file_than_a_question_is_refused_in_one_line(change, text, asked, capsys, tmp_path):
    folder, table = asked
    (tmp_path / "q.json").write_text(json.dumps(json.loads((folder / "question.json").read_text()) | change))
    code, _, said = say(capsys, "join-forecast", tmp_path / "q.json", table)
    assert code == 2 and text in said and said.count("\n") == 1


def test_few_patients_are_refused(asked, capsys, tmp_path):
    folder, table = asked
    (few := tmp_path / "few.csv").write_text("".join(table.read_text().splitlines(keepends=True)[:30]))
    code, _, said = say(capsys, "join-forecast", folder / "question.json", few)
    assert code == 2 and "too few patients to tell, expected at least 30" in said


def test_from_python_a_row_says_what_the_page_says(tmp_path):
    found = Federation("fedavg", "heart:full").decide(repeats=1, threshold=0.5, out=tmp_path / "d")
    content = json.loads((tmp_path / "d" / "decision.json").read_text())
    assert list(found.index) == list(content["sites"]) == ["Cleveland", "Hungary", "Switzerland", "VA"]
    assert found.loc["VA", "D_low"] < found.loc["VA", "D"] < found.loc["VA", "D_high"]
    assert found.loc["Hungary", "reason"].startswith("ca has one value at this hospital")
    assert content["refits"] == ["Cleveland", "Hungary"] and found.loc["VA", "verdict"] == "cannot be told"
