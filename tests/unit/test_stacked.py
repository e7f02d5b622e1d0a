# SPDX-License-Identifier: Apache-2.0
"""Sites trained in one batched call: models equal within rounding to those of sites trained alone, or a clear no."""

import dataclasses
import itertools

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from cases import each
from fairflare.core.errors import UserError
from fairflare.core.types import LocalWork, Round, Training
from fairflare.engine.alone import Alone
from fairflare.engine.audit import verify
from fairflare.engine.hashes import model_hash
from fairflare.engine.setup.config import RunConfig, make_config
from fairflare.engine.setup.local import run_local
from fairflare.engine.setup.parts import build_parts
from fairflare.flare.recipe import FairRecipe
from fairflare.studies import runs
from fairflare.trainers import vmap_training as together
from fairflare.trainers.base import PlainTrainer
from fairflare.trainers.gsam import GSAM, SAM
from fairflare.trainers.proximal import Ditto, FedProx
from fairflare.trainers.vmap_training import train_together, unstackable
from fairflare.trainers.weighted import WeightedTrainer
from helpers import Blobs

CPU = torch.device("cpu")
SIZES = (24, 3, 50, 1, 24)
SMALL = {"n_sites": "3", "model": "mlp"}
TOLERANCE = 1e-5
"""docs/settings.md states it, relative to the largest weight."""


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2))


def perceptron(seed=0):
    """Layers that are matrix products over all sites, where ``network`` needs vmap."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def works(training, sizes=SIZES, net=None, memories=None):
    net = net or network()
    received = {name: value.detach().clone() for name, value in net.state_dict().items()}
    memories = memories or [{} for _ in sizes]
    return [
        LocalWork(net, Blobs(k, n), training, Round(1, 3), seed=k, received=received, memory=memory)
        for (k, n), memory in zip(enumerate(sizes, start=1), memories)
    ]


def one_by_one(all_works, trainer=None):
    for work in all_works:
        work.network.load_state_dict(work.received)
        loss = (trainer or PlainTrainer()).train(work)
        yield {name: value.detach().clone() for name, value in work.network.state_dict().items()}, work.steps, loss


TRAININGS = {
    "sgd": Training(epochs=2, batch_size=8, optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.01),
    "plain sgd": Training(epochs=1, batch_size=8, optimizer="sgd", lr=0.1, momentum=0.0, weight_decay=0.0),
    "adam": Training(epochs=2, batch_size=8, optimizer="adam", lr=0.01, weight_decay=0.01, adam_beta2=0.99),
    "adjusted": Training(epochs=1, batch_size=8, optimizer="sgd", lr=0.1, logit_tau=1.0),
    "steps": Training(batch_size=8, optimizer="sgd", lr=0.1, local_steps=5),
}


TRAINERS = (PlainTrainer(), FedProx(mu=0.5), SAM(), GSAM(rho_max=0.3), WeightedTrainer())


@pytest.mark.parametrize("name", TRAININGS)
def test_each_site_has_the_model_that_it_has_alone(name):
    """Of 1 to 50 examples, so that they make different numbers of steps with batches of different sizes."""
    for make, trainer in itertools.product((network, perceptron), TRAINERS):
        expected = list(one_by_one(weighed(works(TRAININGS[name], net=make())), trainer))
        results = train_together(weighed(works(TRAININGS[name], net=make())), trainer)
        assert [one.steps for one in results] == [steps for _, steps, _ in expected]
        assert name == "steps" or len({one.steps for one in results}) == 3
        for one, (model, _, loss) in zip(results, expected):
            assert one.loss == pytest.approx(loss, rel=1e-5), trainer
            for key, value in model.items():
                torch.testing.assert_close(one.model[key], value, rtol=1e-5, atol=5e-6)


def weighed(all_works):
    """Of other rounds and other weights: site k trains in round k modulo 3 + 1, its examples count k times."""
    for k, work in enumerate(all_works, start=1):
        work.round, work.orders = Round(k % 3 + 1, 3), {"weight": float(k)}
    return all_works


def test_sites_of_several_calls_are_those_of_one(monkeypatch):
    whole = train_together(works(TRAININGS["sgd"]))
    monkeypatch.setattr(together, "MOST_STACKED", 2 * sum(p.numel() for p in network().parameters()))
    for one, two in zip(whole, train_together(works(TRAININGS["sgd"]))):
        assert one.steps == two.steps
        for key in one.model:
            torch.testing.assert_close(one.model[key], two.model[key], rtol=1e-5, atol=1e-6)


def test_frozen_parameters_stay():
    net = network()
    net[0].weight.requires_grad_(False)
    before = net[0].weight.clone()
    for one in train_together(works(TRAININGS["sgd"], net=net)):
        assert torch.equal(one.model["0.weight"], before) and not torch.equal(one.model["3.weight"], net[3].weight)


def test_the_place_in_the_data_is_kept():
    memories = [{} for _ in SIZES]
    first = train_together(works(TRAININGS["steps"], memories=memories))
    again = train_together(works(TRAININGS["steps"], memories=memories))
    assert all(memory for memory in memories)
    assert not torch.equal(first[2].model["0.weight"], again[2].model["0.weight"])


def run(folder, observers=(), task="support2:dirichlet", **values):
    config = make_config("fedavg", task, rounds=3, values={**SMALL, **values})
    folder.mkdir(exist_ok=True)
    return run_local(config, folder, observers)


@pytest.mark.parametrize("method_values", [{}, {"train.local_steps": "4"}, {"optimizer": "sgd", "lr": "0.1"}])
def test_a_run_ends_within_the_stated_tolerance(tmp_path, method_values):
    one, two = run(tmp_path / "a", **method_values), run(tmp_path / "b", stacked="true", **method_values)
    largest = max(float(value.abs().max()) for value in one.values())
    assert all(float((one[key] - two[key]).abs().max()) <= TOLERANCE * largest for key in one)
    logs = [[e for e in verify(tmp_path / name / "audit.jsonl") if e["event"] == "round"] for name in "ab"]
    for alone, stacked in zip(*logs):
        assert alone["weights"] == stacked["weights"]
        for site, found in alone["accepted"].items():
            assert found["steps"] == stacked["accepted"][site]["steps"]
            assert found["metrics"]["train_loss"] == pytest.approx(
                stacked["accepted"][site]["metrics"]["train_loss"], rel=1e-4
            )


@each("values", [{}, {"train.local_steps": "4"}, {"trainer": "gsam"}], ids=str)
def test_models_of_sites_alone_end_within_the_stated_tolerance(tmp_path, values, monkeypatch):
    by_itself = []
    monkeypatch.setattr(Alone, "_round", lambda self, train, do=Alone._round: by_itself.append(self) or do(self, train))
    for name, stacked in (("a", "false"), ("b", "true")):
        run(tmp_path / name, solo="true", stacked=stacked, **values)
        assert bool(by_itself) == (stacked == "false")
        by_itself.clear()
    files = sorted((tmp_path / "a").rglob("*.solo.safetensors"))
    assert len(files) == 3
    for file in files:
        one, two = load_file(file), load_file(tmp_path / "b" / file.relative_to(tmp_path / "a"))
        largest = max(float(value.abs().max()) for value in one.values())
        assert all(float((one[key] - two[key]).abs().max()) <= TOLERANCE * largest for key in one)


class Dies(BaseException):
    """The process is killed."""


class Killer:
    def saw(self, entry):
        if entry["event"] == "round" and entry["round"] == 2:
            raise Dies


def test_a_stacked_run_that_is_killed_ends_in_the_bits_of_one_that_is_not(tmp_path):
    values = {"stacked": "true", "train.local_steps": "3"}
    whole = run(tmp_path / "a", **values)
    with pytest.raises(Dies):
        run(tmp_path / "b", [Killer()], **values)
    assert model_hash(run(tmp_path / "b", **values)) == model_hash(whole)


def test_it_is_off_unless_asked_for_and_leaves_the_hash_alone():
    plain, stacked = make_config("fedavg", "support2"), make_config("fedavg", "support2", values={"stacked": "true"})
    assert not plain.stacked and "stacked" not in plain.to_json() and plain.sha256() != stacked.sha256()
    assert RunConfig.from_json(stacked.to_json()) == stacked


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) * (2 if x.sum() > 0 else 1)


SGD = TRAININGS["sgd"]
REFUSED = [
    (network(), Ditto(), SGD, CPU, "expected trainer sgd, fedprox, sam, gsam or weighted"),
    (network(), WeightedTrainer("batch"), SGD, CPU, "expected weight_sum=one"),
    (network(), PlainTrainer(), dataclasses.replace(SGD, keep_optimizer=True), CPU, "keep_optimizer=false"),
    (network(), PlainTrainer(), dataclasses.replace(SGD, precision="bfloat16"), CPU, "precision=float32"),
    (network(), PlainTrainer(), SGD, torch.device("cuda"), "precision=float32"),
    (nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), PlainTrainer(), SGD, CPU, "without running statistics"),
    (nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1)), PlainTrainer(), SGD, CPU, "without dropout"),
    (nn.Linear(1001, 1000), PlainTrainer(), SGD, CPU, "at most 1,000,000 parameters, got 1,002,000"),
]


@each("net, trainer, training, device, text", REFUSED)
def test_what_cannot_be_trained_together_is_told(net, trainer, training, device, text):
    assert text in unstackable(net, trainer, training, device)
    assert unstackable(network(), PlainTrainer(), SGD, CPU) == ""


def test_a_network_that_looks_at_its_numbers_is_told_when_it_trains():
    with pytest.raises(UserError, match="stacked: the network cannot be trained for several sites at once"):
        train_together(works(TRAININGS["sgd"], net=Doubled()))


@pytest.mark.parametrize(
    "method, values, text",
    [
        ("ditto", {}, "stacked: expected trainer sgd"),
        ("fedavg", {"keep_optimizer": "true"}, "stacked: expected keep_optimizer=false"),
        ("fedavg", {"precision": "bfloat16"}, "stacked: expected precision=float32"),
    ],
)
def test_a_run_that_cannot_be_stacked_is_refused_before_it_starts(method, values, text):
    with pytest.raises(UserError, match=text):
        build_parts(make_config(method, "support2", values={"stacked": "true", **values}))


def test_a_stacked_run_has_one_process():
    config = make_config("fedavg", "support2", values={"stacked": "true"})
    parts = build_parts(config)
    assert runs.workers_for(None, config, parts) == runs.workers_for(1, config, parts) == 1
    with pytest.raises(UserError, match="--workers: expected 1 with stacked=true"):
        runs.workers_for(2, config, parts)


def test_flare_s_sites_are_not_stacked(tmp_path):
    config = make_config("fedavg", "support2", values={"stacked": "true"})
    with pytest.raises(UserError, match="stacked: expected --env local, got --env sim"):
        runs.execute(config, tmp_path / "run", env="sim")
    with pytest.raises(UserError, match="stacked: expected false in a FLARE job"):
        FairRecipe(config)
