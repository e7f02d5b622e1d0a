# SPDX-License-Identifier: Apache-2.0
"""A site that misses a deadline is left out, costs no second one, and comes back with its state when it answers."""

import dataclasses

import pytest

from fairflare.core.schema import Answer
from fairflare.engine import loop
from fairflare.engine.audit import verify
from fairflare.engine.checkpoint import save_checkpoint
from fairflare.engine.in_process import InProcess
from fairflare.engine.straggler_policy import Participation
from helpers import initial_model, make_federation, make_sites


class Away(InProcess):
    """site-2 does not answer while the rounds' numbers are in ``rounds``; remembers who was asked for what."""

    def __init__(self, sites, rounds):
        super().__init__(sites)
        self.rounds, self.asked = rounds, []

    def exchange(self, instructions):
        first = next(iter(instructions.values()))
        self.asked.append((first.round.number, {site: one.task for site, one in instructions.items()}))
        training = any(one.task == "train" for one in instructions.values())
        for answer in super().exchange(instructions):
            if not (training and answer.site == "site-2" and first.round.number in self.rounds):
                yield answer


def rounds_of(folder):
    return [e for e in verify(folder / "audit.jsonl") if e["event"] == "round"]


def test_an_absent_site_is_invited_and_trains_again_once_it_answers(tmp_path):
    sites = make_sites(3)
    transport = Away(sites, rounds=(2, 3))
    make_federation(tmp_path, transport, rounds=5).run(initial_model())
    tasks = {number: asked for number, asked in transport.asked if "train" in asked.values()}
    assert [tasks[n]["site-2"] for n in range(1, 6)] == ["train", "train", "preflight", "preflight", "train"]
    entries = rounds_of(tmp_path)
    codes = [e["rejected"].get("site-2", {}).get("code") for e in entries]
    assert codes == [None, "no_answer", "absent", "absent", None]
    assert "no answer since round 2" in entries[2]["rejected"]["site-2"]["detail"]
    assert set(entries[4]["accepted"]) == {"site-1", "site-2", "site-3"} and not entries[4]["rejected"]


def test_every_site_is_told_which_of_its_rounds_counted_last(tmp_path, monkeypatch):
    """Also by a server that died before the checkpoint of a round was written, and repeats it."""
    told = []

    class Asking(Away):
        def exchange(self, instructions):
            found = {site: one for site, one in instructions.items() if one.task == "train"}
            told.extend((one.round.number, site, one.counted) for site, one in sorted(found.items()))
            yield from super().exchange(instructions)

    def go(rounds):
        make_federation(tmp_path, Asking(make_sites(3), rounds=(2,)), rounds=rounds).run(initial_model())

    def die(path, checkpoint):
        if checkpoint.round == 4:
            raise KeyboardInterrupt
        save_checkpoint(path, checkpoint)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "save_checkpoint", die)
        go(5)
    go(5)
    assert [t[2] for t in told if t[1] == "site-1"] == [0, 1, 2, 3, 3, 4]
    assert [t for t in told if t[1] == "site-2"] == [
        (n, "site-2", c) for n, c in ((1, 0), (2, 1), (4, 1), (4, 1), (5, 4))
    ]


def test_an_answer_to_an_invitation_is_no_contribution(tmp_path):
    transport = Away(make_sites(3), rounds=(2,))
    make_federation(tmp_path, transport, rounds=3).run(initial_model())
    assert set(rounds_of(tmp_path)[2]["accepted"]) == {"site-1", "site-3"}


def test_the_final_evaluation_does_not_wait_for_a_site_that_is_away(tmp_path):
    transport = Away(make_sites(3), rounds=(5,))
    make_federation(tmp_path, transport, rounds=5).run(initial_model())
    number, asked = transport.asked[-1]
    assert set(asked.items()) == {("site-1", "evaluate"), ("site-3", "evaluate")}
    evaluation = verify(tmp_path / "audit.jsonl")[-2]
    assert set(evaluation["sites"]) == {"site-1", "site-3"}
    assert evaluation["rejected"] == {"site-2": {"code": "absent", "detail": "no answer since round 5"}}


def test_an_error_is_an_answer():
    participation = Participation(["a", "b"])
    assert [r.code for r in participation.note(1, ["a", "b"], [Answer("a", error="x")], [], [], {})] == ["no_answer"]
    assert participation.of(["a", "b"]) == (["a"], ["b"])
    assert [r.code for r in participation.note(2, ["a"], [Answer("a")], ["b"], ["b"], {})] == ["absent"]
    assert participation.of(["a", "b"]) == (["a", "b"], [])


def test_a_site_that_is_always_slower_costs_fewer_and_fewer_deadlines():
    """It passes every preflight; an answer in time ends the row."""
    participation, trained = Participation(["a", "b"]), []
    for number in range(1, 22):
        asked, away = participation.of(["a", "b"])
        trained += [number] if "b" in asked else []
        answers = [Answer(site) for site in asked if site == "a" or number == 16]
        participation.note(number, asked, answers, away, away, {})
    assert trained == [1, 3, 6, 11, 20] and 16 not in trained


class Late(InProcess):
    """site-3 is not connected before round 3; ``change`` alters what it says of itself."""

    def __init__(self, sites, change=lambda answer: answer):
        super().__init__(sites)
        self.change, self.number = change, 0

    def sites(self):
        return [site for site in super().sites() if site != "site-3" or self.number >= 2]

    def exchange(self, instructions):
        self.number = max(self.number, next(iter(instructions.values())).round.number)
        for answer in super().exchange(instructions):
            asked = instructions[answer.site]
            yield self.change(answer) if (asked.task, answer.site) == ("preflight", "site-3") else answer


def test_a_site_that_comes_later_passes_preflight_before_it_trains(tmp_path):
    final = make_federation(tmp_path, Late(make_sites(3)), rounds=5).run(initial_model())
    entries = rounds_of(tmp_path)
    assert [sorted(e["accepted"]) for e in entries[:3]] == [["site-1", "site-2"]] * 3
    assert entries[2]["rejected"]["site-3"]["detail"] == "was not there at the start"
    assert all(set(e["accepted"]) == {"site-1", "site-2", "site-3"} for e in entries[3:])
    assert all(value.isfinite().all() for value in final.values())


def other_version(answer):
    versions = {**answer.metrics["versions"], "package_sha256": "0" * 64}
    return dataclasses.replace(answer, metrics={**answer.metrics, "versions": versions})


@pytest.mark.parametrize(
    "change, code",
    [
        (other_version, "preflight"),
        (lambda answer: dataclasses.replace(answer, metrics={}), "malformed"),
        (lambda answer: dataclasses.replace(answer, error="EXECUTION_EXCEPTION"), "site_error"),
    ],
    ids=["other version", "nothing said", "error"],
)
def test_who_does_not_pass_does_not_train(tmp_path, change, code):
    make_federation(tmp_path, Late(make_sites(3), change), rounds=5).run(initial_model())
    entries = rounds_of(tmp_path)
    assert all(set(e["accepted"]) == {"site-1", "site-2"} for e in entries)
    assert [e["rejected"].get("site-3", {}).get("code") for e in entries] == [None, None, code, code, code]
    if code == "preflight":
        assert "versions: package_sha256" in entries[3]["rejected"]["site-3"]["detail"]
