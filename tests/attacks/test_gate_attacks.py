# SPDX-License-Identifier: Apache-2.0
"""What a site could do to the model, to its own weight and to the report with an answer that the gate let pass."""

import dataclasses
import math

import pytest
import torch

from cases import each
from fairflare.aggregators.fedavg import FedAvg
from fairflare.core.errors import EgressRefused, RunFailed
from fairflare.core.manifest import all_versions
from fairflare.core.schema import Answer
from fairflare.core.types import Reply
from fairflare.engine.audit import verify
from fairflare.engine.files import read_tensors
from fairflare.engine.gate import Gate, inspect_evaluation
from fairflare.engine.hashes import model_hash
from fairflare.engine.in_process import InProcess
from fairflare.engine.preflight import inspect_preflight, refusal
from fairflare.engine.server_sums import ServerSums, Summed
from fairflare.privacy.egress import Egress
from helpers import initial_model, make_federation, make_sites

MODEL = {
    "conv.weight": torch.linspace(-1, 1, 12).reshape(3, 4),
    "bn.running_mean": torch.zeros(3),
    "bn.running_var": torch.ones(3),
    "ema": torch.ones(4),
    "bn.num_batches_tracked": torch.tensor(7),
}
GATE = Gate(frozenset({"conv.weight"}))


def update(size=0.1, **changes):
    honest = {key: torch.full_like(v, size) for key, v in MODEL.items() if v.is_floating_point()}
    return {**honest, **changes}


def verdict(*updates, history=None, gate=GATE):
    answers = [Answer(f"site-{k}", 1, u, n_examples=10, steps=1) for k, u in enumerate(updates, start=1)]
    given = {} if history is None else {"history": history}
    found = gate.inspect(answers, MODEL, 1, {}, **given)
    return [r.site for r in found.replies], {r.site: r.code for r in found.rejections}


BLOWN = {
    "running means": {"bn.running_mean": torch.full((3,), 1e30)},
    "running variances": {"bn.running_var": torch.full((3,), 1e30)},
    "other buffers": {"ema": torch.full((4,), 1e30)},
    "parameters": {"conv.weight": torch.full((3, 4), 1e6)},
}


@each("kind, honest", [(kind, n) for kind in BLOWN for n in (0, 1, 2, 4) if n < 2 or kind != "parameters"])
def test_no_entry_can_be_blown_up_whoever_else_answers(kind, honest):
    """With four others, with two, with one, and where no other answer is there to compare with."""
    accepted, rejected = verdict(*[update()] * honest, update(**BLOWN[kind]))
    assert accepted == [f"site-{k}" for k in range(1, honest + 1)]
    assert rejected == {f"site-{honest + 1}": "norm"}


@pytest.mark.parametrize("kind", BLOWN)
def test_two_of_three_that_conspire_do_not_outvote_the_third(kind):
    accepted, rejected = verdict(update(), update(**BLOWN[kind]), update(**BLOWN[kind]))
    assert accepted == ["site-1"] and rejected == {"site-2": "norm", "site-3": "norm"}


def test_a_site_is_held_against_its_own_past():
    """Both accomplices boost, so that neither stands out beside the other: their own earlier rounds tell."""
    past = {"parameters": [0.01] * 3, "running means": [0.2] * 3, "running variances": [0.2] * 3}
    past["other buffers"] = [0.2] * 3
    boosted = update(**{"conv.weight": torch.full((3, 4), 2.0)})
    history = {"site-1": past, "site-2": past}
    assert verdict(boosted, boosted) == (["site-1", "site-2"], {})
    assert verdict(boosted, boosted, history=history) == ([], {"site-1": "norm", "site-2": "norm"})


class Boosts(InProcess):
    """From round ``since`` on, ``sites`` answer to "train" with running means that they have blown up."""

    def __init__(self, sites, boosting, since=1):
        super().__init__(sites)
        self.boosting, self.since, self.seen = boosting, since, []

    def exchange(self, instructions):
        for answer in super().exchange(instructions):
            task, round = instructions[answer.site].task, instructions[answer.site].round
            if task == "train" and answer.site in self.boosting and round.number >= self.since:
                blown = {k: v + 1e30 if k.endswith("running_mean") else v for k, v in answer.update.items()}
                answer = dataclasses.replace(answer, update=blown)
            yield answer


def test_a_federation_of_three_survives_two_accomplices(tmp_path):
    final = make_federation(tmp_path, Boosts(make_sites(), ("site-2", "site-3")), FedAvg(), min_sites=1).run(
        initial_model()
    )
    rounds = [e for e in verify(tmp_path / "audit.jsonl") if e["event"] == "round"]
    assert all(set(e["weights"]) == {"site-1"} and e["rejected"]["site-2"]["code"] == "norm" for e in rounds)
    assert all(float(v.abs().max()) < 100 for v in final.values())


def test_what_the_gate_remembers_survives_a_kill(tmp_path):
    """History lies in the checkpoint: a resumed run judges as the whole one does, to the same bits."""

    class Dies(BaseException):
        pass

    class Killed(Boosts):
        def exchange(self, instructions):
            task, round = next((i.task, i.round) for i in instructions.values())
            if task == "train" and round.number == 4 and not self.seen:
                self.seen.append(round)
                raise Dies
            yield from super().exchange(instructions)

    def federation(folder, transport):
        return make_federation(folder, transport, FedAvg(), rounds=6)

    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole = federation(tmp_path / "whole", Boosts(make_sites(), ("site-1",), 4)).run(initial_model())
    killed = Killed(make_sites(), ("site-1",), 4)
    with pytest.raises(Dies):
        federation(tmp_path / "cut", killed).run(initial_model())
    kept = read_tensors(tmp_path / "cut" / "checkpoint.safetensors")
    assert len(kept["history"]["site-1"]["running means"]) == 3
    assert model_hash(federation(tmp_path / "cut", killed).run(initial_model())) == model_hash(whole)
    logs = [verify(tmp_path / name / "audit.jsonl") for name in ("whole", "cut")]
    rounds = [[e["norms"] for e in log if e["event"] == "round"] for log in logs]
    assert rounds[0] == rounds[1] and "site-1" not in rounds[0][3]
    ends = [read_tensors(tmp_path / name / "checkpoint.safetensors")["history"] for name in ("whole", "cut")]
    assert ends[0] == ends[1]


def statement(site, n):
    return Answer(site, 1, n_examples=n, metrics={"findings": {}, "versions": all_versions()})


@pytest.mark.parametrize("n", [2**40, 10**8 + 1])
def test_no_site_has_so_many_examples(n):
    _, rejections = inspect_preflight([statement("site-1", n), statement("site-2", 500)], all_versions())
    assert [(r.site, r.code) for r in rejections] == [("site-1", "n_examples")]


@pytest.mark.parametrize("others", [(500,), (500, 800), (500, 800, 300), (500, 10**8)])
def test_a_site_that_outweighs_everyone_stops_the_run_before_it_starts(others):
    answers = [statement("site-0", 10**8)] + [statement(f"site-{k}", n) for k, n in enumerate(others, start=1)]
    found, _ = inspect_preflight(answers, all_versions())
    assert [(f.level, f.code) for f in found["site-0"].findings] == [("error", "outsized")]
    assert refusal(found, []).startswith("preflight: site-0") and ": train: outsized: " in refusal(found, [])
    assert "100000000 examples" in refusal(found, [])
    accepted, _ = inspect_preflight(answers, all_versions(), {}, ["outsized"])
    assert accepted["site-0"].findings[0].level == "accepted" and not refusal(accepted, [])


def test_metrics_have_ranges_in_rounds_and_in_the_evaluation():
    told = {"auc": 1e12, "accuracy": -0.1, "dice": 0.5, "loss": -1.0, "train_loss": 1e7, "macro_f1": math.nan}
    reply = GATE.inspect([Answer("site-1", 1, update(), n_examples=10, steps=1, metrics=told)], MODEL, 1, {}).replies[0]
    assert reply.metrics == {"dice": 0.5}
    splits, _ = inspect_evaluation([Answer("site-1", 1, metrics={"test": told, "val": {"loss": 3.0}})], 1)
    assert splits["site-1"]["test"] == {"dice": 0.5} and splits["site-1"]["val"] == {"loss": 3.0}
    sizes = {"n": {"val": 2.5, "test": 1e12}}
    splits, _ = inspect_evaluation([Answer("site-1", 1, metrics=sizes)], 1)
    assert splits["site-1"]["n"] == {}
    cells = {"a": {"n": 1.25, "value": 1.0}, "b": {"n": 20.0, "value": 0.5}}
    many = [Answer("site-1", 1, metrics={"n": {"test": 101.0}, "groups": {"test": cells}})]
    splits, _ = inspect_evaluation(many, 1, ("a", "b"), declared={"site-1": 11})
    assert splits["site-1"]["groups"]["test"] == {"b": cells["b"]}  # there are no parts of patients
    splits, refused = inspect_evaluation(many, 1, declared={"site-1": 10})
    assert not splits and refused[0].code == "count_mismatch"  # a site of ten that would decide what is pooled
    own = [Answer("site-1", 1, metrics={"n": {"test": 10.0}}, personal={"n": {"test": 101.0}})]
    splits, refused = inspect_evaluation(own, 1, personal=True, declared={"site-1": 10})
    assert not splits and refused[0].code == "count_mismatch"  # nor by its own model's


@pytest.mark.parametrize("name, value", [("auc", 1.5), ("auc", -0.1), ("loss", -1.0), ("train_loss", 1e7)])
def test_a_site_sends_no_metric_out_of_its_range(name, value):
    egress = Egress({}, (), frozenset({"auc", "loss", "train_loss"}), ())
    with pytest.raises(EgressRefused, match=f"{name}: outside"):
        egress.check("evaluate", Answer("site-1", 1, metrics={"test": {name: value}}))
    with pytest.raises(EgressRefused, match=f"{name}: outside"):
        egress.check("train", Answer("site-1", 1, {}, metrics={name: value}))


def test_seconds_that_nobody_can_read_do_not_end_the_run(tmp_path):
    class Odd(InProcess):
        def exchange(self, instructions):
            for answer in super().exchange(instructions):
                yield dataclasses.replace(answer, seconds={10**5000: 1.0, "train": 10**400, "probe": -5, "x": 0.5})

    make_federation(tmp_path, Odd(make_sites()), rounds=1).run(initial_model())
    entry = next(e for e in verify(tmp_path / "audit.jsonl") if e["event"] == "round")
    assert entry["site_seconds"]["site-1"] == {"x": 0.5}


def test_a_sum_that_cannot_be_one_ends_the_run_with_the_last_good_model(tmp_path):
    """With secure sums nothing but the sum is seen; whose fault it is stays unknown."""

    class Sums(ServerSums):
        def learn(self, answers):
            return []

        def round(self, transport, answers, round, declared, model):
            blown = {k: torch.full_like(v, 1e20) for k, v in model.items() if v.is_floating_point()}
            total = blown if round.number == 2 else {key: value * 0 for key, value in blown.items()}
            return Summed(total, [Reply(a.site, {}, 24) for a in answers], [], [])

    federation = dataclasses.replace(
        make_federation(tmp_path), aggregation=Sums(dict, lambda site, said: True, range(1), 1)
    )
    with pytest.raises(RunFailed, match="round 2: 0 accepted sites"):
        federation.run(initial_model())
    entries = verify(tmp_path / "audit.jsonl")
    assert entries[-2]["rejected"]["site-1"]["code"] == "sum"
    assert model_hash(read_tensors(tmp_path / "model.safetensors")) == entries[1]["model_sha256"]
