# SPDX-License-Identifier: Apache-2.0
"""The trainer dp-sgd: its accountant, its noise, its budget, and what may stand beside it."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

from fairflare.core import registry
from fairflare.core.errors import DataError, UserError
from fairflare.core.seeds import derive
from fairflare.core.types import LocalWork, Offer, Round, Training
from fairflare.data.tensors import Split, TensorData
from fairflare.engine.audit import verify
from fairflare.engine.memory import SpentFile
from fairflare.engine.setup.at_site import build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.networks.builtin import mlp, small_cnn
from fairflare.privacy import differential_privacy
from fairflare.privacy.differential_privacy import ORDERS, Draws, Mechanism, epsilon_of, noise_for
from golden import folder
from helpers import least_epsilon
from runs import bits, interrupted, run

PRIVATE = {"trainer": "dp-sgd", "draws": "seed", "noise": 1.5, "epsilon": 100, "local_steps": 3}


def trainer(**settings):
    return registry.get_trainer("dp-sgd")(**settings)


def test_epsilon_is_the_reference_accountants():
    known = json.loads((folder() / "privacy.json").read_text())
    assert (
        known["orders"] == [2, "to", *ORDERS[62:]] and ORDERS[:63] == tuple(range(2, 65)) and len(known["rows"]) == 50
    )
    assert len(known["gaussian"]) == 50, "a hospital's, without samples"
    for noise, rate, steps, delta, epsilon in (*known["rows"], *known["gaussian"]):
        assert epsilon_of([Mechanism(noise, rate, steps)], delta) == pytest.approx(epsilon, abs=1e-3)


def test_the_noise_that_is_found_keeps_to_the_budget_and_less_does_not():
    noise = noise_for(3.0, 1e-5, 0.1, 300)
    assert epsilon_of([Mechanism(noise, 0.1, 300)], 1e-5) <= 3.0
    assert epsilon_of([Mechanism(noise * 0.999, 0.1, 300)], 1e-5) > 3.0
    with pytest.raises(UserError, match="epsilon: expected one that some noise can keep to"):
        noise_for(1e-3, 1e-5, 1.0, 10**6)


def canaries(n=1000):
    """n records in whose own coordinate alone the gradient of each lies, of norm 71 for a weight of zeros."""
    empty = Split(torch.zeros(0, n), torch.zeros(0, dtype=torch.int64))
    return TensorData(
        train=Split(torch.eye(n) * 100, torch.zeros(n, dtype=torch.int64)), val=empty, test=empty, n_classes=2
    )


def audited(data, noise, n=1000, steps=1, rate=1.0):
    """The least epsilon with which a reader of the model tells so many of n canaries right, each there by a coin."""
    there = torch.from_numpy(np.random.default_rng(3).random(n) < 0.5)
    kept = Split(data.splits["train"].inputs[there], data.splits["train"].targets[there])
    part = TensorData.of({**data.splits, "train": kept}, 2)
    network = nn.Linear(n, 2, bias=False)
    nn.init.zeros_(network.weight)
    size = max(2, round(len(kept) * rate))
    training = Training(batch_size=size, optimizer="sgd", momentum=0.0, weight_decay=0.0, lr=0.1, local_steps=steps)
    trainer(draws="seed", noise=noise).train(LocalWork(network, part, training, Round(1, 1), seed=11))
    score = (network.weight[0] - network.weight[1]).detach()
    return least_epsilon(int(((score > score.mean()) == there).sum()), n)


def unclipped(monkeypatch):
    from opacus.optimizers import DPOptimizer

    whole = DPOptimizer.clip_and_accumulate

    def accumulate(optimizer):
        optimizer.max_grad_norm = 1e9
        whole(optimizer)

    monkeypatch.setattr(DPOptimizer, "clip_and_accumulate", accumulate)


def test_an_audit_with_canaries_finds_no_violation_and_finds_planted_ones(monkeypatch):
    """One run with many canaries: Steinke et al. 2023, arXiv:2305.08846."""
    promised = epsilon_of([Mechanism(2.0, 1.0, 1)], 1e-7)
    data = canaries()
    assert 0 < audited(data, noise=2.0) <= promised
    assert audited(data, noise=0.2) > promised, "noise of a tenth, sold for the whole"
    with monkeypatch.context() as broken:
        unclipped(broken)
        assert audited(data, noise=2.0) > promised
    monkeypatch.setattr(differential_privacy.Draws, "normal", lambda self, like: torch.zeros_like(like))
    assert audited(data, noise=2.0) > promised


@pytest.mark.long
def test_an_audit_of_many_steps_on_samples_finds_no_violation_and_finds_planted_ones(monkeypatch):
    promised = epsilon_of([Mechanism(3.0, 0.25, 40)], 1e-7)
    told = {"n": 3000, "steps": 40, "rate": 0.25}
    data = canaries(3000)
    assert 0 < audited(data, 3.0, **told) <= promised < audited(data, 0.1, **told)
    unclipped(monkeypatch)
    assert audited(data, 3.0, **told) > promised


def test_draws_are_normal_and_those_of_the_system_do_not_repeat():
    like = torch.zeros(20_000)
    for seed in (None, 5):
        assert kstest(Draws(seed).normal(like).double().numpy(), "norm").pvalue > 1e-6
        assert kstest(Draws(seed).uniform(20_000), "uniform").pvalue > 1e-6
    assert torch.equal(Draws(5).normal(like), Draws(5).normal(like))
    assert not torch.equal(Draws(None).normal(like), Draws(None).normal(like))


def updates(folder, **more):
    run("fedavg", folder, {**PRIVATE, **more}, rounds=1)
    return bits(folder)["model"]


def test_seeded_runs_repeat_and_those_of_the_system_do_not(tmp_path):
    assert updates(tmp_path / "a") == updates(tmp_path / "b")
    assert updates(tmp_path / "c", draws="system") != updates(tmp_path / "d", draws="system")


def test_physical_batches_change_rounding_alone():
    found = []
    for physical in (4, 256):
        torch.manual_seed(0)
        network, data = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), canaries(40)
        data.splits["train"] = Split(torch.randn(40, 3), torch.arange(40) % 2)
        work = LocalWork(network, data, Training(batch_size=16), Round(1, 1), seed=2)
        trainer(draws="seed", physical=physical).train(work)
        assert work.steps == 3 and not any("grad_sample" in vars(p) for p in network.parameters())
        found.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    torch.testing.assert_close(*found, rtol=0, atol=1e-6)


def test_a_run_halts_at_its_budget_and_says_so(tmp_path):
    """VA, with 85 training records, can pay for two of three rounds; the run goes on without it."""
    config = make_config("fedavg", "heart", rounds=3, values={**PRIVATE, "min_sites": 1, "batch_size": 4})
    two = epsilon_of([Mechanism(1.5, 4 / 85, 6)], 1e-5)
    config = dataclasses.replace(config, settings={**config.settings, "trainer.epsilon": two * 1.0001})
    run_local(config, tmp_path)
    rounds = [e for e in verify(tmp_path / "audit.jsonl") if e["event"] == "round"]
    assert "VA" in rounds[1]["accepted"] and rounds[1]["accepted"]["VA"]["scalars"]["epsilon"] == pytest.approx(two)
    assert "privacy budget spent" in str(rounds[2]["rejected"]["VA"]) and "VA" not in rounds[2]["accepted"]
    assert "Cleveland" in rounds[2]["accepted"], "whose rate is lower"


def test_a_killed_run_keeps_what_it_spent_and_ends_in_the_same_bits(tmp_path, monkeypatch):
    values = PRIVATE
    whole = run("fedavg", tmp_path / "whole", values)
    killed = interrupted("fedavg", tmp_path / "killed", values, monkeypatch)
    assert bits(whole)["model"] == bits(killed)["model"], "of the seed; its second round was trained twice alike"
    rounds = [len(ledger(path)["spent"]) for path in (whole, killed)]
    assert rounds == [3, 4] and ledger(killed)["epsilon"] > ledger(whole)["epsilon"]


def ledger(path):
    (file, *_) = sorted((path / "sites").glob("*.privacy.json"))
    (about,) = json.loads(file.read_text())["runs"].values()
    return about


def test_a_ledger_holds_every_run(tmp_path):
    for name in "ab":
        SpentFile(tmp_path / "l.json", name).write({"epsilon": 1.0})
    assert SpentFile(tmp_path / "l.json", "a").read() == {"epsilon": 1.0} and SpentFile(None, "a").read() == {}
    assert set(json.loads((tmp_path / "l.json").read_text())["runs"]) == {"a", "b"}


def test_no_loss_of_training_leaves(tmp_path):
    run("fedavg", tmp_path / "r", PRIVATE, rounds=1)
    (entry,) = [e for e in verify(tmp_path / "r" / "audit.jsonl") if e["event"] == "round"]
    for answer in entry["accepted"].values():
        assert "train_loss" not in answer["metrics"] and set(answer["scalars"]) == {"epsilon"}


@pytest.mark.parametrize(
    "method, number",
    [("qffl", "loss"), ("fedism-plus", "loss"), ("fedlwr", "similarity"), ("fairfed", "correct"), ("afl", "loss")],
)
def test_methods_that_need_numbers_are_refused_by_the_numbers_name(method, number):
    with pytest.raises(UserError, match=rf"trainer dp-sgd: {method} sends {number}\S*, which no privacy budget covers"):
        build_parts(make_config(method, "support2:dirichlet", rounds=1, values=PRIVATE))


@pytest.mark.parametrize("method", ["fedavg", "fedheal", "cgsv", "shapfed"])
def test_methods_that_need_none_are_not(method):
    build_parts(make_config(method, "support2:dirichlet", rounds=1, values=PRIVATE))


@pytest.mark.parametrize(
    "task, values, words",
    [
        ("support2:dirichlet", {"solo": True}, "solo: expected false"),
        ("support2:dirichlet", {"logit_tau": 1}, "expected logit_tau=0"),
    ],
)
def test_what_the_budget_does_not_cover_is_refused(task, values, words):
    with pytest.raises(UserError, match=words):
        build_parts(make_config("fedavg", task, rounds=1, values={**PRIVATE, **values}))


def test_networks_and_losses_that_mix_examples_are_refused_by_name():
    assert trainer().unsuited(small_cnn(1, 2, "batch")).startswith("layer block1.1 (BatchNorm2d) has no gradients")
    assert trainer().unsuited(small_cnn(1, 2, "group")) == trainer().unsuited(mlp(3, 2)) == ""
    assert "depends on the others at risk" in trainer().missing(Offer("", (), "", (), False, "cox"))


def test_several_records_of_a_patient_are_refused_where_patients_are_known():
    data = canaries(4)
    data.splits["train"] = Split(torch.eye(4), torch.arange(4) % 2, {"patient_id": ["p1", "p2", "p1", ""]})
    work = LocalWork(nn.Linear(4, 2), data, Training(batch_size=2), Round(1, 1), seed=derive(0))
    with pytest.raises(UserError, match=r"one training record per patient \(patient_id\), got several"):
        trainer().train(work)


def test_a_seed_is_refused_on_a_sites_own_data(tmp_path):
    config = make_config("fedavg", "support2:dirichlet", rounds=1, values=PRIVATE)
    parts = build_parts(config)
    (tmp_path / "fairflare_site.yaml").write_text("min_count: 10\n")
    with pytest.raises(DataError, match="expected system on a site's own data, got seed"):
        build_site(config, parts, next(iter(parts.task.sites())), local=tmp_path)
