# SPDX-License-Identifier: Apache-2.0
"""SCAFFOLD against FLARE's own helper, its limits, and a run that is killed and continued."""

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fairflare.core.errors import UserError
from fairflare.core.registry import get_method
from fairflare.core.types import Batch, Info, LocalWork, Reply, Round, Training
from fairflare.testing import check_rule, check_trainer
from fairflare.testing.laws import CHECKS

sys.path[:0] = [str(Path(__file__).parents[1] / "golden"), str(Path(__file__).parent)]
from runs import bits, interrupted, run  # noqa: E402

from golden import folder  # noqa: E402

KEYS = ("0.weight", "0.bias", "2.weight", "2.bias")
SGD = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
SPLITS = (slice(0, 25), slice(25, 40))
"""Of the golden file's examples over its two sites."""


class Rows:
    """All examples of a site as one batch."""

    def __init__(self, x, y):
        self.x, self.y = torch.as_tensor(x), torch.as_tensor(y)
        self.class_counts = torch.bincount(self.y, minlength=3)

    def training(self, batch_size, seed):
        yield Batch(self.x, self.y, torch.full((len(self.y),), -1))


def local(plugin, data, model, memory, control, training):
    """One site's round: its work after training."""
    network = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    network.load_state_dict(model)
    work = LocalWork(network, data, training, Round(1, 2), seed=0, memory=memory, received=model)
    work.tensors = {"control": control} if control else {}
    plugin.ScaffoldTrainer().train(work)
    return work


def reply(site, update, change):
    return Reply(site, update, 10, trainable=frozenset(update), tensors={"control_change": change})


def test_two_rounds_of_flares_helper(plugin):
    """Two sites, three full-batch steps each: global model, c and both c_i."""
    golden = np.load(folder() / "local_terms.npz")
    model = {key: torch.tensor(golden[f"global/{key}"]) for key in KEYS}
    sites = [Rows(golden["x"][rows], golden["y"][rows]) for rows in SPLITS]
    memories, state, rule = [{}, {}], {}, plugin.Scaffold()
    training = Training(epochs=3, lr=0.1, batch_size=40, **SGD)
    for t in range(2):
        info, replies = Info(Round(t + 1, 2), lr=0.1, known_sites=2), []
        for k, data in enumerate(sites):
            control = rule.tensors_for(state, f"site-{k}", info).get("control", {})
            work = local(plugin, data, model, memories[k], control, training)
            update = {key: value - model[key] for key, value in work.network.state_dict().items()}
            replies.append(reply(f"site-{k}", update, work.send_tensors["control_change"]))
        outcome = rule.aggregate(model, replies, state, info)
        model, state = outcome.model, outcome.state
        for key in KEYS:
            found = (model[key], state["control"][key], memories[0]["control"][key], memories[1]["control"][key])
            for value, name in zip(found, ("global", "c", "c0", "c1"), strict=True):
                np.testing.assert_allclose(value.numpy(), golden[f"scaffold/r{t}/{name}/{key}"], rtol=0, atol=1e-12)


def test_the_server_moves_by_the_share_of_sites_that_are_here(plugin):
    """c += |S| / N times the mean change."""
    changes = [reply(f"site-{k}", {"w": torch.zeros(1)}, {"w": torch.tensor([float(k)])}) for k in (1, 3)]
    _, state = plugin.Scaffold().weigh(changes, {}, Info(Round(1, 2), known_sites=8))
    assert state["control"]["w"].item() == 0.5
    _, state = plugin.Scaffold().weigh(changes, state, Info(Round(2, 2), known_sites=8))
    assert state["control"]["w"].item() == 1.0


@pytest.mark.parametrize("changed", [{"momentum": 0.9}, {"optimizer": "adam"}], ids=str)
def test_another_optimizer_is_refused(plugin, changed):
    data = Rows(np.zeros((4, 6)), np.array([0, 1, 2, 0]))
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double().state_dict()
    with pytest.raises(UserError, match="expected optimizer=sgd and momentum=0"):
        local(plugin, data, model, {}, {}, Training(**{**SGD, **changed}))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_laws(plugin, check):
    check(dataclasses.replace(get_method("scaffold")))


VALUES = {**SGD, "lr": 0.05, "n_sites": 3, "batch_size": 64}


def test_one_site_alone_is_plain_training(plugin, tmp_path):
    """c = c_1, so nothing is corrected in the first two rounds."""
    alone = {**VALUES, "n_sites": 2, "leave_out": "site-2", "min_sites": 1}
    models = [bits(run(method, tmp_path / method, alone, rounds=2)) for method in ("scaffold", "fedavg")]
    assert models[0]["model"] == models[1]["model"]


def test_killed_and_continued_it_is_the_same(plugin, tmp_path, monkeypatch):
    whole = bits(run("scaffold", tmp_path / "whole", VALUES))
    assert whole == bits(interrupted("scaffold", tmp_path / "killed", VALUES, monkeypatch))
    assert whole["model"] != bits(run("fedavg", tmp_path / "fedavg", VALUES))["model"]


def test_the_kit(plugin):
    check_rule("scaffold")
    check_trainer("scaffold", training=Training(epochs=2, batch_size=8, lr=0.05, **SGD))
