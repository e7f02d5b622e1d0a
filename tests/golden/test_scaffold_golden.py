# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD against FLARE's own helper, its estimates under other optimizers, and a run that is killed and continued."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fairflare.aggregators.fedavg import FedAvg
from fairflare.core.types import Batch, Info, LocalWork, Reply, Round, Training
from fairflare.engine.setup.config import make_config
from fairflare.server_optimizers.adaptive import Momentum
from fairflare.testing import check_trainer
from fairflare.trainers.drift_correction import Scaffold, steps_taken
from golden import folder
from runs import bits, interrupted, run

KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")
SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
SPLITS = (slice(0, 25), slice(25, 40))
"""Of the golden file's examples over its two sites."""


class Rows:
    """All examples of a site as one batch."""

    def __init__(self, x, y):
        self.x, self.y = torch.as_tensor(x), torch.as_tensor(y)
        self.class_counts = torch.bincount(self.y, minlength=3)

    def size(self, split):
        return len(self.y)

    def training(self, batch_size, seed):
        yield Batch(self.x, self.y, torch.full((len(self.y),), -1))

    def fixed(self, split, batch_size, at_most=None):
        for rows in torch.arange(len(self.y)).split(batch_size):
            yield Batch(self.x[rows], self.y[rows], torch.full((len(rows),), -1))


def local(data, model, memory, control, training, **settings):
    """One site's round: its work after training."""
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    network.load_state_dict(model)
    work = LocalWork(network, data, training, Round(1, 2), seed=0, memory=memory, received=model)
    work.tensors = {"control": control} if control else {}
    Scaffold(**settings).train(work)
    return work


def reply(site, update, change, n=10):
    return Reply(site, update, n, trainable=frozenset(update), tensors={"control_change": change})


def test_two_rounds_of_flares_helper():
    """Two sites, three full-batch steps each: global model, c and both c_i."""
    golden = np.load(folder() / "local_terms.npz")
    model = {key: torch.tensor(golden[f"global/{key}"]) for key in KEYS}
    sites = [Rows(golden["x"][rows], golden["y"][rows]) for rows in SPLITS]
    memories, state, trainer = [{}, {}], {}, Scaffold()
    training = Training(epochs=3, lr=0.1, batch_size=40, **SGD)
    for t in range(2):
        info, replies = Info(Round(t + 1, 2), lr=0.1, known_sites=2), []
        for k, data in enumerate(sites):
            control = trainer.tensors_for(state, f"site-{k}", info).get("control", {})
            work = local(data, model, memories[k], control, training)
            update = {key: value - model[key] for key, value in work.network.state_dict().items()}
            replies.append(reply(f"site-{k}", update, work.send_tensors["control_change"]))
        state = trainer.collect(model, replies, state, info)
        model = FedAvg(weighting="uniform").aggregate(model, replies, {}, info).model
        for key in KEYS:
            found = (model[key], state["control"][key], memories[0]["control"][key], memories[1]["control"][key])
            for value, name in zip(found, ("global", "c", "c0", "c1"), strict=True):
                np.testing.assert_allclose(value.numpy(), golden[f"scaffold/r{t}/{name}/{key}"], rtol=0, atol=1e-12)


def test_the_server_moves_by_the_share_of_sites_that_are_here():
    """c += |S| / N times the mean change."""
    changes = [reply(f"site-{k}", {"w": torch.zeros(1)}, {"w": torch.tensor([float(k)])}) for k in (1, 3)]
    state = Scaffold().collect({}, changes, {}, Info(Round(1, 2), known_sites=8))
    assert state["control"]["w"].item() == 0.5
    after = Scaffold().collect({}, changes, state, Info(Round(2, 2), known_sites=8))
    assert after["control"]["w"].item() == 1.0 and state["control"]["w"].item() == 0.5
    silent = dataclasses.replace(changes[1], tensors={})
    assert Scaffold().collect({}, [changes[0], silent], {}, Info(Round(1, 2), known_sites=8))["control"]["w"] == 0.125


def test_weights_by_examples_are_those_of_the_model_and_of_the_control_variate():
    """As FLamby has it: with 30 and 10 examples c moves by three quarters of the first site's change."""
    changes = [reply(f"site-{k}", {"w": torch.zeros(1)}, {"w": torch.tensor([v])}, n) for k, v, n in SITES]
    state = Scaffold(weighting="examples").collect({}, changes, {}, Info(Round(1, 2), known_sites=2))
    assert state["control"]["w"].item() == 2.5
    half = Scaffold(weighting="examples").collect({}, changes, {}, Info(Round(1, 2), known_sites=4))
    assert half["control"]["w"].item() == 1.25
    settings = make_config("scaffold", "support2", values={"weighting": "examples", "optimizer": "sgd"}).settings
    assert settings["rule.weighting"] == settings["trainer.weighting"] == "examples"
    assert make_config("scaffold", "support2", values={"optimizer": "sgd"}).settings["rule.weighting"] == "uniform"


SITES = ((1, 3.0, 30), (2, 1.0, 10))


def test_the_servers_learning_rate_is_a_server_optimizers():
    """w + eta_g mean D over the parameters; running statistics move by their whole mean."""
    model = {"w": torch.zeros(1), "running_var": torch.zeros(1)}
    updates = [{"w": torch.tensor([v]), "running_var": torch.ones(1)} for v in (1.0, 3.0)]
    replies = [
        dataclasses.replace(reply(f"s{k}", u, {"w": torch.zeros(1)}), trainable=frozenset("w"))
        for k, u in enumerate(updates)
    ]
    mean = FedAvg(weighting="uniform").aggregate(model, replies, {}, Info(Round(1, 2), known_sites=2)).model
    stepped, _ = Momentum(lr=0.25, beta=0.0).step(model, mean, {}, frozenset("w"))
    assert stepped["w"].item() == 0.5 and stepped["running_var"].item() == 1.0


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


DATA = Rows(np.random.default_rng(0).normal(size=(12, 6)), np.arange(12) % 3)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_with_momentum_the_estimate_is_a_weighted_mean_of_the_steps_gradients(momentum):
    """c_i+ is what a step's gradients weigh in (w^t - y), whatever correction was added to all of them."""
    start, control = plain().state_dict(), {key: torch.full_like(v, 0.3) for key, v in plain().state_dict().items()}
    training, k = Training(epochs=4, lr=0.05, batch_size=40, **{**SGD, "momentum": momentum}), 4
    work = local(DATA, start, {}, control, training)
    network, seen = plain(), []
    for _ in range(k):
        network.zero_grad()
        F.cross_entropy(network(DATA.x), DATA.y).backward()
        seen.append(network[0].weight.grad.clone())
        with torch.no_grad():
            for p in network.parameters():
                p.velocity = momentum * getattr(p, "velocity", 0.0) + p.grad + 0.3
                p -= 0.05 * p.velocity
    counts = [sum(momentum**i for i in range(k - t)) for t in range(k)]
    assert steps_taken(k, momentum) == pytest.approx(sum(counts))
    expected = sum(c * g for c, g in zip(counts, seen)) / sum(counts)
    torch.testing.assert_close(work.memory["control"]["0.weight"], expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(work.network[0].weight, network[0].weight, rtol=0, atol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_lengths_of_steps(momentum):
    """Along one gradient of 1 from rest."""
    place = velocity = 0.0
    for k in range(1, 8):
        velocity = momentum * velocity + 1
        place += velocity
        assert steps_taken(k, momentum) == pytest.approx(place)


def test_the_gradient_itself_is_the_estimate_under_any_optimizer():
    """Option I: grad F_i(w^t) over all examples, in batches of another size than the data have."""
    start = plain().state_dict()
    training = Training(epochs=2, lr=0.05, batch_size=5, optimizer="adam")
    work = local(DATA, start, {}, {}, training, estimate="gradient")
    network = plain()
    F.cross_entropy(network(DATA.x), DATA.y).backward()
    for key, p in network.named_parameters():
        torch.testing.assert_close(work.memory["control"][key], p.grad, rtol=0, atol=1e-13)
    assert work.network.training and not torch.equal(work.network[0].weight, start["0.weight"])
    again = local(DATA, work.network.state_dict(), work.memory, {}, training, estimate="gradient")
    total = {key: work.send_tensors["control_change"][key] + again.send_tensors["control_change"][key] for key in KEYS}
    assert all(torch.allclose(total[key], again.memory["control"][key]) for key in KEYS)


VALUES = {**SGD, "lr": 0.05, "n_sites": 3, "batch_size": 64}


def test_one_site_alone_is_plain_training(tmp_path):
    """c = c_1, so nothing is corrected in the first two rounds."""
    alone = {**VALUES, "n_sites": 2, "leave_out": "site-2", "min_sites": 1}
    models = [bits(run(method, tmp_path / method, alone, rounds=2)) for method in ("scaffold", "fedavg")]
    assert models[0]["model"] == models[1]["model"]


def test_killed_and_continued_it_is_the_same(tmp_path, monkeypatch):
    whole = bits(run("scaffold", tmp_path / "whole", VALUES))
    assert whole == bits(interrupted("scaffold", tmp_path / "killed", VALUES, monkeypatch))
    assert whole["model"] != bits(run("fedavg", tmp_path / "fedavg", VALUES))["model"]


@pytest.mark.parametrize(
    "settings, changed", [({}, {}), ({}, {"momentum": 0.9}), ({"estimate": "gradient"}, {"optimizer": "adam"})], ids=str
)
def test_the_kit(settings, changed):
    check_trainer("scaffold", training=Training(epochs=2, batch_size=8, lr=0.05, **{**SGD, **changed}), **settings)
