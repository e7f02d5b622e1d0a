# SPDX-License-Identifier: Apache-2.0
"""A search sees validation alone, goes on where it was stopped, and tests the best settings once."""

import csv
import json
import sys

import pytest

from cases import each
from fairflare.cli.main import main
from fairflare.core.errors import UserError
from fairflare.data.tensors import TensorData
from fairflare.engine.audit import verify
from fairflare.engine.best import Choice
from fairflare.engine.setup.config import make_config
from fairflare_lab.studies.search import (
    Choices,
    Range,
    Search,
    _study,
    best_of,
    checked,
    parse_over,
    run_search,
    run_trial,
    scored,
)

OVER = {"train.lr": Range(1e-4, 1e-2, True), "rule.state": Choices(("S", "L"))}
BY_MEAN = Choice("mean", metric="auc")


def search_of(trials=2, **other):
    choices = {"rounds": 1, "sites": None, "seed": 0, "values": {}}
    return Search("fedism", "support2", OVER, trials=trials, choices=choices, **other)


def test_ranges_and_choices():
    found = parse_over(("rule.q=0.1..10:log", "epochs=1..5", "train.lr=-1..2.5", "rule.state=S, L"))
    assert found == {
        "rule.q": Range(0.1, 10, True),
        "epochs": Range(1, 5),
        "train.lr": Range(-1, 2.5),
        "rule.state": Choices(("S", "L")),
    }
    assert [str(one) for one in found.values()] == ["0.1..10:log", "1..5", "-1..2.5", "S,L"]
    assert isinstance(found["epochs"].low, int) and isinstance(parse_over(("q=1.0..5",))["q"].low, float)


@each(
    "texts, message",
    [
        ((), "--over: expected at least one setting"),
        (("q",), "--over: expected KEY=LOW..HIGH"),
        (("q=1..2", "q=3..4"), "--over: 'q' is given twice"),
        (("q=2..1",), "--over q: expected LOW below HIGH"),
        (("q=0..1:log",), "--over q: expected LOW above 0"),
        (("q=a..b",), "--over q: expected numbers on both sides"),
        (("q=1..inf",), "--over q: expected numbers on both sides"),
        (("q=1",), "--over q: expected a range or at least two different values"),
        (("q=1,1",), "--over q: expected a range or at least two different values"),
    ],
)
def test_what_cannot_be_searched_is_one_line(texts, message):
    with pytest.raises(UserError, match=message):
        parse_over(texts)


@pytest.mark.parametrize(
    "over, message",
    [
        ({"rule.qq": Range(0, 1)}, "unknown key 'rule.qq'"),
        ({"train.lr": Range(-1, 1)}, "train.lr"),
        ({"train.epochs": Range(1, 10**6)}, "epochs: expected a whole number from 1 to 10000"),
        ({"rule.state": Choices(("S", "X"))}, "rule.state: expected one of S, L"),
    ],
)
def test_both_ends_must_be_values_of_the_setting(over, message):
    with pytest.raises(UserError, match=message):
        checked(Search("fedism", "support2", over))


def test_a_script_is_not_searched():
    choices = {"values": {"script": "train.network", "site_names": "A,B"}}
    with pytest.raises(UserError, match="search: expected a task whose splits"):
        checked(Search("fedavg", "script", {"train.lr": Range(0.1, 1.0)}, choices=choices))


def test_without_optuna_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'fairflare-lab\[search\]'"):
        run_search(search_of(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_scores_are_those_of_the_validation_splits():
    sites = {"a": {"val": {"auc": 0.8}, "test": {"auc": 0.1}}, "b": {"val": {"auc": 0.6}, "test": {"auc": 0.9}}}
    log = [{"event": "evaluation", "sites": sites, "model_sha256": "x"}]
    found = {by: scored(log, Choice(by, 0.25, "auc")) for by in ("mean", "worst", "trade-off")}
    assert [found[by]["score"] for by in found] == pytest.approx([0.7, 0.6, 0.675])
    assert found["mean"]["worst_site"] == "b" and scored(log, Choice("mean", metric="auc", higher=False))["score"] < 0
    sites["a"]["personal"] = {"val": {"auc": 1.0}}
    assert [scored(log, BY_MEAN, own=own)["score"] for own in (False, True)] == pytest.approx([0.7, 0.8])
    sites["b"]["val"] = {}
    with pytest.raises(UserError, match="site b: has no auc on a validation split"):
        scored(log, BY_MEAN)


def test_the_first_of_equals_is_the_best():
    rows = [{"score": None}, {"score": 0.5, "trial": 1}, {"score": 0.5, "trial": 2}]
    assert best_of(rows)["trial"] == 1 and best_of(rows[:1]) is None


@pytest.mark.slow
def test_no_test_example_enters_a_trial(tmp_path, monkeypatch):
    """The data of a trial's sites refuse to be tested on; the log holds no test score and no shared set's."""
    read = TensorData.fixed

    def refused(self, split, *more):
        assert split != "test", "a trial looked at test examples"
        return read(self, split, *more)

    monkeypatch.setattr(TensorData, "fixed", refused)
    config = make_config("fedavg", "support2", rounds=1)
    found = run_trial(config, tmp_path / "trial", choice=BY_MEAN)
    entries = verify(tmp_path / "trial" / "audit.jsonl")
    evaluation = next(entry for entry in entries if entry["event"] == "evaluation")
    assert all(
        not site["test"] and not site["n"].get("test") and not site["groups"]["test"]
        for site in evaluation["sites"].values()
    )
    assert found["mean"] == pytest.approx(sum(s["val"]["auc"] for s in evaluation["sites"].values()) / 4)
    assert not any(entry.get("test_sets") for entry in entries) and not any(e["event"] == "scores" for e in entries)


@pytest.mark.slow
def test_a_search_goes_on_and_tests_once(tmp_path, capsys, monkeypatch):
    out = tmp_path / "out? 50%41 #1"  # a database's address would read these otherwise
    first = run_search(search_of(), out)
    study = _study(search_of(), out)
    cut_short = study.ask()
    values = {key: one.draw(cut_short, key) for key, one in OVER.items()}  # and killed
    found = run_search(search_of(trials=3), out)
    assert [row["trial"] for row in found["trials"]][:2] == [0, 1] and len(found["trials"]) == 3
    assert found["trials"][:2] == first["trials"] and found["trials"][2]["values"] == values
    with open(out / "trials.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == [row["score"] for row in found["trials"]]
    best = max(found["trials"], key=lambda row: row["score"])
    assert found["best"] == best
    report = json.loads((out / "best" / "report.json").read_text())
    assert found["test"]["mean"] == report["fairness"]["mean"]
    tested = verify(out / "best" / "audit.jsonl")
    assert next(e for e in reversed(tested) if e["event"] == "finish")["model_sha256"] == best["model_sha256"]
    page = (out / "search.html").read_text()
    assert found["command"].replace("'", "&#39;") in page and "<svg" in page and str(tmp_path) not in page
    with pytest.raises(UserError, match="holds a search with another objective"):
        run_search(search_of(objective="worst"), out)
    with pytest.raises(SystemExit) as stop:
        main([*found["command"].split()[1:], "--out", str(tmp_path / "again")])
    assert stop.value.code == 0
    again = verify(tmp_path / "again" / "audit.jsonl")
    assert next(e for e in again if e["event"] == "finish")["model_sha256"] == best["model_sha256"]
