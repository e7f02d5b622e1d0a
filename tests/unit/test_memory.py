# SPDX-License-Identifier: Apache-2.0
"""A site's memory: repeated rounds, restarts, and values that do not change behind its back."""

import dataclasses

import pytest
import torch

from fairflare.core.errors import EgressRefused
from fairflare.core.schema import Instruction
from fairflare.core.types import Round
from fairflare.engine.memory import SiteMemory, is_finite
from fairflare.trainers.base import PlainTrainer
from helpers import TRAINING, initial_model, make_sites


def test_a_round_starts_from_the_one_before(tmp_path):
    memory = SiteMemory(tmp_path / "site.safetensors")
    assert memory.before(1) == {}
    memory.keep(1, {"a": 1.0})
    memory.keep(2, {"a": 2.0})
    assert memory.before(3) == {"a": 2.0} and memory.at(2) == {"a": 2.0}


def test_a_round_that_is_asked_for_again_starts_where_it_started():
    memory = SiteMemory()
    memory.keep(1, {"a": 1.0})
    memory.keep(2, {"a": 2.0})
    assert memory.before(2) == {"a": 1.0}
    memory.keep(2, {"a": 2.5})
    assert memory.before(2) == {"a": 1.0} and memory.before(3) == {"a": 2.5}


def test_rounds_in_between_may_be_missing():
    memory = SiteMemory()
    memory.keep(1, {"a": 1.0})
    memory.keep(5, {"a": 5.0})
    assert memory.before(5) == {"a": 1.0} and memory.before(9) == {"a": 5.0} and memory.at(4) == {}


def test_what_a_round_kept_that_went_on_without_the_site_is_discarded(tmp_path):
    memory = SiteMemory(tmp_path / "site.safetensors")
    memory.keep(1, {"a": 1.0})
    memory.keep(2, {"a": 2.0})
    assert memory.has(2) and not memory.has(3)
    memory.discard(2)
    assert not memory.has(2)
    for found in (memory, SiteMemory(tmp_path / "site.safetensors")):
        assert found.before(3) == {"a": 1.0} and found.at(2) == {}
    memory.discard(1)
    memory.discard(1)
    assert SiteMemory(tmp_path / "site.safetensors").before(3) == {}


def test_it_goes_back_to_the_last_round_that_counted(tmp_path):
    memory = SiteMemory(tmp_path / "site.safetensors")
    for number in (1, 2, 3):
        memory.go_back(min(number - 1, 1), number)  # nothing after round 1 has counted
        memory.keep(number, {"a": float(number)})
        assert SiteMemory(tmp_path / "site.safetensors").before(number) == ({"a": 1.0} if number > 1 else {})
    memory.go_back(3, 4)
    assert memory.before(4) == {"a": 3.0} and memory.before(3) == {"a": 1.0}
    memory.go_back(1, 3)  # round 3 again
    assert memory.before(3) == {"a": 1.0} and memory.has(3)
    memory.go_back(0, 4)
    assert memory.before(4) == SiteMemory(tmp_path / "site.safetensors").before(4) == {}


@pytest.mark.parametrize(
    "value, finite",
    [
        ({"a": {"b": [torch.ones(2), 1.0]}, "c": "text", "d": None, "e": torch.tensor([3])}, True),
        ({"a": {"b": [torch.ones(2), float("nan")]}}, False),
        ({"a": {"b": [torch.tensor([1.0, float("inf")])]}}, False),
        ({"a": torch.zeros(0)}, True),
    ],
)
def test_what_is_finite(value, finite):
    assert is_finite(value) == finite


def test_a_round_that_is_refused_on_its_way_out_leaves_nothing(monkeypatch):
    class Refuses:
        def check(self, task, answer):
            if answer.round == 2:
                raise EgressRefused("something else")

        def check_final(self, answer):
            pass

    site = make_sites(1, trainer=PlainTrainer(), probes=())["site-1"]
    site.training, site.egress = dataclasses.replace(TRAINING, optimizer="adam", keep_optimizer=True), Refuses()
    steps = []
    for number in (1, 2, 3):
        answer = site.handle(Instruction("train", Round(number, 3), initial_model()))
        steps.append((answer.error is None, number in site.memory._rounds))
    assert steps == [(True, True), (False, False), (True, True)]


def test_it_survives_a_restart(tmp_path):
    path = tmp_path / "sites" / "site.safetensors"
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    SiteMemory(path).keep(3, {"model": {"w": torch.arange(3.0)}, "optimizer": optimizer.state_dict()})
    found = SiteMemory(path).before(4)
    assert torch.equal(found["model"]["w"], torch.arange(3.0))
    assert found["optimizer"]["param_groups"][0]["lr"] == 1e-3


def test_what_is_kept_does_not_train_on():
    memory, weights = SiteMemory(), torch.zeros(2)
    memory.keep(1, {"model": {"w": weights}})
    weights += 1
    assert torch.equal(memory.before(2)["model"]["w"], torch.zeros(2))


def test_nothing_to_keep_writes_nothing(tmp_path):
    SiteMemory(tmp_path / "site.safetensors").keep(1, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_round_that_is_repeated_trains_to_the_same_bits(optimizer, tmp_path):
    """With its optimizer kept, in the same process and after a restart."""
    training = dataclasses.replace(TRAINING, optimizer=optimizer, keep_optimizer=True)

    def site(memory):
        return dataclasses.replace(
            make_sites(1, trainer=PlainTrainer(), probes=())["site-1"], training=training, memory=memory
        )

    def trained(where, number):
        return where.handle(Instruction("train", Round(number, 3), initial_model())).update

    first = site(SiteMemory(tmp_path / "m.safetensors"))
    trained(first, 1)
    once, again = trained(first, 2), trained(first, 2)
    restarted = trained(site(SiteMemory(tmp_path / "m.safetensors")), 2)
    fresh = trained(site(SiteMemory()), 2)
    assert all(torch.equal(once[k], again[k]) and torch.equal(once[k], restarted[k]) for k in once)
    assert not all(torch.equal(once[k], fresh[k]) for k in once), "the optimizer was not kept"
