# SPDX-License-Identifier: Apache-2.0
"""Simulated free riders: what they send, what the server sees of them, who is marked, and the command."""

import json

import pytest
import torch

from command_line import call
from fairflare.core.schema import Answer, Instruction
from fairflare.core.types import Round
from fairflare_lab.studies.free_riders import DETECTORS, FIRST_STEP, Riding, marked, rate, rates, rider_of, rider_tables

SITES = ("site-1", "site-2", "site-3", "site-4")
KEYS = frozenset(("w",))


class Sites:
    """Four sites whose updates are known."""

    def sites(self):
        return list(SITES)

    def exchange(self, instructions):
        for k, site in enumerate(reversed(SITES)):
            update = {"w": torch.eye(4)[k] * (k + 1), "running": torch.ones(2)}
            yield Answer(site, round=1, update=update, n_examples=10, scalars={"loss": 0.5})


def sent(kind, rounds=2, rider="site-2"):
    """What reaches the server in each round, and what it sees; the model moves by 1 in every entry."""
    riding, found = Riding(Sites(), rider, kind, 0, KEYS), []
    for number in range(rounds):
        model = {"w": torch.full((4,), 1.0 + number), "running": torch.zeros(2)}
        told = Instruction("train", round=Round(number + 1, rounds), model=model)
        found.append({answer.site: answer for answer in riding.exchange(dict.fromkeys(SITES, told))})
    return found, riding.seen


def test_nobody_rides_where_nobody_does():
    found, seen = sent("none", rider=None)
    assert found[0]["site-4"].update["w"].tolist() == [1, 0, 0, 0] and found[1]["site-1"].update["w"][3] == 4
    assert seen[0]["norms"] == {"site-1": 4, "site-2": 3, "site-3": 2, "site-4": 1}
    assert set(seen[0]["nearest"].values()) == {0.0} and seen[0]["last_step"]["site-1"] is None
    assert seen[1]["last_step"]["site-1"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "kind, first, second",
    [("zeros", [0] * 4, [0] * 4), ("stale", [0] * 4, [1] * 4), ("copied", [0, 0, 0, 4], [0, 0, 0, 4])],
)
def test_what_a_rider_sends(kind, first, second):
    found, seen = sent(kind)
    assert [one["site-2"].update["w"].tolist() for one in found] == [first, second]
    assert found[0]["site-2"].scalars == {"loss": 0.5} and found[0]["site-1"].update["w"][3] == 4
    if kind == "stale":
        assert seen[1]["last_step"]["site-2"] == pytest.approx(1)
    if kind == "copied":
        assert seen[0]["nearest"]["site-1"] == pytest.approx(1) == seen[0]["nearest"]["site-2"]


def test_noise_is_as_long_as_the_last_step_and_repeatable():
    found, seen = sent("noise")
    assert seen[0]["norms"]["site-2"] == pytest.approx(FIRST_STEP * 2, rel=1e-5)
    assert seen[1]["norms"]["site-2"] == pytest.approx(2, rel=1e-5)
    assert found[0]["site-2"].update["running"].tolist() == [0, 0]
    again = sent("noise")[0]
    assert all(a["site-2"].update["w"].equal(b["site-2"].update["w"]) for a, b in zip(found, again))


def test_other_exchanges_are_left_alone():
    riding = Riding(Sites(), "site-2", "zeros", 0, KEYS)
    told = Instruction("evaluate", round=Round(1, 1), model={})
    answers = list(riding.exchange(dict.fromkeys(SITES, told)))
    assert answers[2].update["w"][2] == 3 and riding.seen == [] and riding.sites() == list(SITES)


def _run(notes=(), **changed):
    usual = {"weight_mean": 0.25, "data_share": 0.25, "rejected": 0, "expected": 4}
    rows = [{"site": site, **usual, **changed.get(site.replace("-", ""), {})} for site in SITES]
    return {"sites": rows, "notes": list(notes)}


def test_detectors():
    seen = sent("zeros")[1]
    notes = [{"mark_above": 3.0, "rows": [{"name": "site-1", "marked": True}, {"name": "site-2", "marked": False}]}]
    found = marked(_run(notes, site3={"weight_mean": 0.05}, site4={"rejected": 3}), seen)
    assert found == {
        "rule": ["site-1"], "weight": ["site-3"], "norm": ["site-2"], "copy": [], "stale": [], "gate": ["site-4"],
    }  # fmt: skip
    # Half of these two rounds' values are those of a first round, in which nothing is stale yet.
    assert marked(_run(), sent("stale", rounds=3)[1])["stale"] == ["site-2"]
    assert marked(_run(), seen)["rule"] is None
    assert marked(_run(), sent("copied")[1])["copy"] == ["site-1", "site-2"], "who copied whom cannot be told"
    far = [{"norms": {"a": 1.0, "b": 1.1, "c": 0.9, "d": 1.2, "e": 50.0}, "nearest": {}, "last_step": {}}]
    assert marked(_run(), far)["norm"] == ["e"]


def test_rates_count_found_and_accused():
    empty = dict.fromkeys(DETECTORS, [])
    runs = [
        {"sites": list(SITES), "rider": "site-1", "marked": {**empty, "norm": ["site-1", "site-2"], "rule": None}},
        {"sites": list(SITES), "rider": "site-2", "marked": {**empty, "norm": [], "rule": None}},
        {"sites": list(SITES), "rider": None, "marked": {**empty, "norm": ["site-3"], "rule": None}},
    ]
    found = rates(runs)
    assert (found["norm"]["found"]["count"], found["norm"]["found"]["of"]) == (1, 2)
    assert (found["norm"]["accused"]["count"], found["norm"]["accused"]["of"]) == (2, 10)
    assert found["rule"]["found"]["rate"] is None and found["copy"]["accused"]["rate"] == 0
    assert rate(1, 2)["low"] == pytest.approx(0.0945, abs=1e-3)
    assert rate(0, 10)["high"] == pytest.approx(0.2775, abs=1e-3)
    kinds = {"zeros": {"score": {"mean": 0.5, "low": None, "high": None, "n": 1}, "detectors": found}}
    (table,) = rider_tables({"methods": [{"label": "fedavg", "kinds": kinds}]})
    cells = table.rows[0].cells
    assert cells["norm-found"].words == "1 of 2" and cells["rule-found"].words == "\N{EN DASH}"


@pytest.mark.slow
def test_the_command_finds_and_goes_on(tmp_path, capsys):
    command = ["riders", "fedavg", "--task", "support2:dirichlet", "--sites", "4", "--rounds", "2", "--kinds", "zeros"]
    command += ["--set", "model=linear", "--set", "batch_size=512", "--workers", "1", "--out", tmp_path / "r"]
    code, out, err = call(capsys, *command, "--json")
    assert code == 0, err
    found = json.loads(out)
    zeros = found["methods"][0]["kinds"]["zeros"]
    assert zeros["runs"][0]["rider"] == rider_of(0, list(SITES)) and zeros["detectors"]["norm"]["found"]["rate"] == 1
    assert found["methods"][0]["kinds"]["none"]["detectors"]["norm"]["found"]["of"] == 0
    assert json.loads((tmp_path / "r" / "riders.json").read_text()) == found
    assert "Free riders under fedavg" in (tmp_path / "r" / "riders.html").read_text()
    kept, cut_short = (tmp_path / "r" / f"fedavg-{kind}-seed0" for kind in ("none", "zeros"))
    written = (kept / "model.safetensors").stat().st_mtime_ns
    rider = json.loads((cut_short / "rider.json").read_text())
    (cut_short / "rider.json").write_text(json.dumps({**rider, "finished": False}))
    code, out, _ = call(capsys, *command, "--json")
    assert code == 0 and json.loads(out) == found and (kept / "model.safetensors").stat().st_mtime_ns == written
    (cut_short / "model.safetensors").unlink()
    code, _, err = call(capsys, "resume", cut_short)
    assert code == 2 and "a free rider is simulated in it" in err, "an honest site would go on in the rider's place"


@pytest.mark.parametrize(
    "extra, message",
    [
        (("--kinds", "ghosts"), "--kinds: expected none, zeros, noise, stale, copied, repeated, got 'ghosts'"),
        (("--kinds", "repeated"), "--kinds: task support2 has no site that repeats one image"),
        (("--sites", "2", "--kinds", "zeros"), "riders: expected at least 3 sites, got 2"),
        (("--kinds", "zeros", "--set", "secure_sum=pairwise"), "secure_sum: "),
    ],
)
def test_what_cannot_be_measured_is_refused(extra, message, tmp_path, capsys):
    command = ("riders", "fedavg", "--task", "support2:dirichlet", "--out", tmp_path / "r", *extra)
    code, _, err = call(capsys, *command)
    assert code == 2 and message in err and not (tmp_path / "r").exists()
