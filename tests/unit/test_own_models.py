# SPDX-License-Identifier: Apache-2.0
"""A rule that gives each site a model of its own: what is sent, kept, judged and evaluated."""

import dataclasses
from typing import ClassVar

import pytest
import torch

from fairflare.aggregators.fedavg import FedAvg
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.types import Round
from fairflare.engine import loop
from fairflare.engine.audit import verify
from fairflare.engine.checkpoint import load_checkpoint, save_checkpoint
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from helpers import TRAINING, initial_model, make_federation, make_sites

ROUNDS = TRAINING.rounds


@dataclasses.dataclass(frozen=True)
class Own(FedAvg):
    """The shared model as in FedAvg; beside it each site keeps the one that it has just trained."""

    own_models: ClassVar[bool] = True

    def aggregate(self, model, replies, state, info):
        outcome = super().aggregate(model, replies, state, info)
        own = {}
        for reply in replies:
            sent = info.models.get(reply.site, model)
            own[reply.site] = {k: v + reply.update[k] if k in reply.update else v.clone() for k, v in sent.items()}
        return dataclasses.replace(outcome, models=own)


class Watched(InProcess):
    """Notes which model each site is sent, and lets ``late`` appear in the last round only."""

    def __init__(self, sites, late=""):
        super().__init__(sites)
        self.late, self.sent, self.number = late, [], 0

    def sites(self):
        return [site for site in super().sites() if site != self.late or self.number >= ROUNDS - 1]

    def exchange(self, instructions):
        for site, one in instructions.items():
            self.number = max(self.number, one.round.number)
            if one.task in ("train", "evaluate"):
                self.sent.append((one.task, one.round.number, site, model_hash(one.model)))
        return super().exchange(instructions)


class Dies(BaseException):
    pass


def test_each_site_is_sent_its_own(tmp_path):
    transport = Watched(make_sites())
    model = make_federation(tmp_path, transport, rule=Own()).run(initial_model())
    by_round = {t: {s: h for task, n, s, h in transport.sent if task == "train" and n == t} for t in (1, 2, 3)}
    assert len(set(by_round[1].values())) == 1 and len(set(by_round[2].values())) == 3
    kept = load_checkpoint(tmp_path / "checkpoint.safetensors").models
    evaluated = [(s, h) for task, _, s, h in transport.sent if task == "evaluate"]
    assert evaluated == [(s, model_hash(model)) for s in kept] + [(s, model_hash(own)) for s, own in kept.items()]


def test_its_own_model_is_a_site_trained_alone(tmp_path):
    """Nobody else's update is in it: three rounds of site-1 on its own end in the same bits."""
    make_federation(tmp_path / "all", rule=Own()).run(initial_model())
    alone = make_federation(tmp_path / "alone", InProcess(make_sites(1)), FedAvg(), min_sites=1).run(initial_model())
    own = load_checkpoint(tmp_path / "all" / "checkpoint.safetensors").models["site-1"]
    assert model_hash(own) == model_hash(alone)


@pytest.fixture(autouse=True)
def folders(tmp_path):
    for name in ("all", "alone"):
        (tmp_path / name).mkdir()


def test_who_comes_late_is_sent_the_shared_model(tmp_path):
    transport = Watched(make_sites(), late="site-3")
    make_federation(tmp_path, transport, rule=Own(), rounds=5).run(initial_model())
    shared = [e["model_sha256"] for e in verify(tmp_path / "audit.jsonl") if e["event"] == "round"]
    first = next((n, h) for task, n, s, h in transport.sent if task == "train" and s == "site-3")
    assert first[0] > 2 and first[1] == shared[first[0] - 2]


def test_final_results_stand_side_by_side(tmp_path):
    make_federation(tmp_path, rule=Own()).run(initial_model())
    sites = next(e for e in verify(tmp_path / "audit.jsonl") if e["event"] == "evaluation")["sites"]
    assert all(set(found["personal"]) == set(found) - {"personal"} for found in sites.values())
    own = load_checkpoint(tmp_path / "checkpoint.safetensors").models["site-2"]
    site = make_sites()["site-2"]
    site.network.load_state_dict(own)
    assert sites["site-2"]["personal"]["test"] == site.score("test")


def test_killed_and_continued_they_are_the_same(tmp_path, monkeypatch):
    make_federation(tmp_path / "all", rule=Own()).run(initial_model())
    calls, save = [], loop.save_checkpoint

    def fail_third(path, checkpoint):
        calls.append(checkpoint.round)
        if len(calls) == 3:
            raise Dies
        save(path, checkpoint)

    monkeypatch.setattr(loop, "save_checkpoint", fail_third)
    with pytest.raises(Dies):
        make_federation(tmp_path / "alone", rule=Own()).run(initial_model())
    monkeypatch.undo()
    make_federation(tmp_path / "alone", rule=Own()).run(initial_model())
    one, other = (load_checkpoint(tmp_path / name / "checkpoint.safetensors") for name in ("all", "alone"))
    assert model_hash(one.model) == model_hash(other.model)
    assert {s: model_hash(m) for s, m in one.models.items()} == {s: model_hash(m) for s, m in other.models.items()}


def test_the_log_binds_them(tmp_path):
    """A site's own model that was changed in the checkpoint is not gone on with."""
    make_federation(tmp_path, rule=Own(), rounds=2).run(initial_model())
    (tmp_path / "audit.jsonl").write_text(
        "".join(
            line
            for line in (tmp_path / "audit.jsonl").read_text().splitlines(True)
            if '"finish"' not in line and '"evaluation"' not in line
        )
    )
    (tmp_path / "model.safetensors").unlink()
    found = load_checkpoint(tmp_path / "checkpoint.safetensors")
    found.models["site-1"]["0.bias"] += 1
    save_checkpoint(tmp_path / "checkpoint.safetensors", found)
    with pytest.raises(UserError, match=r"checkpoint\.safetensors: the rule's or the gate's state"):
        make_federation(tmp_path, rule=Own(), rounds=3).run(initial_model())


def test_an_update_is_judged_against_the_model_that_was_sent():
    """A variance may fall by what the site's own model has, and by no more."""
    from fairflare.core.schema import Answer
    from helpers import make_gate

    shared, own = initial_model(), initial_model()
    own["1.running_var"] += 9
    update = {k: torch.zeros_like(v) for k, v in shared.items() if v.is_floating_point()}
    update["1.running_var"] -= 5
    answer = Answer(site="site-1", round=1, update=update, n_examples=24, steps=3)
    gate = make_gate(wanted=())
    known = ([answer], shared, 1, {}, {})
    assert gate.inspect(*known).rejections[0].code == "variance"
    assert [r.site for r in gate.inspect(*known, {"site-1": own}).replies] == ["site-1"]


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda own: own.pop("0.bias"), "for site site-1 has other entries"),
        (lambda own: own["0.bias"].fill_(float("nan")), "for site site-1 is not finite"),
    ],
)
def test_a_broken_one_ends_the_run_with_the_model_before(tmp_path, spoil, said):
    class Broken(Own):
        def aggregate(self, model, replies, state, info):
            outcome = super().aggregate(model, replies, state, info)
            if info.round.number == 2:
                spoil(outcome.models["site-1"])
            return outcome

    with pytest.raises(RunFailed, match=f"round 2: the rule's model {said}"):
        make_federation(tmp_path, rule=Broken()).run(initial_model())
    assert load_checkpoint(tmp_path / "checkpoint.safetensors").round == 1


def test_no_such_rule_has_secure_sums(monkeypatch):
    from fairflare.aggregators.fedism import FedISM
    from fairflare.engine.setup.config import make_config

    monkeypatch.setattr(FedISM, "own_models", True)
    with pytest.raises(UserError, match="fedism gives sites models of their own"):
        make_config("fedism", "support2:dirichlet", values={"secure_sum": "masks", "n_sites": 4, "min_sites": 3})


def test_rate_steps_and_known_sites_reach_the_rule(tmp_path):
    """``info`` holds what the sites' answers and the run say."""
    seen = []

    class Asking(FedAvg):
        def aggregate(self, model, replies, state, info):
            seen.append(info)
            return super().aggregate(model, replies, state, info)

    federation = make_federation(tmp_path, rule=Asking(), rounds=1)
    federation.lr = 0.05
    federation.run(initial_model())
    assert (seen[0].round, seen[0].lr, seen[0].known_sites) == (Round(1, 1), 0.05, 3)
    assert seen[0].steps == dict.fromkeys(("site-1", "site-2", "site-3"), 3)  # 24 examples in batches of 8
