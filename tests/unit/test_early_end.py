# SPDX-License-Identifier: Apache-2.0
"""Rounds that end before every site has answered: when, who is late, and that it is asked again at once."""

import dataclasses

import pytest

from cases import each
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.schema import Answer
from fairflare.engine.audit import verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.parts import build_parts
from fairflare.engine.straggler_policy import EarlyEnd, Ending, Participation
from fairflare.studies.runs import cautions
from helpers import initial_model, make_federation, make_sites

ASKED = ["a", "b", "c", "d"]


def answers(*sites, failed=()):
    return [Answer(site) for site in sites] + [Answer(site, error="x") for site in failed]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_without_a_number_every_site_is_waited_for():
    ending = Ending(EarlyEnd(), ASKED, Clock())
    assert not ending.is_reached(answers("a", "b", "c")) and ending.is_reached(answers(*ASKED))
    assert ending.is_reached(answers("a", "b", "c", failed=["d"])), "an error is an answer"
    assert EarlyEnd().late(ASKED, answers("a", "b", "c")) == []


def test_the_grace_begins_with_the_last_answer_that_is_needed():
    clock = Clock()
    ending = Ending(EarlyEnd(2, 4.0), ASKED, clock)
    assert not ending.is_reached(answers("a"))
    clock.now = 100.0
    assert not ending.is_reached(answers("a", "b"))
    clock.now = 103.9
    assert not ending.is_reached(answers("a", "b", "c"))
    clock.now = 104.0
    assert ending.is_reached(answers("a", "b", "c"))


def test_who_has_all_answers_does_not_wait_for_the_grace_time():
    assert Ending(EarlyEnd(2, 60.0), ASKED, Clock()).is_reached(answers(*ASKED))


def test_an_error_ends_no_round_and_a_second_answer_counts_once():
    rule = EarlyEnd(2)
    assert not Ending(rule, ASKED, Clock()).is_reached(answers("a", failed=["b"]))
    assert not Ending(rule, ASKED, Clock()).is_reached(answers("a", "a", "stranger"))
    assert rule.late(ASKED, answers("a", failed=["b"])) == [], "the deadline ended it"
    assert rule.late(ASKED, answers("a", "c", failed=["b"])) == ["d"]


def test_an_answer_that_the_gate_rejects_by_itself_ends_no_round(tmp_path):
    """One site that answers at once, with anything, must not have a round end before the others' answers."""
    seen = {}

    class Watched(InProcess):
        def exchange(self, instructions):
            came = list(super().exchange(instructions))
            if next(iter(instructions.values())).task == "train":
                bad = [
                    dataclasses.replace(came[0], update={}),
                    dataclasses.replace(came[0], round=99),
                    dataclasses.replace(came[0], n_examples=10**9),
                ]
                seen.update({"good": [*map(federation.counts, came)], "bad": [*map(federation.counts, bad)]})
                ending = Ending(EarlyEnd(1), list(instructions), Clock(), federation.counts)
                assert not ending.is_reached(bad[:1]) and ending.is_reached([bad[0], came[1]])
            yield from came

    federation = make_federation(tmp_path, Watched(make_sites()), rounds=1)
    federation.run(initial_model())
    assert all(seen["good"]) and not any(seen["bad"]) and federation.counts(Answer("a"))


def test_of_fewer_sites_than_that_all_are_waited_for():
    rule = EarlyEnd(3)
    assert not rule.is_met(["a", "b"], answers("a")) and rule.is_met(["a", "b"], answers("a", "b"))


def test_who_is_late_is_still_there():
    participation = Participation(ASKED)
    found = participation.note(1, ASKED, answers("a", "b"), [], [], {}, late=["c"])
    assert [(r.site, r.code) for r in found] == [("d", "no_answer"), ("c", "late")]
    assert found[1].detail == "the round ended with the answers of 2 of 4 sites"
    assert participation.of(ASKED) == (["a", "b", "c"], ["d"])


class Slow(InProcess):
    """What site-2 says in the rounds ``slow`` comes after their end; of site-3 nothing comes in the rounds ``gone``."""

    def __init__(self, sites, slow, gone=()):
        super().__init__(sites)
        self.away = {"site-2": slow, "site-3": gone}
        self.asked = []

    def exchange(self, instructions):
        one = next(iter(instructions.values()))
        self.asked.append({site: i.task for site, i in instructions.items()})
        late = [s for s in instructions if one.task == "train" and one.round.number in self.away.get(s, ())]
        return super().exchange({site: i for site, i in instructions.items() if site not in late})


def federation(folder, transport, **changes):
    folder.mkdir(exist_ok=True)
    made = make_federation(folder, transport, rounds=4)
    return dataclasses.replace(made, **{"early_end": EarlyEnd(2), **changes})


def rounds(folder):
    return [e for e in verify(folder / "audit.jsonl") if e["event"] == "round"]


def codes(entry):
    return {site: why["code"] for site, why in entry["rejected"].items()}


def test_a_late_site_is_asked_in_every_round_and_never_invited(tmp_path):
    transport = Slow(make_sites(3), slow=(1, 2, 4))
    federation(tmp_path, transport).run(initial_model())
    assert [asked["site-2"] for asked in transport.asked] == ["preflight"] + ["train"] * 4 + ["evaluate"]
    entries = rounds(tmp_path)
    assert [codes(e) for e in entries] == [{"site-2": "late"}, {"site-2": "late"}, {}, {"site-2": "late"}]
    assert [sorted(e["accepted"]) for e in entries] == [["site-1", "site-3"]] * 2 + [["site-1", "site-2", "site-3"]] + [
        ["site-1", "site-3"]
    ]
    assert all(sum(e["weights"].values()) == pytest.approx(1) for e in entries)
    assert set(verify(tmp_path / "audit.jsonl")[-2]["sites"]) == {"site-1", "site-2", "site-3"}


def test_a_site_that_lets_the_deadline_pass_is_absent_as_ever(tmp_path):
    transport = Slow(make_sites(4), slow=(2,), gone=(2,))
    federation(tmp_path, transport, early_end=EarlyEnd(3)).run(initial_model())
    assert [codes(e) for e in rounds(tmp_path)] == [
        {},
        {"site-2": "no_answer", "site-3": "no_answer"},
        {"site-2": "absent", "site-3": "absent"},
        {},
    ]


def test_in_process_every_site_answers_and_nothing_changes(tmp_path):
    models = {}
    for name, rule in (("all", EarlyEnd()), ("two", EarlyEnd(2, 1.0))):
        models[name] = federation(tmp_path / name, InProcess(make_sites(3)), early_end=rule).run(initial_model())
        assert all(e["rejected"] == {} for e in rounds(tmp_path / name))
    assert model_hash(models["all"]) == model_hash(models["two"])


@pytest.mark.parametrize("stop", [2, 3])
def test_a_killed_run_with_late_sites_resumes_to_the_same_bits(stop, tmp_path):
    class Killed(Slow):
        def exchange(self, instructions):
            if next(iter(instructions.values())).round.number == stop:
                raise KeyboardInterrupt
            return super().exchange(instructions)

    whole = federation(tmp_path / "whole", Slow(make_sites(3), slow=(1, 3))).run(initial_model())
    with pytest.raises(KeyboardInterrupt):
        federation(tmp_path / "cut", Killed(make_sites(3), slow=(1, 3))).run(initial_model())
    again = federation(tmp_path / "cut", Slow(make_sites(3), slow=(1, 3))).run(initial_model())
    assert model_hash(again) == model_hash(whole)
    assert [codes(e) for e in rounds(tmp_path / "cut")] == [codes(e) for e in rounds(tmp_path / "whole")]


def test_too_few_good_answers_end_the_run_and_the_late_site_is_named(tmp_path):
    with pytest.raises(RunFailed, match="round 1: 2 accepted sites, 3 needed; site-2: late"):
        federation(tmp_path, Slow(make_sites(3), slow=(1,)), min_sites=3).run(initial_model())


def test_whoever_starts_such_a_run_is_told_whom_it_leaves_out():
    assert EarlyEnd().caution() == ""
    chosen = config(min_responses=4, grace=30)
    (found,) = cautions(chosen, build_parts(chosen))
    assert "ends 30 s after 4 answers" in found and "may serve them less well" in found and "\n" not in found
    assert cautions(config(), build_parts(config())) == []


def test_whoever_starts_a_run_is_told_that_its_robust_rule_protects_from_nobody():
    """By the sites that a round hears: those that are asked, or as many answers as end it."""

    def told(method="multi-krum", sites=5, **values):
        chosen = make_config(method, "support2:dirichlet", sites=sites, values=values)
        return [line for line in cautions(chosen, build_parts(chosen)) if "protects from nobody" in line]

    assert told() == told("fedavg", 4) == []
    assert told(sites=4) == told(min_responses=4, grace=30) == told(leave_out="site-5", min_sites=2)
    assert told(sites=4) == ["multi-krum protects from nobody with 4 sites: faulty=1 takes 5"]


def config(**values):
    return make_config("fedavg", "support2:dirichlet", sites=5, values=values)


@each(
    "values, message",
    [
        ({"min_responses": 6}, "min_responses: expected a whole number from min_sites, 3, to the 5 sites .* got 6"),
        ({"min_responses": 2}, "min_responses: expected a whole number from min_sites, 3, to the 5 sites .* got 2"),
        ({"min_responses": 3, "min_sites": 4}, "min_responses: expected a whole number from min_sites, 4,"),
        ({"min_responses": 4, "selector": "share", "select.share": 0.5}, "from min_sites, 2, to the 3 sites"),
        ({"min_responses": 5, "leave_out": "site-1"}, "to the 4 sites that a round asks, got 5"),
        ({"min_responses": 0}, "min_responses: expected a whole number from 1 to 10000, got 0"),
        ({"min_responses": "most"}, "min_responses: expected a whole number, got 'most'"),
        ({"min_responses": 3, "grace": -1}, "grace: expected a number from 0 to 2592000, got -1"),
        ({"grace": 5}, "grace: expected 0 without min_responses, got 5.0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(values, message):
    with pytest.raises(UserError, match=message) as error:
        config(**values)
    assert "\n" not in str(error.value)


def test_the_keys_are_choices_of_the_run_and_older_runs_keep_their_hash():
    plain, early = config(), config(min_responses="4", grace="2.5")
    assert (early.min_responses, early.grace) == (4, 2.5) and early.sha256() != plain.sha256()
    assert RunConfig.from_json(early.to_json()) == early and config(min_responses="none") == plain
    assert not {"min_responses", "grace"} & plain.to_json().keys(), "the hash would be another than before the keys"
    assert RunConfig.from_json({**plain.to_json(), "min_responses": None, "grace": 0}) == plain
