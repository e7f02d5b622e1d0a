# SPDX-License-Identifier: Apache-2.0
"""Fed-LWR's second exchange: what sites are asked, who counts when answers fail, and restarts in between."""

import dataclasses
import json

import pytest
import torch

from cases import each
from fairflare.aggregators.base import add_weighted, uniform
from fairflare.aggregators.fedlwr import FedLWR
from fairflare.core.errors import RunFailed, UserError
from fairflare.core.schema import Answer
from fairflare.core.types import Info, Outline
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors
from fairflare.engine.gate import Gate
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.loop import Federation
from fairflare.engine.memory import SiteMemory
from fairflare.engine.setup.parts import chosen_probes
from fairflare.engine.straggler_policy import EarlyEnd
from fairflare.probes.cka import LayerSimilarity
from fairflare.trainers.base import PlainTrainer
from helpers import initial_model, make_sites, small_network

PROBE = LayerSimilarity()


@pytest.mark.parametrize("scope", ["layers", "last_encoder"])
def test_a_network_without_layers_is_refused_before_anything_starts(scope):
    network, probe = torch.nn.Linear(2, 2), LayerSimilarity(scope=scope)
    with pytest.raises(UserError, match="rule FedLWR: expected a network with layers to compare, got none"):
        chosen_probes(FedLWR(scope=scope), [probe], Outline(network.state_dict(), (), 2), PlainTrainer())
    inner = Outline(torch.nn.Sequential(network).state_dict(), (), 2)
    assert chosen_probes(FedLWR(scope=scope), [probe], inner, PlainTrainer()) == (probe,)


class Spoiling(InProcess):
    """Changes one site's answers to "compare"."""

    def __init__(self, sites, spoil, site="site-2"):
        super().__init__(sites)
        self.spoil, self.site, self.seen = spoil, site, []

    def exchange(self, instructions):
        self.seen += [(name, i.task) for name, i in instructions.items()]
        for answer in super().exchange(instructions):
            if instructions[answer.site].task == "compare" and answer.site == self.site:
                yield from self.spoil(answer)
            else:
                yield answer


def federation(folder, transport, min_sites=2, rounds=2):
    trainable = frozenset(n for n, _ in small_network().named_parameters())
    gate = Gate(trainable, anchored=PROBE.scalars(Outline(initial_model())))
    return Federation(FedLWR(), gate, transport, rounds, min_sites, folder)


def sites(count=3):
    return make_sites(count, trainer=PlainTrainer(), probes=(PROBE,))


def rounds(folder):
    return [e for e in verify(folder / "audit.jsonl") if e["event"] == "round"]


def test_both_exchanges_happen_and_scores_arrive(tmp_path):
    transport = Spoiling(sites(), lambda answer: [answer])
    federation(tmp_path, transport).run(initial_model())
    tasks = [task for name, task in transport.seen if name == "site-1"]
    assert tasks == ["preflight", "train", "compare", "train", "compare", "evaluate"]
    for entry in rounds(tmp_path):
        assert set(entry["accepted"]["site-1"]["scalars"]) == {f"similarity/{k}" for k in "014"}
        assert "compare" in entry["site_seconds"]["site-1"] and "train" in entry["site_seconds"]["site-1"]


SPOILT = {
    "silent": (lambda a: [], "no_answer"),
    "stale": (lambda a: [dataclasses.replace(a, round=7)], "stale"),
    "nan": (lambda a: [dataclasses.replace(a, scalars={"similarity/0": float("nan")})], "scalar_nonfinite"),
    "range": (lambda a: [dataclasses.replace(a, scalars={"similarity/0": 1.5})], "scalar_range"),
    "unknown": (lambda a: [dataclasses.replace(a, scalars={"similarity/9": 0.5})], "scalar_unknown"),
    "error": (lambda a: [Answer(site=a.site, error="EXECUTION_EXCEPTION")], "site_error"),
    "text": (lambda a: [dataclasses.replace(a, scalars={"similarity/0": "0.5"})], "scalar_type"),
}


@each("case", SPOILT)
def test_a_site_without_a_good_second_answer_is_left_out_of_the_round(case, tmp_path):
    spoil, code = SPOILT[case]
    federation(tmp_path, Spoiling(sites(), spoil)).run(initial_model())
    first, second = rounds(tmp_path)
    # A silent site is not asked in the next round, nobody waits for it a second time.
    assert first["rejected"]["site-2"]["code"] == code
    assert second["rejected"]["site-2"]["code"] == ("absent" if case == "silent" else code)
    for entry in (first, second):
        assert set(entry["weights"]) == {"site-1", "site-3"} and sum(entry["weights"].values()) == pytest.approx(1)


def test_too_few_second_answers_end_the_run_with_the_last_good_model(tmp_path):
    with pytest.raises(RunFailed, match="round 1: 2 accepted sites, 3 needed; site-2: no_answer"):
        federation(tmp_path, Spoiling(sites(), lambda a: []), min_sites=3).run(initial_model())
    assert model_hash(read_tensors(tmp_path / "model.safetensors")) == model_hash(initial_model())


def test_a_second_answer_twice_counts_once(tmp_path):
    for name, spoil in (("once", lambda a: [a]), ("twice", lambda a: [a, a])):
        (tmp_path / name).mkdir()
        federation(tmp_path / name, Spoiling(sites(), spoil)).run(initial_model())
    once, twice = (rounds(tmp_path / name)[-1]["model_sha256"] for name in ("once", "twice"))
    assert once == twice


def test_a_missing_similarity_stands_at_the_mean_of_the_others(tmp_path):
    def drop(answer):
        return [dataclasses.replace(answer, scalars={k: v for k, v in answer.scalars.items() if k != "similarity/0"})]

    federation(tmp_path, Spoiling(sites(), drop), rounds=1).run(initial_model())
    weights = rounds(tmp_path)[0]["notes"]["layer_weights"]["0"]
    assert weights["site-2"] == pytest.approx(1 / 3)


class Restarting(InProcess):
    """Every exchange meets freshly started sites, which know what their files hold."""

    def __init__(self, folder):
        super().__init__(sites())
        self.folder = folder

    def exchange(self, instructions):
        started = {
            name: dataclasses.replace(site, memory=SiteMemory(self.folder / f"{name}.safetensors"))
            for name, site in sites().items()
        }
        return InProcess(started).exchange(instructions)


def test_sites_may_restart_between_the_exchanges(tmp_path):
    plain, restarted = tmp_path / "plain", tmp_path / "restarted"
    for folder, transport in ((plain, InProcess(sites())), (restarted, Restarting(tmp_path / "memories"))):
        folder.mkdir()
        federation(folder, transport).run(initial_model())
    assert rounds(plain)[-1]["model_sha256"] == rounds(restarted)[-1]["model_sha256"]


def test_a_site_that_lost_its_model_says_so():
    fresh = sites()["site-1"]
    from fairflare.core.schema import Instruction
    from fairflare.core.types import Round

    with pytest.raises(RuntimeError, match="no model of round 3 was kept"):
        fresh.handle(Instruction("compare", Round(3, 4), initial_model()))


def test_equal_similarities_are_the_plain_mean(tmp_path):
    from fairflare.core.types import Reply, Round

    model = initial_model()
    floats = {k: v for k, v in model.items() if v.is_floating_point()}
    replies = [
        Reply(
            f"site-{k}",
            {key: torch.full_like(v, float(k)) for key, v in floats.items()},
            10 * (k + 1),
            {f"similarity/{layer}": 0.4 for layer in "014"},
        )
        for k in range(3)
    ]
    outcome = FedLWR().aggregate(model, replies, {}, Info(Round(1, 1)))
    mean = add_weighted(model, replies, uniform([r.site for r in replies]))
    assert all(torch.allclose(outcome.model[k], mean[k]) for k in model)
    assert json.dumps(outcome.notes)


class LateInRound1(InProcess):
    """What site-2 has trained in round 1 comes after the round's end; remembers who was asked for what."""

    def __init__(self, sites):
        super().__init__(sites)
        self.asked = []

    def exchange(self, instructions):
        self.asked += [(one.round.number, site, one.task) for site, one in instructions.items()]
        late = {s for s, i in instructions.items() if (s, i.task, i.round.number) == ("site-2", "train", 1)}
        return super().exchange({s: i for s, i in instructions.items() if s not in late})


def test_a_site_that_is_late_to_train_is_shown_no_anchor_and_takes_part_in_the_next_round(tmp_path):
    transport = LateInRound1(sites())
    dataclasses.replace(federation(tmp_path, transport), early_end=EarlyEnd(2)).run(initial_model())
    shown = [(number, site) for number, site, task in transport.asked if task == "compare"]
    assert shown == [(1, "site-1"), (1, "site-3"), (2, "site-1"), (2, "site-2"), (2, "site-3")]
    first, second = rounds(tmp_path)
    assert first["rejected"]["site-2"]["code"] == "late" and set(first["accepted"]) == {"site-1", "site-3"}
    assert second["rejected"] == {} and sum(second["weights"].values()) == pytest.approx(1)
