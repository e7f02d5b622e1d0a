# SPDX-License-Identifier: Apache-2.0
"""The trainer dp-sgd: its accountant, its noise, its budget, and what may stand beside it."""

import csv
import dataclasses
import json
import math
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

from fairflare.core import registry
from fairflare.core.errors import DataError, EgressRefused, UserError
from fairflare.core.manifest import all_versions
from fairflare.core.schema import Answer
from fairflare.core.seeds import derive
from fairflare.core.types import LocalWork, Offer, Round, Training
from fairflare.data.site_config import SiteConfig
from fairflare.data.tensors import Split, TensorData
from fairflare.engine.audit import verify
from fairflare.engine.memory import SpentFile
from fairflare.engine.setup import tasks
from fairflare.engine.setup.at_site import build_site
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.networks.builtin import mlp
from fairflare.networks.images import small_cnn
from fairflare.privacy import differential_privacy
from fairflare.privacy.differential_privacy import (
    ORDERS,
    Draws,
    Mechanism,
    RecordBudget,
    epsilon_of,
    noise_for,
    noised_results,
)
from fairflare.studies.run_file import plan_values
from fairflare.tasks.own.tabular import Tabular
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


RANGES = json.dumps({name: {"kind": "number", "range": [0, 10]} for name in ("a", "b", "c")})


def table(folder, rows):
    with open(folder / "site-1.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("a", "b", "c", "label", "split"), *rows])
    return SiteConfig(data_root=str(folder), datalist="site-1.csv")


def audited_on_a_table(folder, trials, columns=RANGES, noise=2.0):
    """The least epsilon with which who knows all other rows tells whether an extreme one is there, from the update."""
    task = Tabular(site_names="site-1", features="a,b,c", columns=columns, split_by="row")
    draw = np.random.default_rng(7)
    values = draw.uniform(3, 7, (80, 3)).round(3)
    rows = [(*one, int(one[0] > 5), ("train", "test")[k % 2]) for k, one in enumerate(values)]
    extreme = ("9e29", "-9e29", "9e29", 1, "train")
    read = [task.read(table(folder, more)) for more in (rows, [*rows, extreme])]

    def update(there, seed, scale):
        data = read[int(there)]
        network = nn.Linear(3, 2, bias=False)
        nn.init.zeros_(network.weight)
        training = Training(batch_size=64, optimizer="sgd", momentum=0.0, weight_decay=0.0, lr=64.0, local_steps=1)
        part = trainer(draws="seed", noise=scale, epsilon=1e5)
        part.train(LocalWork(network, data, training, Round(1, 1), seed=seed))
        return network.weight.detach().flatten()

    without, with_it = (update(there, 1, 1e-3) for there in (False, True))
    direction = with_it - without
    coins = np.random.default_rng(5).random(trials) < 0.5
    scores = [float((update(coin, 100 + k, noise) - without) @ direction) for k, coin in enumerate(coins)]
    guesses = np.array(scores) > float(direction @ direction) / 2
    return least_epsilon(int((guesses == coins).sum()), trials)


def test_an_audit_of_an_extreme_row_of_a_table_finds_no_violation_and_finds_planted_ones(tmp_path):
    promised = epsilon_of([Mechanism(2.0, 1.0, 1)], 1e-7)
    assert audited_on_a_table(tmp_path, 250) <= promised
    assert audited_on_a_table(tmp_path, 250, noise=0.2) > promised, "noise of a tenth, sold for the whole"
    assert audited_on_a_table(tmp_path, 250, columns="") > promised, "scaled by the mean and spread of the rows"


def test_the_released_number_of_examples_has_the_noise_that_was_charged(tmp_path):
    found = []
    for seed in range(400):
        budget = RecordBudget(3.0, 1e-5, SpentFile(None, "r"), lambda purpose, seed=seed: Draws(seed))
        found.append(budget.count(500) - 500)
        assert budget.count(900) - 500 == found[-1] and len(budget.spent()) == 1, "drawn and charged once"
    (count,) = budget.spent()
    assert count == Mechanism(noise_for(0.6, 1e-5, 1.0, 1), 1.0, 1)
    assert kstest(np.array(found) / count.noise, "norm").pvalue > 1e-6
    assert abs(np.mean(found)) < 5 * count.noise / 20 and np.std(found) == pytest.approx(count.noise, rel=0.15)
    file = tmp_path / "l.json"
    first = RecordBudget(3.0, 1e-5, SpentFile(file, "r"), lambda purpose: Draws(None)).count(500)
    assert RecordBudget(3.0, 1e-5, SpentFile(file, "r"), lambda purpose: Draws(None)).count(500) == first


def test_noised_results_are_those_of_a_histogram_that_a_record_moves_by_one():
    task = tasks.load("support2", "dirichlet")
    draw = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(300, 2, generator=draw) * 2, torch.randint(0, 2, (300,), generator=draw)
    silent, counted = Draws(3), []
    silent.normal = lambda like: counted.append(like.clone()) or torch.zeros_like(like)
    exact, found = task.evaluate(outputs, targets), noised_results(task, outputs, targets, 1.0, silent)
    assert found["n"] == {"test": 300.0}
    for name in ("accuracy", "balanced_accuracy", "macro_f1"):
        assert found["test"][name] == pytest.approx(exact[name], abs=1e-9), name
    assert found["test"]["auc"] == pytest.approx(exact["auc"], abs=0.02)
    noised_results(task, outputs[1:], targets[1:], 1.0, silent)
    moved = counted[0] - counted[1]
    assert moved.abs().sum() == 1 and counted[0].sum() == 300
    scales = []
    loud = Draws(3)
    loud.normal = lambda like: scales.append(len(like)) or torch.full_like(like, 2.0)
    more = noised_results(task, outputs, targets, 5.0, loud)
    assert more["n"]["test"] == 300 + 2.0 * 5.0 * scales[0], "noise of the deviation that is charged"


@pytest.mark.parametrize("name, preset", [("support2", "dirichlet"), ("digits", "small"), ("brain-seg", "small")])
def test_one_record_more_moves_noised_results_by_no_more_than_the_noise_is_for(name, preset):
    """Also a record whose outputs are not finite; of two classes, ten classes and masks."""
    task, draw = tasks.load(name, preset), torch.Generator().manual_seed(1)
    if task.kind.has_classes:
        n = len(task.classes)
        outputs, targets = torch.randn(30, n, generator=draw), torch.randint(0, n, (30,), generator=draw)
    else:
        logits = torch.randn(30, len(task.classes), 8, 8, generator=draw)
        outputs, targets = task.condense(logits, (torch.randn(30, len(task.classes), 8, 8, generator=draw) > 0).byte())
    sums, deviation = [], []
    watching = Draws(1)
    watching.normal = lambda like: sums.append(like.clone()) or torch.zeros_like(like)
    broken = outputs.float().clone()
    broken[-1] = float("nan")
    for some in (outputs, outputs[:-1], broken):
        found = noised_results(task, some, targets[: len(some)], 1.0, watching)
    assert found["n"]["test"] == 29.0 and torch.equal(sums[1], sums[2])
    deviation = 1.0 if task.kind.has_classes else math.sqrt(len(sums[0]))
    assert 0 < float((sums[0] - sums[1]).norm()) <= deviation


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
    values = {**PRIVATE, "epsilon": 1.05, "min_sites": 1, "batch_size": 4}
    run_local(make_config("fedavg", "heart", rounds=3, values=values), tmp_path)
    rounds = [e for e in verify(tmp_path / "audit.jsonl") if e["event"] == "round"]
    about = ledger(tmp_path, "VA")
    spent = [Mechanism(*row) for row in about["spent"]]
    assert epsilon_of(spent, 1e-5) <= 1.05 < epsilon_of([*spent, spent[-1]], 1e-5) and len(spent) == 3
    assert rounds[1]["accepted"]["VA"]["scalars"]["epsilon"] == pytest.approx(epsilon_of(spent, 1e-5))
    assert "privacy budget spent" in str(rounds[2]["rejected"]["VA"]) and "VA" not in rounds[2]["accepted"]
    assert "Cleveland" in rounds[2]["accepted"], "whose rate is lower"


def test_epsilon_of_a_whole_run_is_the_reference_accountants(tmp_path, monkeypatch):
    """Opacus's accountant over the samples that were drawn and both released numbers."""
    from opacus.accountants import RDPAccountant

    samples, uniform = [], Draws.uniform
    monkeypatch.setattr(Draws, "normal", lambda draws, like: torch.randn_like(like))
    monkeypatch.setattr(Draws, "uniform", lambda draws, n: samples.append(n) or uniform(draws, n))
    values = {**PRIVATE, "noise": 0.0, "epsilon": 2.0, "batch_size": 16}
    run_local(make_config("fedavg", "heart", rounds=3, values=values), tmp_path)
    entries = verify(tmp_path / "audit.jsonl")
    last = [e for e in entries if e["event"] == "round"][-1]["accepted"]
    for site, answer in last.items():
        about = ledger(tmp_path, site)
        count, first, *_ = about["spent"]
        assert answer["n_examples"] == about["count"] and first[1] == min(1.0, 16 / about["count"])
        accountants = RDPAccountant(), RDPAccountant()
        accountants[0].history = [(count[0], 1.0, 1), (first[0], 16 / answer["n_examples"], 3 * int(answer["steps"]))]
        accountants[1].history = [(about["results"][0][0], 1.0, 1)]
        whole, tested = (one.get_epsilon(1e-5, alphas=ORDERS) for one in accountants)
        assert answer["scalars"]["epsilon"] == pytest.approx(whole, rel=1e-9) and 1.9 < whole <= 2.0
        assert about["epsilon"] == pytest.approx(max(whole, tested), rel=1e-9) and tested <= 2.0
    assert sorted(Counter(samples).values()) == [9, 9, 9, 9], "three rounds of three steps at each site"


def test_a_killed_run_keeps_what_it_spent_and_ends_in_the_same_bits(tmp_path, monkeypatch):
    values = PRIVATE
    whole = run("fedavg", tmp_path / "whole", values)
    killed = interrupted("fedavg", tmp_path / "killed", values, monkeypatch)
    assert bits(whole)["model"] == bits(killed)["model"], "of the seed; its second round was trained twice alike"
    spent = [[Mechanism(*row) for row in ledger(path)["spent"]] for path in (whole, killed)]
    assert [len(one) for one in spent] == [4, 5] and epsilon_of(spent[1], 1e-5) > epsilon_of(spent[0], 1e-5)


def ledger(path, site="*"):
    (file, *_) = sorted((path / "sites").glob(f"{site}.privacy.json"))
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


REFUSED = [
    ({"solo": True}, "solo: expected false"),
    ({"logit_tau": 1}, "expected logit_tau=0"),
    ({"after": "recalibrate"}, "after: expected none"),
    ({"best_by": "mean"}, "best_by: expected none"),
]
OWN = {"site_names": "s,t,u", "features": "a,b,c", "columns": RANGES, "split_by": "row"}
NOT_PUBLIC = [
    ({"columns": ""}, r"columns: 'a': expected a range from a data dictionary, such as '\{\"a\": "),
    ({"columns": '{"a": {"kind": "category"}}'}, "columns: 'a': expected levels"),
    ({"scaling": "site"}, "scaling: expected none, and a range for each number"),
    ({"split_by": "order"}, "split_by: expected row, got order"),
]


@pytest.mark.parametrize("values, words", REFUSED)
def test_what_the_budget_does_not_cover_is_refused(values, words):
    with pytest.raises(UserError, match=words):
        build_parts(make_config("fedavg", "support2:dirichlet", rounds=1, values={**PRIVATE, **values}))


def test_an_evaluation_is_refused_whose_number_and_results_are_of_the_same_cases():
    """The ledger took them for two splits, of which a case is in one alone."""
    config = make_config("fedavg", "support2:dirichlet", rounds=1, values=PRIVATE)
    with pytest.raises(UserError, match="evaluation: expected false with trainer dp-sgd"):
        dataclasses.replace(config, evaluation=True)


@pytest.mark.parametrize("budget", [PRIVATE, {"secure_sum": "masks", "site_epsilon": 8.0}])
@pytest.mark.parametrize("values, words", NOT_PUBLIC)
def test_training_rows_decide_nothing_about_an_own_table(budget, values, words):
    make_config("fedavg", "tabular", rounds=1, values={**budget, **OWN})
    with pytest.raises(UserError, match=words):
        make_config("fedavg", "tabular", rounds=1, values={**budget, **OWN, **values})


@pytest.mark.parametrize("budget", [{"trainer": "dp-sgd"}, {"secure_sum": "masks", "site_epsilon": 8.0}])
def test_a_plan_of_fingerprints_is_refused(tmp_path, budget):
    (tmp_path / "plan.json").write_text(json.dumps({"format": 1, "kind": "tabular", "settings": {}}))
    assert plan_values(tmp_path / "plan.json", "tabular", {"trainer": "sgd"}) == {}
    with pytest.raises(UserError, match=r"--plan plan\.json: expected none with a privacy budget"):
        plan_values(tmp_path / "plan.json", "tabular", budget)


@pytest.mark.parametrize("budget", [PRIVATE, {"secure_sum": "masks", "site_epsilon": 8.0, "model": "linear"}])
def test_the_egress_check_lets_nothing_past_the_budget_leave(budget):
    config = make_config("fedavg", "support2:dirichlet", rounds=1, values=budget)
    egress = build_site(config, build_parts(config), "site-1").egress
    about = {"findings": {}, "versions": all_versions()}
    egress.check("preflight", Answer("site-1", 1, n_examples=1, metrics=about))
    for task, more in (
        ("preflight", {"metrics": {**about, "findings": {"warning/train/levels": 1.0}}}),
        ("evaluate", {"metrics": {"val": {"accuracy": 0.5}}}),
        ("evaluate", {"metrics": {"test": {}, "intervals": {"accuracy": {"low": 0.1, "high": 0.9}}}}),
        ("evaluate", {"metrics": {"trivial": {"test": {"loss": 0.689}}}}),
        ("evaluate", {"clinical": {"n": 100.0}}),
        ("evaluate", {"personal": {"test": {"accuracy": 0.5}}}),
        ("compare", {"seconds": {"train": 1.0}}),
    ):
        with pytest.raises(EgressRefused, match=f"{next(iter(more))}: more than the privacy budget covers"):
            egress.check(task, Answer("site-1", 1, **more))


def test_a_row_stays_in_its_split_whatever_the_others_are(tmp_path):
    task = Tabular(site_names="site-1", features="a,b,c", columns=RANGES, split_by="row")
    draw = np.random.default_rng(1)
    rows = [(*draw.uniform(0, 10, 3).round(4), k % 2, "") for k in range(400)]
    splits = []
    for chosen in (rows, rows[1:], rows[::-1]):
        with open(tmp_path / "t.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("a", "b", "c", "label", "note"), *chosen])
        data = task.read(SiteConfig(data_root=str(tmp_path), datalist="t.csv")).splits
        splits.append({tuple(row): name for name, split in data.items() for row in split.inputs.tolist()})
    whole, fewer, turned = splits
    assert turned == whole and fewer.items() <= whole.items() and len(whole) == 400
    sizes = Counter(whole.values())
    assert 60 < sizes["test"] < 100 and 25 < sizes["val"] < 75
    assert all(abs(value) <= 2 for row in whole for value in row)


def test_a_record_whose_gradient_is_not_finite_is_left_out():
    data, weights = canaries(8), []
    for broken in (False, True):
        inputs = data.splits["train"].inputs.clone()
        inputs[3] = float("inf") if broken else 0.0
        data.splits["train"] = Split(inputs, data.splits["train"].targets)
        network = nn.Linear(8, 2, bias=False)
        nn.init.zeros_(network.weight)
        work = LocalWork(network, data, Training(batch_size=8, local_steps=1), Round(1, 1), seed=2)
        trainer(draws="seed", noise=1.0, epsilon=1e5).train(work)
        weights.append(network.weight.detach().clone())
    assert torch.equal(*weights)


def test_networks_and_losses_that_mix_examples_are_refused_by_name():
    assert trainer().unsuited(small_cnn(1, 2, "batch")).startswith("layer block1.1 (BatchNorm2d) has no gradients")
    assert trainer().unsuited(small_cnn(1, 2, "group")) == trainer().unsuited(mlp(3, 2)) == ""
    assert "depends on the others at risk" in trainer().missing(Offer("", (), "", (), False, "cox"))


def test_several_records_of_a_patient_are_refused_where_patients_are_known():
    data = canaries(4)
    data.splits["train"] = Split(torch.eye(4), torch.arange(4) % 2, patients=np.array([0, 1, 0, 2]))
    work = LocalWork(nn.Linear(4, 2), data, Training(batch_size=2), Round(1, 1), seed=derive(0))
    with pytest.raises(UserError, match="expected one of each patient, got several"):
        trainer().train(work)


def test_several_examples_of_a_record_are_refused():
    """Each would be clipped by itself, so that the record moved the sum by several times the norm that is charged."""

    class Cropped(TensorData):
        def _picked(self, batches, generator):
            return super()._picked([rows.repeat(2) for rows in batches], generator)

    data, network = Cropped.of(canaries(4).splits, 2), nn.Linear(4, 2)
    before = network.weight.detach().clone()
    with pytest.raises(UserError, match="a budget protects a row: expected one example of each"):
        trainer(draws="seed").train(LocalWork(network, data, Training(batch_size=4), Round(1, 1), seed=2))
    assert torch.equal(network.weight, before)


def test_crops_of_a_bundle_are_refused_where_they_are_several():
    for name, more in (("RandSpatialCropd", {}), ("RandSpatialCropSamplesd", {"num_samples": 8})):
        crop = {"_target_": name, "keys": ["image"], "roi_size": [32, 32], **more}
        own = {"site_names": "s,t,u", "train_transforms": json.dumps([crop])}
        make_config("fedavg", "bundle-classification", values=own)
        with pytest.raises(UserError, match="expected num_samples of 1 with trainer") if more else nullcontext():
            make_config("fedavg", "bundle-classification", values={**PRIVATE, **own})


def test_a_seed_is_refused_on_a_sites_own_data(tmp_path):
    config = make_config("fedavg", "support2:dirichlet", rounds=1, values=PRIVATE)
    parts = build_parts(config)
    (tmp_path / "fairflare_site.yaml").write_text("min_count: 10\n")
    with pytest.raises(DataError, match="expected system on a site's own data, got seed"):
        build_site(config, parts, next(iter(parts.task.sites())), local=tmp_path)
