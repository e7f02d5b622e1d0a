# SPDX-License-Identifier: Apache-2.0
"""What a site could do to the others through a trainer's server half, and what a bad round leaves at a site."""

import dataclasses

import pytest
import torch

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.schema import Answer, Slot, flat, wrong_tensors
from fairflare.core.types import Info, Reply, Round
from fairflare.engine.audit import verify
from fairflare.engine.checkpoint import load_checkpoint
from fairflare.engine.gate import Gate
from fairflare.engine.in_process import InProcess
from fairflare.engine.norms import TENSORS
from fairflare.engine.setup.config import make_config
from fairflare.trainers.drift_correction import CONTROL, Scaffold
from fairflare_lab.methods.feddyn import HISTORY
from runs import TASK, bits, interrupted, run

VALUES = {"n_sites": 3, "batch_size": 64, "lr": 0.01, "optimizer": "sgd"}


@pytest.fixture
def between(monkeypatch):
    """Sets what happens to site-1's instruction and site-3's answer in every round; returns the sites of the run."""
    exchange, sites = InProcess.exchange, {}

    def set_up(instruct=lambda one: one, answer=lambda one, round: one):
        def changed(self, instructions):
            sites.update(self._sites)
            training = {site for site, one in instructions.items() if one.task == "train"}
            given = {s: instruct(one) if s == "site-1" and s in training else one for s, one in instructions.items()}
            for found in exchange(self, given):
                last = found.site == "site-3" and "site-3" in training
                yield answer(found, given["site-3"].round.number) if last else found

        monkeypatch.setattr(InProcess, "exchange", changed)
        return sites

    return set_up


def rounds_of(folder):
    return [entry for entry in verify(folder / "audit.jsonl") if entry["event"] == "round"]


def loss_of(folder, personal=False):
    """The largest final loss of a site on its validation data."""
    sites = next(entry for entry in verify(folder / "audit.jsonl") if entry["event"] == "evaluation")["sites"]
    own = [found["personal"] if personal else found for found in sites.values() if "personal" in found or not personal]
    return max(one["val"]["loss"] for one in own)


def blown(one):
    """An instruction of round 2 whose model ends in nothing finite."""
    if one.round.number != 2:
        return one
    model = {key: value * 1e25 if value.is_floating_point() else value for key, value in one.model.items()}
    return dataclasses.replace(one, model=model)


def times(answer, factor):
    return dataclasses.replace(answer, update={key: value * factor for key, value in answer.update.items()})


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "fedproto", "ditto"])
def test_one_bad_model_puts_no_site_out(method, tmp_path, between):
    sites = between(instruct=blown)
    rounds = rounds_of(run(method, tmp_path / "run", VALUES, rounds=4))
    assert [set(entry["accepted"]) for entry in rounds[2:]] == [{"site-1", "site-2", "site-3"}] * 2
    assert method == "fedproto" or "not finite" in rounds[1]["rejected"]["site-1"]["detail"]
    kept = sites["site-1"].memory.before(5)
    assert kept and all(bool(v.isfinite().all()) for one in kept.values() for v in one.values()), kept


@pytest.mark.parametrize("method, own, state", [("scaffold", "control", "control"), ("feddyn", HISTORY, "drift")])
def test_a_rejected_round_leaves_nothing_at_the_site(method, own, state, tmp_path, between, monkeypatch):
    """What the server keeps stays the mean of what the sites keep, also over a kill."""
    sites = between(answer=lambda one, round: times(one, 1e6) if round in (2, 3) else one)
    folder = run(method, tmp_path / "run", VALUES, rounds=4)
    assert [sorted(entry["rejected"]) for entry in rounds_of(folder)] == [[], ["site-3"], ["site-3"], []]
    assert all(entry["rejected"]["site-3"]["code"] == "norm" for entry in rounds_of(folder)[1:3])
    found = load_checkpoint(folder / "checkpoint.safetensors").trainer[state]
    kept = [site.memory.before(5)[own] for site in sites.values()]
    for key, value in found.items():
        torch.testing.assert_close(value, sum(one[key] for one in kept) / 3, rtol=1e-4, atol=1e-6)
    assert bits(folder) == bits(interrupted(method, tmp_path / "killed", VALUES, monkeypatch, rounds=4))


def test_no_site_ends_a_run_with_a_control_change(tmp_path, between):
    """Alone with the model it would be where one accepted site is enough."""

    def evil(one, round):
        update = {key: torch.full_like(value, 0.01) for key, value in one.update.items()}
        tensors = {key: torch.full_like(value, 1e6) for key, value in one.tensors.items()}
        return dataclasses.replace(one, update=update, tensors=tensors)

    between(answer=evil)
    folder = run("scaffold", tmp_path / "run", {**VALUES, "min_sites": 1}, rounds=4)
    for entry in rounds_of(folder):
        assert set(entry["accepted"]) == {"site-1", "site-2"} and entry["rejected"]["site-3"]["code"] == "norm"
        assert "control_change: expected at most" in entry["rejected"]["site-3"]["detail"]
    assert loss_of(folder) < 0.6


def test_the_control_stays_within_what_a_site_takes():
    """Two sites do not judge each other: yet none has to refuse what it is sent, which would end the run."""
    trainer, state, slots = Scaffold(), {}, {"control/w": Slot((2,), bound=CONTROL.bound)}
    for number in range(1, 6):
        info = Info(Round(number, 9), known_sites=2)
        replies = [
            Reply(site, {"w": torch.zeros(2)}, 9, tensors={"control_change": {"w": torch.tensor(change)}})
            for site, change in (("site-1", [0.5, 0.5]), ("site-2", [1e6, -1e6]))
        ]
        state = trainer.collect({}, replies, state, info)
        assert wrong_tensors(flat(trainer.tensors_for(state, "site-1", info)), slots) is None, number


@pytest.mark.parametrize("share", ["prototypes", "both"])
@pytest.mark.parametrize("factor, rejected", [(1e4, True), (60.0, False)])
def test_no_site_ruins_the_others_models_with_prototypes(share, factor, rejected, tmp_path, between):
    def long(one, round):
        return dataclasses.replace(one, tensors={key: value * factor for key, value in one.tensors.items()})

    between(answer=long)
    folder = run("fedproto", tmp_path / "run", {**VALUES, "trainer.share": share}, rounds=4)
    for entry in rounds_of(folder):
        assert set(entry["accepted"]) >= {"site-1", "site-2"} and ("site-3" in entry["rejected"]) == rejected
    assert loss_of(folder, personal=share == "prototypes") < 0.6, "of the sites that have a model of their own"


@each("trainer", ["feddyn", "scaffold", "fedproc"])
@each(
    "values, reason",
    [
        ({"rule": "median"}, "trainer {}: its server half takes up what every site sends, so that rule median would"),
        ({"rule": "multi-krum"}, "trainer {}: its server half takes up what every site sends"),
        ({"clip_updates": 1}, "clip_updates: does not bound what the server half of trainer {} takes up"),
        ({"cap_weights": 0.4}, "cap_weights: does not bound what the server half of trainer {} takes up"),
        ({"mix_updates": "krum"}, "mix_updates: does not bound what the server half of trainer {} takes up"),
    ],
    ids=["median", "multi-krum", "clip", "cap", "mix"],
)
def test_no_protection_is_promised_that_a_server_half_goes_round(trainer, values, reason):
    with pytest.raises(UserError, match=reason.format(trainer)):
        make_config("fedavg", TASK, values={**VALUES, "trainer": trainer, **values})


def test_declared_tensors_are_held_against_the_median_unless_they_are_counts():
    """One of three is seen, and the honest ones are not when it sends next to nothing; sites of two are not judged."""
    model = {"w": torch.ones(4)}
    slots = {"c/a": Slot((3,)), "c/b": Slot((3,)), "n/a": Slot((), compared=False)}
    gate = Gate(frozenset({"w"}), tensors=slots)

    def refused(*sizes, entries=("c/a", "c/b"), history=None):
        answers = [
            Answer(
                f"site-{k}", 1, {"w": torch.full((4,), 0.1)}, n_examples=9, steps=1,
                tensors={name: torch.full(slots[name].shape, float(size)) for name in entries[: 1 + (k != 2)]},
            )
            for k, size in enumerate(sizes, 1)
        ]  # fmt: skip
        return [r.site for r in gate.inspect(answers, model, 1, {}, history).rejections]

    assert refused(1, 2, 1e6) == ["site-3"] and refused(1, 2, 199) == [] and refused(1e-9, 1, 2) == []
    assert refused(1, 1e6) == [] and refused(0, 0, 5, 5) == [] and refused(1, 1, 1e6, entries=("n/a",)) == []
    joins = {TENSORS: {"c": [1.0]}}  # while the others hardly change any more
    assert refused(0.01, 0.01, 5) == ["site-3"] and refused(0.01, 0.01, 5, history=joins) == []
    assert refused(0.01, 0.01, 11, history=joins) == ["site-3"]
