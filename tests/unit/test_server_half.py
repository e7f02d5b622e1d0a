# SPDX-License-Identifier: Apache-2.0
"""A trainer's server half under any rule: what it collects, sends and corrects, and what is refused."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fairflare.aggregators.base import Rule
from fairflare.aggregators.fedavg import FedAvg, Solo
from fairflare.aggregators.fedufo import FedUFO
from fairflare.core import registry
from fairflare.core.errors import UserError
from fairflare.core.types import TensorSpec
from fairflare.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fairflare.engine.files import save_tensors
from fairflare.engine.history import memory_hash
from fairflare.engine.setup.config import make_config
from fairflare.engine.setup.config_checks import misfit
from fairflare.testing import check_trainer
from fairflare.trainers.base import PlainTrainer, Trainer
from fairflare.trainers.weighted import WeightedTrainer

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))
from cases import each
from fairflare.engine.files import read_tensors
from runs import TASK, bits, interrupted, run  # noqa: E402

VALUES = {"n_sites": 3, "batch_size": 64, "lr": 0.01, "trainer": "drift"}
NORMS = TensorSpec("norms", lambda outline: {"all": (1,)}, "norm of the trained model", required=True)
MEAN = TensorSpec("mean", lambda outline: {"all": (1,)}, "mean norm of the sites' models")


@dataclass(frozen=True)
class Drift(PlainTrainer):
    """Shrinks the combined model by what the server has collected, and starts each round at a scaled model."""

    sends = (NORMS,)
    receives = (MEAN,)
    probes = ("group-loss",)
    by: float = 0.01

    def setup(self, work):
        self.seen.append(float(work.tensors.get("mean", {"all": torch.zeros(1)})["all"]))

    seen = []

    def finish(self, work):
        norm = sum(float(p.detach().square().sum()) for p in work.network.parameters())
        work.send_tensors["norms"] = {"all": torch.tensor([norm])}

    def tensors_for(self, state, site, info):
        return {"mean": {"all": state["mean"]}} if state else {}

    def orders(self, state, site, info):
        return {"rounds": float(state.get("rounds", 0))}

    def collect(self, model, replies, state, info):
        assert all("group_loss/survived" in " ".join(r.scalars) or r.scalars for r in replies)
        return {"mean": sum(r.tensors["norms"]["all"] for r in replies) / len(replies), "rounds": info.round.number}

    def correct(self, model, combined, state, info):
        return {k: v * (1 - self.by) if v.is_floating_point() else v for k, v in combined.items()}


@pytest.fixture(scope="module", autouse=True)
def registered():
    registry.trainers()
    registry._parts["trainer"]["drift"] = Drift
    yield
    del registry._parts["trainer"]["drift"]


def test_the_kit():
    check_trainer("drift")


@pytest.mark.parametrize("method", ["fedavg", "fedheal"])
def test_it_runs_under_any_rule(method, tmp_path):
    Drift.seen.clear()
    found = bits(run(method, tmp_path / "run", VALUES))
    plain = bits(run(method, tmp_path / "plain", {**VALUES, "trainer.by": 0.0}))
    rounds = [Drift.seen[k : k + 3] for k in range(0, 9, 3)]
    assert (
        rounds[0] == [0, 0, 0] and len(set(rounds[1])) == len(set(rounds[2])) == 1 and 0 < rounds[1][0] != rounds[2][0]
    )
    assert found["model"] != plain["model"] and found["state"] != plain["state"]
    kept = load_checkpoint(tmp_path / "run" / "checkpoint.safetensors").trainer
    assert kept["rounds"] == 3 and kept["mean"].shape == (1,)


def test_killed_and_continued_it_is_the_same(tmp_path, monkeypatch):
    whole = bits(run("fedheal", tmp_path / "whole", VALUES))
    assert whole == bits(interrupted("fedheal", tmp_path / "killed", VALUES, monkeypatch))


def test_the_log_binds_the_state_and_a_checkpoint_without_it_is_refused(tmp_path):
    model = {"w": torch.zeros(1)}
    plain, more = Checkpoint(1, model), Checkpoint(1, model, trainer={"c": {"w": torch.ones(1)}})
    assert memory_hash(plain) != memory_hash(more)
    save_checkpoint(tmp_path / "c.safetensors", plain)
    content = read_tensors(tmp_path / "c.safetensors")
    del content["trainer"]
    for name, bad in {"old": content, "bad": {**content, "trainer": 3}}.items():
        save_tensors(tmp_path / f"{name}.safetensors", bad)
        with pytest.raises(UserError, match="expected a checkpoint"):
            load_checkpoint(tmp_path / f"{name}.safetensors")


class Personal(PlainTrainer):
    """Its updates are zero."""

    shares_model = False


class Own(FedAvg):
    """Gives sites models of their own."""

    own_models = True


@each(
    "rule, trainer, optimizer, reason",
    [
        (FedAvg(), PlainTrainer(), "adam", ""),
        (FedAvg(), Drift(), "adam", ""),
        (FedAvg(), Personal(), "none", ""),
        (Own(), PlainTrainer(), "none", ""),
        (Own(), PlainTrainer(), "adam", "server_optimizer: expected none, for mine gives sites models of their own"),
        (Own(), Drift(), "none", "trainer t: corrects the shared model at the server, but rule fedavg gives sites"),
        (Solo(), Drift(), "none", "rule solo: expected a trainer that exchanges nothing, since every site is alone"),
        (Solo(), PlainTrainer(), "none", ""),
        (
            FedUFO(),
            PlainTrainer(),
            "none",
            "rule fedufo: expected a trainer that heeds its orders (weight), got trainer",
        ),
        (FedUFO(), WeightedTrainer(), "adam", ""),
        (FedUFO(level="client"), PlainTrainer(), "none", ""),
        (FedUFO(level="client", apply="local"), PlainTrainer(), "none", "rule fedufo: expected a trainer that heeds"),
        (FedUFO(level="client"), Personal(), "none", "trainer t: leaves the models at the sites, so that rule fedufo"),
        (FedAvg(), Personal(), "yogi", "trainer t: leaves the models at the sites, so that server optimizer yogi"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(rule, trainer, optimizer, reason):
    name = {Solo: "solo", FedUFO: "fedufo"}.get(type(rule), "fedavg")
    found = misfit({"method": "mine", "rule": name, "trainer": "t", "server_optimizer": optimizer}, rule, trainer)
    assert found.startswith(reason) and bool(found) == bool(reason) and "\n" not in found


@pytest.mark.parametrize(
    "method, values, reason",
    [
        ("solo", {"trainer": "drift"}, "rule solo: expected a trainer that exchanges nothing"),
        ("fedufo", {"trainer": "sgd"}, "rule fedufo: expected a trainer that heeds its orders"),
        ("fedism", {"trainer": "drift", "secure_sum": "masks"}, "secure_sum: fedism sends tensors"),
    ],
)
def test_a_configuration_is_refused(method, values, reason):
    with pytest.raises(UserError, match=reason):
        make_config(method, TASK, values=values)


def test_rule_and_trainer_must_not_send_the_same_name(tmp_path, monkeypatch):
    monkeypatch.setattr(FedAvg, "orders", lambda self, state, site, info: {"rounds": 1.0})
    with pytest.raises(RuntimeError, match="both send 'rounds'"):
        run("fedavg", tmp_path / "run", VALUES)


def test_a_trainer_without_a_server_half_has_none():
    assert not PlainTrainer().has_server_half and Drift().has_server_half and Drift().corrects
    assert {name for name in ("tensors_for", "orders") if hasattr(Rule, name)} <= set(dir(Trainer))
